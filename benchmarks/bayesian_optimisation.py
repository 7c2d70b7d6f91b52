"""Bayesian optimisation with the model for BoTorch, beside BoTorch's own models.

    python benchmarks/bayesian_optimisation.py [--problem hartmann6] [--models orthogp,exact] \
        [--start 12] [--evaluations 60] [--batch 4] [--seeds 1]

Hartmann-6 or Ackley-20, observed with a little noise; the best value without noise is what counts.
`orthogp` is `OrthogonalGPModel`, `exact` `SingleTaskGP`, `variational` `SingleTaskVariationalGP`,
`random` draws points. A round conditions the model on the last batch, or fits it anew where the
rows have become half as many again since its last fit, and proposes a batch: up to 10 points by
`qLogExpectedImprovement`, beyond by functions of the posterior, each climbed from the best of some
candidates. Prints the best value and the median seconds of a round, with and without a fit, for
every model and seed.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.test_functions import Ackley, Hartmann
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from torch import Tensor

from orthogp import OrthogonalGPRegressor
from orthogp.botorch import OrthogonalGPModel

PROBLEMS = {
    "hartmann6": Hartmann(dim=6, negate=True).double(),
    "ackley20": Ackley(dim=20, negate=True).double(),
}
NOISE = 0.01
MOST_BY_IMPROVEMENT = 10
CANDIDATES, CLIMBS, CLIMB_RATE = 512, 20, 0.02


def orthogp(x: Tensor, y: Tensor):
    return OrthogonalGPModel(x, y, OrthogonalGPRegressor(random_state=0)).fit()


def exact(x: Tensor, y: Tensor):
    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def variational(x: Tensor, y: Tensor):
    model = SingleTaskVariationalGP(
        x, y, inducing_points=min(200, len(x)), outcome_transform=Standardize(1)
    )
    mll = VariationalELBO(model.likelihood, model.model, num_data=len(x))
    fit_gpytorch_mll(mll)
    return model


MODELS: dict[str, Callable | None] = {
    "orthogp": orthogp, "exact": exact, "variational": variational, "random": None,
}  # fmt: skip


def proposed(model, x: Tensor, y: Tensor, batch: int) -> Tensor:
    """A batch of points in the unit cube."""
    d = x.shape[1]
    bounds = torch.stack([torch.zeros(d), torch.ones(d)]).double()
    if batch <= MOST_BY_IMPROVEMENT:
        function = qLogExpectedImprovement(model, best_f=y.max())
        options = {"maxiter": 50}
        return optimize_acqf(
            function, bounds, q=batch, num_restarts=4, raw_samples=64, options=options
        )[0]
    paths = get_matheron_path_model(model, torch.Size([batch]))
    best = x[y[:, 0].topk(min(20, len(y))).indices]
    near = best.repeat(CANDIDATES // len(best), 1)
    # A few coordinates of good points are moved, as in searches of trust regions.
    moved = torch.rand_like(near) < max(0.2, 2.0 / d)
    near = (near + 0.1 * moved * torch.randn_like(near)).clamp(0.0, 1.0)
    candidates = torch.cat([draw_sobol_samples(bounds, CANDIDATES, 1).squeeze(1), near])
    with torch.no_grad():
        start = candidates[paths(candidates)[..., 0].argmax(-1)]
    points = start.unsqueeze(1).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=CLIMB_RATE)
    for _ in range(CLIMBS):
        optimizer.zero_grad()
        (-paths(points).sum()).backward()
        optimizer.step()
        with torch.no_grad():
            points.clamp_(0.0, 1.0)
    climbed = points.detach()
    with torch.no_grad():
        # Where near rows come and go a function has steps, and a climb may end lower.
        better = paths(climbed)[..., 0] > paths(start.unsqueeze(1))[..., 0]
    return torch.where(better, climbed[:, 0], start)


def run(problem, name: str, start: int, evaluations: int, batch: int, seed: int):
    """The best value, and the seconds of rounds with and without a fit."""
    torch.manual_seed(seed)
    low, high = problem.bounds
    unit = torch.stack([torch.zeros_like(low), torch.ones_like(high)])
    x = draw_sobol_samples(unit, start, 1, seed=seed).squeeze(1).double()

    def observed(points: Tensor) -> Tensor:
        f = problem(low + (high - low) * points).unsqueeze(-1)
        return f + NOISE * torch.randn_like(f)

    y, make = observed(x), MODELS[name]
    model, fitted, times = None, 0, {True: [], False: []}
    while len(x) < evaluations:
        begin, fits = time.monotonic(), model is None or len(x) > 1.5 * fitted
        if make is None:
            new = torch.rand(batch, x.shape[1]).double()
        else:
            if fits:
                model, fitted = make(x, y), len(x)
            elif hasattr(model, "condition_on_observations") and name != "variational":
                with torch.no_grad():
                    # SingleTaskGP fills its caches by a prediction.
                    model.posterior(x[:1])
                    model = model.condition_on_observations(x[-batch:], y[-batch:])
            new = proposed(model, x, y, min(batch, evaluations - len(x))).detach()
        times[fits].append(time.monotonic() - begin)
        x, y = torch.cat([x, new]), torch.cat([y, observed(new)])
    best = problem(low + (high - low) * x).max().item()
    return best, *(statistics.median(t) if t else float("nan") for t in times.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", choices=PROBLEMS, default="hartmann6")
    parser.add_argument("--models", default="orthogp,exact,random")
    parser.add_argument("--start", type=int, default=12)
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    problem = PROBLEMS[given.problem]
    print(f"{given.problem}: the largest value is {problem.optimal_value:.4f}")
    print("model        seed  best     s a round with a fit, without")
    for name in given.models.split(","):
        for seed in range(given.seeds):
            best, fit, condition = run(
                problem, name, given.start, given.evaluations, given.batch, seed
            )
            print(f"{name:<12} {seed:<5} {best:<8.4f} {fit:.2f}, {condition:.2f}", flush=True)


if __name__ == "__main__":
    main()
