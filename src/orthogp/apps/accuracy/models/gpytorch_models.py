"""GPyTorch's Gaussian processes: exact regression, and an SVGP with large batches."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from gpytorch.variational import CholeskyVariationalDistribution, LargeBatchVariationalStrategy
from torch import Tensor

from orthogp.apps.accuracy.models.contract import FittedModel, Problem
from orthogp.apps.accuracy.predictive import Array, GaussianPredictive
from orthogp.errors import ConfigurationError

SMALLEST_NOISE = 1e-6
CHUNK_ROWS = 1000
# The exact GP: L-BFGS on a subset, which gets close, then Adam on all rows.
SUBSET_ROWS, SUBSET_ITERATIONS = 2000, 100
EXACT_STEPS, EXACT_RATE = 30, 0.03
# Matrices of n × n that a step of Adam holds at once (12.2 measured), those of the posterior, and
# the share of free memory they may take.
STEP_MATRICES, POSTERIOR_MATRICES, MEMORY_SHARE = 13, 6, 0.85
# A step of more rows takes minutes without a GPU.
MOST_ROWS_ON_CPU = 5000
# The SVGP.
INDUCING_POINTS, BATCH_ROWS, SVGP_RATE = 1024, 4096, 0.01
EPOCHS, FEWEST_STEPS, MOST_STEPS = 200, 2000, 20_000


class ExactModel(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, likelihood: GaussianLikelihood):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = prior(x)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))  # pyright: ignore


class SparseModel(gpytorch.models.ApproximateGP):
    def __init__(self, points: Tensor):
        q = CholeskyVariationalDistribution(len(points))
        super().__init__(LargeBatchVariationalStrategy(self, points, q))
        self.mean_module, self.covar_module = prior(points)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))  # pyright: ignore


def prior(x: Tensor) -> tuple[gpytorch.means.Mean, gpytorch.kernels.Kernel]:
    """A constant mean, and a Matérn-5/2 with a lengthscale for every input, which begins at √d."""
    inputs = x.shape[-1]
    kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=inputs))
    kernel.base_kernel.initialize(lengthscale=math.sqrt(inputs))
    kernel.initialize(outputscale=1.0)
    return gpytorch.means.ConstantMean(), kernel


def new_likelihood() -> GaussianLikelihood:
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(SMALLEST_NOISE))
    likelihood.initialize(noise=0.1)
    return likelihood


def fit_exact_gp(problem: Problem) -> FittedModel:
    """Exact regression on all rows by Cholesky factors, refused where memory does not allow it.

    In float64: with tens of thousands of rows a factor in float32 fails. Where memory has room for
    the posterior of all rows but not for a step of Adam on them, that has fewer rows.
    """
    rows = len(problem.y)
    rows_of_step = rows_of_adam(rows, problem.device)
    x, y = _tensors(problem, torch.float64)
    likelihood = new_likelihood().to(x)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(problem.seed))
    chosen = order[:SUBSET_ROWS].to(x.device)
    model = ExactModel(x[chosen], y[chosen], likelihood).to(x)
    with gpytorch.settings.max_cholesky_size(rows + 1), gpytorch.settings.fast_computations(
        covar_root_decomposition=False, log_prob=False, solves=False
    ):  # fmt: skip
        _minimise(model, likelihood)
        if rows > SUBSET_ROWS:
            chosen = order[:rows_of_step].to(x.device)
            model.set_train_data(x[chosen], y[chosen], strict=False)
            _descend(model, likelihood)
    model.set_train_data(x, y, strict=False)
    settings = {
        "dtype": "float64",
        "subset_rows": min(rows, SUBSET_ROWS),
        "adam_rows": rows_of_step if rows > SUBSET_ROWS else 0,
        "lbfgs_iterations": SUBSET_ITERATIONS,
        "adam_steps": EXACT_STEPS if rows > SUBSET_ROWS else 0,
        "learning_rate": EXACT_RATE,
        **_hyperparameters(model, likelihood),
    }
    return FittedModel(_predictor(model, likelihood, x, rows + 1), settings)


def rows_of_adam(rows: int, device: str) -> int:
    """How many of the rows memory has room for in a step; too many for a posterior are refused."""
    if device == "cpu" and rows > MOST_ROWS_ON_CPU:
        raise ConfigurationError(
            f"an exact GP of {rows:,} rows takes hours without a GPU; expected at most "
            f"{MOST_ROWS_ON_CPU:,} rows, or --device cuda"
        )
    free = free_bytes(device)
    need = POSTERIOR_MATRICES * rows**2 * torch.float64.itemsize
    if need > MEMORY_SHARE * free:
        raise ConfigurationError(
            f"an exact GP of {rows:,} rows needs about {need / 2**30:,.0f} GiB, and "
            f"{free / 2**30:,.0f} GiB are free on {device}"
        )
    matrix = MEMORY_SHARE * free / (STEP_MATRICES * torch.float64.itemsize)
    return min(rows, math.isqrt(int(matrix)))


def free_bytes(device: str) -> int:
    """Memory that is free on the device now."""
    if device.startswith("cuda"):
        # What torch keeps of earlier fits is free too.
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    with open("/proc/meminfo") as file:
        found = dict(line.split(":") for line in file)
    return 1024 * int(found["MemAvailable"].split()[0])


def _minimise(model: ExactModel, likelihood: GaussianLikelihood) -> None:
    """L-BFGS on the negative log evidence of the model's training rows."""
    objective = _evidence(model, likelihood)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=SUBSET_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        return loss

    optimizer.step(closure)  # pyright: ignore[reportArgumentType]


def _descend(model: ExactModel, likelihood: GaussianLikelihood) -> None:
    """Adam on the negative log evidence of the model's training rows."""
    objective = _evidence(model, likelihood)
    optimizer = torch.optim.Adam(model.parameters(), lr=EXACT_RATE)
    for _ in range(EXACT_STEPS):
        optimizer.zero_grad()
        objective().backward()
        optimizer.step()


def _evidence(model: ExactModel, likelihood: GaussianLikelihood) -> Callable[[], Tensor]:
    """A function that gives the negative log evidence in nats a row."""
    evidence = ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    likelihood.train()
    return lambda: -evidence(model(*model.train_inputs), model.train_targets)  # pyright: ignore


def fit_svgp(problem: Problem) -> FittedModel:
    """1 024 inducing points, everything by Adam, whose rate falls tenfold twice."""
    x, y = _tensors(problem, torch.float32)
    rows = len(y)
    generator = torch.Generator().manual_seed(problem.seed)
    points = x[torch.randperm(rows, generator=generator)[:INDUCING_POINTS].to(x.device)]
    model, likelihood = SparseModel(points.clone()).to(x), new_likelihood().to(x)
    steps = min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * rows // BATCH_ROWS))
    bound = VariationalELBO(likelihood, model, rows)
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=SVGP_RATE)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps // 2, steps * 3 // 4])
    model.train()
    likelihood.train()
    for batch in _batches(rows, steps, generator):
        batch = batch.to(x.device)
        optimizer.zero_grad()
        loss = -bound(model(x[batch]), y[batch])  # pyright: ignore[reportOperatorIssue]
        loss.backward()
        optimizer.step()
        schedule.step()
    settings = {
        "n_inducing": len(points),
        "batch_rows": min(rows, BATCH_ROWS),
        "steps": steps,
        "learning_rate": SVGP_RATE,
        **_hyperparameters(model, likelihood),
    }
    return FittedModel(_predictor(model, likelihood, x), settings)


def _hyperparameters(model: Any, likelihood: GaussianLikelihood) -> dict[str, Any]:
    kernel = model.covar_module
    return {
        "lengthscales": kernel.base_kernel.lengthscale.flatten().tolist(),
        "outputscale": kernel.outputscale.item(),
        "mean": model.mean_module.constant.item(),
        "noise": likelihood.noise.item(),
    }


def _batches(rows: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of whole epochs, each in an order of its own."""
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < min(rows, BATCH_ROWS):
            order = torch.randperm(rows, generator=generator)
        yield order[:BATCH_ROWS]
        order = order[BATCH_ROWS:]


def _tensors(problem: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return tuple(  # pyright: ignore[reportReturnType]
        torch.as_tensor(a, dtype=dtype, device=problem.device) for a in (problem.x, problem.y)
    )


def _predictor(
    model: Any, likelihood: GaussianLikelihood, like: Tensor, cholesky_size: int = 800
) -> Callable[[Array], GaussianPredictive]:
    """Mean and deviation of an observation, a chunk of rows at a time."""

    def predict(x: Array) -> GaussianPredictive:
        model.eval()
        likelihood.eval()
        moments = []
        with torch.no_grad(), gpytorch.settings.max_cholesky_size(cholesky_size):
            for start in range(0, len(x), CHUNK_ROWS):
                found = model(torch.as_tensor(x[start : start + CHUNK_ROWS]).to(like))
                variance = found.variance + likelihood.noise
                moments.append(torch.stack([found.mean, variance]).double().cpu().numpy())
        mean, variance = np.concatenate(moments, axis=1)
        return GaussianPredictive(mean, np.sqrt(variance))

    return predict
