"""Where to evaluate next: expected improvement, or Thompson sampling by functions in a region."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import get_matheron_path_model
from models import lengthscales
from torch import Tensor
from torch.quasirandom import SobolEngine

from orthogp.botorch import OrthogonalGPModel, SampledFunctions

# Of a trust region: as in TuRBO (Eriksson and others, 2019).
FIRST, SMALLEST, LARGEST = 0.8, 0.5**7, 1.6
SUCCESSES, LEAST_GAIN = 3, 1e-3
CANDIDATES, MOVED = 2000, 20
CLIMBS, CLIMB_SHARE = 20, 0.02
# The rows among which the model says which is the best.
INCUMBENTS = 100


@dataclass(frozen=True)
class Region:
    """The length of a trust region, how many rounds in a row have gained or not, and its best."""

    length: float = FIRST
    gained: int = 0
    failed: int = 0
    best: float = -math.inf

    @property
    def ended(self) -> bool:
        return self.length < SMALLEST

    def after(self, value: float, patience: int) -> "Region":
        """The region after a round with this best value."""
        gains = value > self.best + LEAST_GAIN * abs(self.best) or self.best == -math.inf
        gained, failed = (self.gained + 1, 0) if gains else (0, self.failed + 1)
        found = replace(self, gained=gained, failed=failed, best=max(value, self.best))
        if gained == SUCCESSES:
            return replace(found, length=min(2.0 * self.length, LARGEST), gained=0)
        if failed == patience:
            return replace(found, length=self.length / 2.0, failed=0)
        return found


def by_improvement(model: Any, x: Tensor, y: Tensor, batch: int) -> Tensor:
    bounds = torch.stack([torch.zeros_like(x[0]), torch.ones_like(x[0])])
    function = qLogExpectedImprovement(model, best_f=y.max())
    return optimize_acqf(
        function, bounds, q=batch, num_restarts=4, raw_samples=64, options={"maxiter": 50}
    )[0]


def by_functions(model: Any, x: Tensor, y: Tensor, batch: int, region: Region) -> Tensor:
    """Where functions of the posterior are largest, each climbed from the best of candidates."""
    top = x[y[:, 0].topk(min(INCUMBENTS, len(y))).indices]
    with torch.no_grad():
        centre = top[model.posterior(top).mean[:, 0].argmax()]
    d = x.shape[1]
    widths = lengthscales(model, d).to(x)
    widths = widths / widths.log().mean().exp()
    low, high = ((centre + sign * widths * region.length / 2.0).clamp(0.0, 1.0) for sign in (-1, 1))
    with torch.no_grad():
        paths = _drawn(model, batch)
    sobol = SobolEngine(d, scramble=True, seed=int(torch.randint(2**31, ())))
    candidates = low + (high - low) * sobol.draw(CANDIDATES, dtype=x.dtype).to(x)
    # In many dimensions some of the coordinates move.
    moved = torch.rand(CANDIDATES, d).to(x) < min(1.0, MOVED / d)
    candidates = torch.where(moved, candidates, centre)
    with torch.no_grad():
        values = paths(candidates)[..., 0]
        start = candidates[values.argmax(-1)].unsqueeze(1)
    # The rows near a start serve its whole climb: in half the time, and without steps.
    given = paths.given_rows_near(start) if isinstance(paths, SampledFunctions) else paths
    climbed = _climbed(given, start, low, high)
    with torch.no_grad():
        # Where near rows come and go a function has steps, and a climb may end lower.
        better = paths(climbed)[..., 0] > paths(start)[..., 0]
    return torch.where(better, climbed[:, 0], start[:, 0])


def _drawn(model: Any, number: int) -> Any:
    """Functions of the posterior."""
    if isinstance(model, OrthogonalGPModel):
        return model.sample_functions(number)
    return get_matheron_path_model(model, torch.Size([number]))


def _climbed(paths: Any, start: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Each function from a point of its own, by Adam in units of the region."""
    width = (high - low).clamp_min(1e-12)
    place = ((start - low) / width).requires_grad_()
    optimizer = torch.optim.Adam([place], lr=CLIMB_SHARE)
    for _ in range(CLIMBS):
        optimizer.zero_grad()
        (-paths(low + width * place).sum()).backward()
        optimizer.step()
        with torch.no_grad():
            place.clamp_(0.0, 1.0)
    return (low + width * place).detach()
