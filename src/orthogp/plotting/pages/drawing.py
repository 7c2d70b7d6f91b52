"""Matplotlib as SVG within a page, in the colours of the page's style."""

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

from orthogp.plotting.pages.markup import Markup, element

# Matplotlib cannot draw in the variables of a style sheet: it draws with the values on the left,
# which are then replaced by those on the right, so that a chart is as dark or light as its page.
FONT, INK, QUIET, FAINT, SHADE = "DejaVu Sans", "#010101", "#020202", "#030303", "#040404"
REPLACED = {
    f"'{FONT}'": "system-ui",
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    FAINT: "var(--faint)",
    SHADE: "var(--shade)",
}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.sans-serif": [FONT, "sans-serif"],
    "font.size": 13,
    "axes.labelsize": 13,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.edgecolor": QUIET,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": FAINT,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "ytick.major.size": 0,
    "lines.linewidth": 1.75,
    "lines.markersize": 5.5,
}
# No metadata: a chart is part of another file.
METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def drawn(
    draw: Callable[[Any], None], size: tuple[int, int], label: str, identity: str, **style: Any
) -> Markup:
    """An svg element with what `draw` puts on Matplotlib's axes, the same whatever the user's
    settings of Matplotlib; `identity` must differ from chart to chart of a page.

    An artist whose gid is `series COLOUR` or `level COLOUR` is drawn with SHADE, which the page
    makes that colour.
    """
    from matplotlib import style as styles
    from matplotlib.figure import Figure

    width, height = size
    content = io.StringIO()
    with (
        styles.context(["default", STYLE, style, {"svg.hashsalt": identity}]),
        warnings.catch_warnings(),
    ):
        # The browser has the fonts: glyphs that Matplotlib lacks are none of its concern.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure((width / 72, height / 72), layout="constrained", frameon=False)
        draw(figure.add_subplot())
        figure.savefig(content, format="svg", metadata=METADATA)
    inside = _part_of_page(content.getvalue())
    return element("svg", inside, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def _part_of_page(svg: str) -> Markup:
    """The inside of an SVG file, without styles and ids that would affect the rest of the page."""
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="(series|level) ([^"]*)"', r'<g class="\1" style="--colour:\2"', svg)
    # Groups are numbered alike in every chart; ids of markers and clips depend on the salt.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for shown, replacement in REPLACED.items():
        svg = svg.replace(shown, replacement)
    return Markup(svg)
