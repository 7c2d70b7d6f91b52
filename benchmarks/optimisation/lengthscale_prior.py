"""What the prior on lengthscales does for a few rows of Ackley-20.

    python benchmarks/optimisation/lengthscale_prior.py

Prints the error at 1000 new points, in standard deviations of the function, after fits to random
rows: with the prior, without it, and that of `SingleTaskGP`.
"""

import warnings

import torch
from models import KINDS
from objectives import PROBLEMS
from torch import Tensor

from orthogp import OrthogonalGPRegressor
from orthogp.botorch import OrthogonalGPModel
from orthogp.model import default_kernel


def without_prior(x: Tensor, y: Tensor) -> OrthogonalGPModel:
    kernel = default_kernel(x.shape[1], ard=True)
    estimator = OrthogonalGPRegressor(kernel=kernel, random_state=0)
    return OrthogonalGPModel(x, y, estimator=estimator).fit()


def main() -> None:
    warnings.simplefilter("ignore")
    problem, generator = PROBLEMS["ackley20"], torch.Generator().manual_seed(1)
    new = torch.rand(1000, problem.d, generator=generator, dtype=torch.float64)
    values = problem.value(new)
    torch.manual_seed(0)
    fits = {"prior": KINDS["orthogp"].fit, "none": without_prior, "exact": KINDS["exact"].fit}
    for rows in (100, 200, 600):
        x = torch.rand(rows, problem.d, generator=generator, dtype=torch.float64)
        y = problem.observe(x)
        for name, fit in fits.items():
            model = fit(x, y)
            with torch.no_grad():
                error = model.posterior(new.unsqueeze(1)).mean.flatten() - values
            print(
                f"{rows} rows, {name}: {(error.square().mean() / values.var()).sqrt():.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
