"""The radial families in Triton's language."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from orthogp.kernel.radial.families import FORMULAS

FAMILY_CODES = {"rbf": 0, "matern12": 1, "matern32": 2, "matern52": 3}


def family_code(families: tuple[str, ...]) -> int:
    """One number for several families, two bits each, the first in the lowest."""
    return sum(FAMILY_CODES[name] * 4**k for k, name in enumerate(families))


@triton.jit
def _sqrt(t):
    return tl.sqrt(t)


@triton.jit
def _exp_minus(t):
    return tl.exp(-t)


@triton.jit
def _limit(t):
    return t


@triton.jit
def _ratio(e, r):
    return tl.where(r > 0, e / r, 0.0)


_rbf, _matern12 = triton.jit(FORMULAS["rbf"]), triton.jit(FORMULAS["matern12"])
_matern32, _matern52 = triton.jit(FORMULAS["matern32"]), triton.jit(FORMULAS["matern52"])


@triton.jit
def family(q, FAMILY: tl.constexpr):
    """κ(q) and κ′(q)."""
    if FAMILY == 0:
        value, slope = _rbf(q, _sqrt, _exp_minus, _limit, _ratio)
    elif FAMILY == 1:
        value, slope = _matern12(q, _sqrt, _exp_minus, _limit, _ratio)
    elif FAMILY == 2:
        value, slope = _matern32(q, _sqrt, _exp_minus, _limit, _ratio)
    else:
        value, slope = _matern52(q, _sqrt, _exp_minus, _limit, _ratio)
    return value, slope
