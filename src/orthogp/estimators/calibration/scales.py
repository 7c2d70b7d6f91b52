"""Scales of variances and latents, and tails, that maximise the density of held-out rows."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.likelihoods import ClassificationLikelihood

# Fewer rows than this say too little about two numbers, or about a tail.
SMALLEST_SAMPLE = 100
# The largest |log κ|: rows that are predicted to the last digit would ask for a scale of zero.
LIMIT, ITERATIONS = 10.0, 50
# 1/ν where the search begins, and its bounds.
FIRST_TAIL, LIGHTEST, HEAVIEST = 0.2, 1e-3, 1.0
# The most latents whose density one evaluation of the loss computes.
MOST_LATENTS = 2**16
# The prior standard deviation of the logarithm of a latent scale: a hundred labels without a
# mistake would else ask for any certainty.
PRIOR_SPREAD = 0.5


class VarianceScales(NamedTuple):
    latent: float = 1.0
    noise: float = 1.0


class Tails(NamedTuple):
    """Student's t with variance parameter κ_s s + κ_σ σ² and 1/ν = `tail`; zero is the Gaussian."""

    latent: float = 1.0
    noise: float = 1.0
    tail: float = 0.0


def fit_variance_scales(
    residual: Float[Tensor, " n"], latent: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> VarianceScales:
    """The κ_s and κ_σ of the highest density, each within e^±10; (1, 1) for a small sample."""
    if residual.shape[0] < SMALLEST_SAMPLE:
        return VarianceScales()
    residual, latent, noise = (values.double().cpu() for values in (residual, latent, noise))

    def loss(logs: Tensor) -> Tensor:
        return -gaussian_log_density(residual, _variance(logs, latent, noise)).mean()

    return VarianceScales(*_scales(_minimise(loss, [0.0, 0.0])).tolist())


def fit_tails(
    residual: Float[Tensor, " n"],
    latent: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    gaussian: VarianceScales,
) -> Tails:
    """Student's t of the highest density; the Gaussian unless t gains more than its parameter."""
    if residual.shape[0] < SMALLEST_SAMPLE:
        return Tails(*gaussian)
    residual, latent, noise = (values.double().cpu() for values in (residual, latent, noise))

    def tail(log: Tensor) -> Tensor:
        return (FIRST_TAIL * log.exp()).clamp(LIGHTEST, HEAVIEST)

    def loss(logs: Tensor) -> Tensor:
        variance = _variance(logs[:2], latent, noise)
        return -student_log_density(residual, variance, tail(logs[2])).mean()

    logs = _minimise(loss, [math.log(scale) for scale in gaussian] + [0.0])
    variance = gaussian.latent * latent + gaussian.noise * noise
    gain = gaussian_log_density(residual, variance).neg().mean() - loss(logs)
    if not _improves(gain, len(residual), 1):
        return Tails(*gaussian)
    return Tails(*_scales(logs[:2]).tolist(), tail=tail(logs[2]).item())


def is_tail(tail: Tensor) -> Tensor:
    """Whether `fit_tails` can return this value."""
    return (tail == 0) | ((tail >= LIGHTEST) & (tail <= HEAVIEST))


def gaussian_log_density(residual: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((2 * torch.pi * variance).log() + residual.square() / variance)


def student_log_density(residual: Tensor, variance: Tensor, tail: Tensor) -> Tensor:
    """log t_ν(residual; 0, variance) with ν = 1 / tail, which is positive."""
    half = 0.5 / tail
    level = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * (torch.pi * variance / tail).log()
    return level - (half + 0.5) * torch.log1p(tail * residual.square() / variance)


def _variance(logs: Tensor, latent: Tensor, noise: Tensor) -> Tensor:
    latent_scale, noise_scale = _scales(logs)
    return latent_scale * latent + noise_scale * noise


class LatentScales(NamedTuple):
    """τ m and κ s in place of the latents' means and variances."""

    mean: float = 1.0
    variance: float = 1.0

    def __call__(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean * mean, self.variance * variance


@torch.no_grad()
def fit_latent_scales(
    likelihood: ClassificationLikelihood,
    y: Int[Tensor, " n"],
    mean: Float[Tensor, "c n"],
    variance: Float[Tensor, "c n"],
) -> LatentScales:
    """The most probable τ and κ, each within e^±10; (1, 1) unless they gain enough."""
    count = min(mean.shape[1], max(SMALLEST_SAMPLE, MOST_LATENTS // mean.shape[0]))
    y, mean, variance = y[:count].to(mean.device), mean[:, :count], variance[:, :count]
    if count < SMALLEST_SAMPLE:
        return LatentScales()

    def loss(logs: Tensor) -> Tensor:
        tau, kappa = _scales(logs)
        density = likelihood.log_density(y, tau * mean, kappa * variance).mean()
        return 0.5 * (logs / PRIOR_SPREAD).square().sum() / count - density

    logs = _minimise(loss, [0.0, 0.0])
    gain = loss(torch.zeros_like(logs)) - loss(logs)
    return LatentScales(*_scales(logs).tolist()) if _improves(gain, count, 2) else LatentScales()


@torch.enable_grad()
def _minimise(loss: Callable[[Tensor], Tensor], start: list[float]) -> Tensor:
    """The logarithms, searched from `start`, that minimise the mean loss of a row."""
    # Not `torch.optim`: it imports a compiler when it is first used, which takes a second.
    from scipy.optimize import minimize

    first = torch.tensor(start, dtype=torch.float64)

    def penalised(values: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.from_numpy(values).requires_grad_()
        # Keeps a number that the sample does not determine at its start.
        value = loss(logs) + 1e-4 * (logs - first).square().sum()
        (grad,) = torch.autograd.grad(value, [logs])
        return value.item(), grad.numpy()

    optimum = minimize(
        penalised, first.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}
    )
    return torch.from_numpy(optimum.x)


def _scales(logs: Tensor) -> Tensor:
    return logs.clamp(-LIMIT, LIMIT).exp()


def _improves(gain: Tensor, num_rows: int, parameters: int) -> bool:
    """Akaike's criterion for the mean gain of a row; False for NaN."""
    return bool(gain * num_rows > parameters)
