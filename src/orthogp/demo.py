"""The main job in miniature: what residual points add to the same inducing points."""

import math
import time

import torch
from torch import Tensor

from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.points import choose_beta, choose_gamma
from orthogp.training import Rows, TrainingConfig, fit, full_bound, predict_in_chunks

ROWS, TEST_ROWS, NOISE = 10_000, 2000, 0.1
STEPS = 600
METHODS = {
    "COUPLED     100 points": ("coupled", "adam", 100, 0),
    "COUPLEDNAT  100 points": ("coupled", "natural", 100, 0),
    "ORTHNAT     100 + 1000 points": ("orthogonal", "natural", 100, 1000),
}


def surface(x: Tensor) -> Tensor:
    """Ripples whose wavelength shrinks from corner to corner."""
    return torch.sin(3 * x[:, 0] ** 2) * torch.cos(3 * x[:, 1] ** 2) + 0.3 * x[:, 0]


def make_rows(count: int, rng: torch.Generator) -> Rows:
    x = 3 * torch.rand(count, 2, generator=rng)
    return Rows(x, surface(x) + NOISE * torch.randn(count, generator=rng))


def train(train_rows: Rows, basis: str, optimizer: str, inducing: int, residual: int):
    rng = torch.Generator().manual_seed(0)
    beta = choose_beta(train_rows.x, inducing, rng)
    gamma = choose_gamma(train_rows.x, residual, beta, rng)
    kernel = default_kernel(train_rows.x.shape[1])
    likelihood = Gaussian(1)
    likelihood.likelihood.noise = torch.tensor(0.1)
    posterior = build_basis(basis, kernel, beta, gamma, 1, optimizer)
    model = VariationalGP(kernel, likelihood, posterior)
    fit(model, train_rows, TrainingConfig(max_steps=STEPS, batch_size=512))
    return model, likelihood


@torch.no_grad()
def score(model: VariationalGP, likelihood: Gaussian, rows: Rows) -> tuple[float, float, float]:
    """RMSE, mean log density, and the share of rows in their 90 % interval."""
    parts = [torch.cat(p, dim=1) for p in zip(*predict_in_chunks(model, rows.x), strict=True)]
    moments = likelihood.predictive(*parts)
    error = rows.y - moments.mean[0]
    inside = error.abs() <= 1.6449 * moments.variance[0].sqrt()
    density = likelihood.log_density(rows.y, *parts).mean()
    return float(error.square().mean().sqrt()), float(density), float(inside.double().mean())


def main() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, test = make_rows(ROWS, rng), make_rows(TEST_ROWS, rng)
    best = -0.5 * math.log(2 * math.pi * math.e * NOISE**2)
    print(f"{ROWS} noisy points of a rough surface, {STEPS} steps each, {TEST_ROWS} test points")
    print(f"the noise alone: RMSE {NOISE:.3f}, log density {best:.3f}\n")
    print(f"{'method':32}{'RMSE':>8}{'log density':>13}{'90 % covers':>13}{'bound':>9}{'s':>7}")
    for name, options in METHODS.items():
        start = time.perf_counter()
        model, likelihood = train(rows, *options)
        seconds = time.perf_counter() - start
        rmse, density, inside = score(model, likelihood, test)
        bound = full_bound(model, rows)
        print(f"{name:32}{rmse:8.3f}{density:13.3f}{inside:13.1%}{bound:9.0f}{seconds:7.1f}")


if __name__ == "__main__":
    main()
