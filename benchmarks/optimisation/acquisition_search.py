"""How searches of acquisition functions end on Hartmann-6, and what they miss.

    python benchmarks/optimisation/acquisition_search.py [--repeats 5]

Where near rows change as x moves, mean and variance have a small step, and L-BFGS-B may end there
with ABNORMAL. Three models: one fitted to 134 rows that 66 have joined, one fitted to 3000, and the
exact process with the hyperparameters and the rows of the latter, which has no near rows. Prints
for each how the restarts of `optimize_acqf` ended, how far the best of them is above the best of
5000 random points, and how far it is below the best of 1000 random steps of lengths from 0.0001 to
0.1 from where it ended, at most; in units of log EI and of outcomes.
"""

import argparse
import time
import warnings
from collections import Counter
from typing import Any
from unittest.mock import patch

import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement, UpperConfidenceBound
from botorch.generation import gen
from botorch.optim import optimize_acqf
from models import KINDS
from objectives import PROBLEMS
from torch import Tensor

from orthogp.botorch import OrthogonalGPModel
from orthogp.estimators import near_rows

PROBLEM, D = PROBLEMS["hartmann6"], 6
RANDOM, STEPS = 5000, 1000


def models() -> dict[str, OrthogonalGPModel]:
    """The rows are the higher half of random ones, as those of a search are higher than others."""
    torch.manual_seed(0)
    orthogp = KINDS["orthogp"]
    assert orthogp is not None
    found = {}
    for rows, fitted in ((200, 134), (3000, 3000)):
        x = torch.rand(2 * rows, D, dtype=torch.float64)
        x = x[PROBLEM.value(x).topk(rows).indices][torch.randperm(rows)]
        y = PROBLEM.observe(x)
        model = orthogp.fit(x[:fitted], y[:fitted])
        if fitted < rows:
            model = model.condition_on_observations(x[fitted:], y[fitted:])
        found[f"{rows} rows"] = model
    exact, parts = OrthogonalGPModel(x, y), model.estimator.model_
    with patch.object(near_rows, "MOST_EXACT", {"cpu": len(x)}):
        exact._learn(False, kernel=parts.covariance.kernel, likelihood=parts.likelihood)
    return found | {"exact": exact}


def search(function: AcquisitionFunction, seed: int) -> tuple[Tensor, float, list[Any]]:
    """Where `optimize_acqf` ends, the value there, and what L-BFGS-B says of every restart."""
    bounds = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    with patch.object(gen, "_process_scipy_result") as processed:
        x, value = optimize_acqf(
            function, bounds, q=1, num_restarts=8, raw_samples=128, options={"seed": seed}
        )
    assert isinstance(value, Tensor)
    return x, value.item(), [call.kwargs["res"] for call in processed.call_args_list]


def highest(function: AcquisitionFunction, x: Tensor) -> float:
    with torch.no_grad():
        return max(function(part.unsqueeze(1)).max().item() for part in x.split(500))


def around(x: Tensor) -> Tensor:
    lengths = 10 ** (-4 + 3 * torch.rand(STEPS, 1, dtype=torch.float64))
    steps = torch.nn.functional.normalize(torch.randn(STEPS, D, dtype=torch.float64))
    return (x + lengths * steps).clamp(0.0, 1.0)


def report(name: str, function: AcquisitionFunction, repeats: int) -> None:
    torch.manual_seed(1)
    dense = highest(function, torch.rand(RANDOM, D, dtype=torch.float64))
    ended, above, missed, begun = Counter(), [], 0.0, time.perf_counter()
    for seed in range(repeats):
        x, value, results = search(function, seed)
        ended.update("ABNORMAL" if res.status == 2 else "converged" for res in results)
        above.append(round(value - dense, 3))
        missed = max(missed, highest(function, around(x)) - value)
    seconds = (time.perf_counter() - begun) / repeats
    print(
        f"{name}: {dict(ended)}, above random {sorted(above)}, missed {missed:.1e}, {seconds:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, model in models().items():
        best = model.train_targets.max()
        report(f"{name}, log EI", LogExpectedImprovement(model, best_f=best), given.repeats)
        report(f"{name}, UCB", UpperConfidenceBound(model, beta=4.0), given.repeats)


if __name__ == "__main__":
    main()
