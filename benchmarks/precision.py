"""What float32 would cost in a prediction on a CPU, and what is left of it, on real data sets.

    python benchmarks/precision.py --data-dir DIR [--datasets kin40k,pol] [--steps 400]

Errors of the two parts of the mean, when they are in float32, in prior standard deviations; the
rounding that the predictor found at its points and the smallest variance, as shares of the prior's;
the share of rows whose variance is taken once more in float64; the largest and the median error of
a variance, as a share of itself.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch

from orthogp import OrthogonalGPRegressor
from orthogp.posterior.predictor import MANY, TIMES_ROUNDING, Predictor

TRAIN, TEST = 10_000, 3_000


@torch.no_grad()
def report(p: Predictor, x: torch.Tensor) -> str:
    covariance, wide = p.covariance, x.double()
    prior = covariance.diagonal(wide)

    def beta_part(dtype: torch.dtype) -> torch.Tensor:
        return p.beta_weights.to(dtype) @ covariance.block(p.beta.to(dtype), x.to(dtype))

    def gamma_part(dtype: torch.dtype) -> torch.Tensor:
        return covariance.matvec(x.to(dtype), p.gamma.to(dtype), p.gamma_weights.to(dtype))

    parts = [
        ((part(torch.float32) - part(torch.float64)).abs() / prior.sqrt()).max().item()
        for part in (beta_part, gamma_part)
    ]
    wanted = torch.cat([p.marginals(few)[1] for few in wide.split(MANY - 1)], dim=1)[0]
    error = (p.marginals(wide)[1][0] - wanted).abs() / wanted
    rounding = p.rounding or 0.0
    again = (wanted < TIMES_ROUNDING * rounding * prior).double().mean().item()
    numbers = [*parts, rounding, (wanted / prior).min().item()]
    found = " | ".join(f"{number:.1e}" for number in numbers)
    return f"{found} | {again:.0%} | {error.max().item():.1e} | {error.median().item():.1e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets", default="kin40k,pol,keggdirected,protein,elevators,bike")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    print("set | β part | γ part | rounding | smallest variance | again | largest error | median")
    for name in options.datasets.split(","):
        with np.load(options.data_dir / "regression" / f"{name}.npz") as file:
            X, y = file["X"], file["y"]
        order = np.random.default_rng(0).permutation(len(X))[: TRAIN + TEST]
        train, test = order[:TRAIN], order[TRAIN:]
        gp = OrthogonalGPRegressor(n_neighbors=0, max_steps=options.steps, random_state=0).fit(
            X[train], y[train]
        )
        x = gp._fitted.units.inputs.standardise(X[test])
        print(f"{name} | {report(gp._fitted.predictor, x)}", flush=True)


if __name__ == "__main__":
    main()
