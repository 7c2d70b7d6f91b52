"""One colour a method, in every picture; hues a colour-blind reader can tell apart.

A basis has one hue. Methods trained by Adam alone are dashed, the others solid. All show on white
and on black.
"""

from zlib import crc32

COLOURS = {
    "Coupled300": "#56B4E9",
    "CoupledNat300": "#56B4E9",
    "Coupled": "#0072B2",
    "CoupledNat": "#0072B2",
    "Orth": "#D55E00",
    "OrthNat": "#D55E00",
    "Hybrid": "#009E73",
    "Decoupled": "#CC79A7",
    "CoupledARD": "#6A5ACD",
    "OrthARD": "#B22222",
    "OrthNatARD": "#B22222",
    "OrthARDUnit": "#556B2F",
    "Optimum": "#808080",
    "Default": "#E69F00",
    "Boosting": "#8C564B",
    "NGBoost": "#A89B00",
    "Selu": "#8A8A8A",
}
DASHED = frozenset(
    {
        "Coupled300", "Coupled", "Orth", "Hybrid", "Decoupled", "CoupledARD", "OrthARD",
        "OrthARDUnit", "Optimum",
    }
)  # fmt: skip
_SPARE = ("#2E8B57", "#708090", "#4B6A00", "#7A4FA0")


def colour_of(method: str) -> str:
    """The method's colour, "#RRGGBB"; a name not known here gets one that depends on it alone."""
    return COLOURS.get(method) or _SPARE[crc32(method.encode()) % len(_SPARE)]
