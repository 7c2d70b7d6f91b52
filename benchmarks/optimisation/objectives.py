"""Functions to maximise on the unit cube, each observed with a little noise."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.test_functions import Ackley, Hartmann
from torch import Tensor

NOISE = 0.01
# Of the path of `rover`: points that steer it, and points at which its cost is counted.
STEERED, COUNTED = 30, 400
OBSTACLES, RADIUS, HIT_COST, LENGTH_COST, END_COST = 40, (0.03, 0.09), 20.0, 0.5, 10.0


@dataclass(frozen=True)
class Problem:
    """`value` of points `[n, d]` of the unit cube, without noise; `largest` where it is known."""

    d: int
    value: Callable[[Tensor], Tensor]
    largest: float | None

    def observe(self, x: Tensor) -> Tensor:
        f = self.value(x).unsqueeze(-1)
        return f + NOISE * torch.randn_like(f)


def _of_botorch(function) -> Problem:
    def value(x: Tensor) -> Tensor:
        low, high = function.bounds.to(x)
        return function.to(x)(low + (high - low) * x)

    return Problem(function.dim, value, function.optimal_value)


def _cubic_basis(points: int, at: Tensor) -> Tensor:
    """Weights of a uniform cubic B-spline with these numbers of points, `[len(at), points]`."""
    u = at.unsqueeze(1) * (points - 1) - torch.arange(points).to(at)
    a = u.abs()
    inner, outer = 2.0 / 3.0 - a.square() + a**3 / 2.0, (2.0 - a).clamp_min(0.0) ** 3 / 6.0
    weights = torch.where(a < 1.0, inner, outer)
    return weights / weights.sum(1, keepdim=True)


def _rover() -> Problem:
    """A path from one corner of a square to the other between round obstacles, of 30 points.

    The cost is the length of the path, many times that of what lies in obstacles, and the distance
    of its ends from where they should be.
    """
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(OBSTACLES, 2, generator=generator).double()
    low, high = RADIUS
    radii = low + (high - low) * torch.rand(OBSTACLES, generator=generator).double()
    ends = torch.tensor([[0.05, 0.05], [0.95, 0.95]]).double()
    # The ends are free.
    clear = (centres.unsqueeze(1) - ends).norm(dim=-1).amin(1) > radii + 0.05
    centres, radii = centres[clear], radii[clear]
    weights = _cubic_basis(STEERED, torch.linspace(0, 1, COUNTED).double())

    def value(x: Tensor) -> Tensor:
        path = weights.to(x) @ x.reshape(-1, STEERED, 2)
        steps = path.diff(dim=1)
        middle = path[:, 1:] - steps / 2.0
        away = torch.cdist(middle, centres.to(x).expand(len(x), -1, -1))
        hit = (away < radii.to(x)).any(-1)
        cost = (steps.norm(dim=-1) * (LENGTH_COST + HIT_COST * hit)).sum(1)
        missed = (path[:, [0, -1]] - ends.to(x)).abs().sum((1, 2))
        return 5.0 - cost - END_COST * missed

    return Problem(2 * STEERED, value, None)


PROBLEMS = {
    "hartmann6": _of_botorch(Hartmann(dim=6, negate=True)),
    # The optimum is not in the middle of these bounds.
    "ackley20": _of_botorch(Ackley(dim=20, negate=True, bounds=[(-5.0, 10.0)] * 20)),
    "rover60": _rover(),
}
