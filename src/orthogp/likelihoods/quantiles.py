"""Quantiles from a predictive cdf, by bisection."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# A level nearer to 0 or 1 is lost in the rounding of a cdf that is a sum over nodes.
NEAREST_LEVEL = 1e-12
DOUBLINGS = 60
# More than it takes to halve any bracket to the spacing of float64, below which none can shrink.
HALVINGS = 200
# The width at which the bisection ends, relative to the first bracket.
PRECISION = 1e-13


@dataclass(frozen=True)
class Support:
    """The interval that y lies in; `discrete` means its whole numbers only."""

    low: float = -math.inf
    high: float = math.inf
    discrete: bool = False


def invert(
    cdf: Callable[[Float[Tensor, "c n"]], Float[Tensor, "c n"]],
    level: Float[Tensor, "#c 1"],
    centre: Float[Tensor, "c n"],
    spread: Float[Tensor, "c n"],
    support: Support,
) -> Float[Tensor, "c n"]:
    """The smallest y of the support with cdf(y) ≥ level; the search starts at centre ± spread."""
    level = level.clamp(NEAREST_LEVEL, 1 - NEAREST_LEVEL)
    spread = spread.ceil().clamp_min(1) if support.discrete else spread
    centre = centre.ceil() if support.discrete else centre
    low = _bracket_end(lambda y: cdf(y) < level, centre, -spread, support.low, support.discrete)
    high = _bracket_end(lambda y: cdf(y) >= level, centre, spread, support.high, support.discrete)
    width = torch.ones_like(low) if support.discrete else PRECISION * (high - low)
    for _ in range(HALVINGS):
        if not bool((high - low > width).any()):
            break
        middle = (low + high) / 2
        middle = middle.floor() if support.discrete else middle
        reaches = cdf(middle) >= level
        low, high = (
            torch.where(reaches, low, middle),
            torch.where(reaches, middle, high),
        )
    return high


def _bracket_end(
    beyond: Callable[[Float[Tensor, "c n"]], Tensor],
    centre: Float[Tensor, "c n"],
    step: Float[Tensor, "c n"],
    end: float,
    discrete: bool,
) -> Float[Tensor, "c n"]:
    """A point on the side of `step` that is `beyond` the quantile, or the support's end there."""
    if math.isfinite(end):
        # Of whole numbers the lowest may itself be the quantile.
        return torch.full_like(centre, end - 1 if discrete and bool((step < 0).all()) else end)
    for _ in range(DOUBLINGS):
        is_beyond = beyond(centre + step)
        if bool(is_beyond.all()):
            break
        step = torch.where(is_beyond, step, 2 * step)
    return centre + step
