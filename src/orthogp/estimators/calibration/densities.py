"""Scales of the two variances, and tails, of the highest held-out density."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.estimators.calibration.search import SMALLEST_SAMPLE, minimised, pays, scales

# 1/ν where the search begins, and within what it stays.
FIRST_TAIL, LIGHTEST, HEAVIEST = 0.2, 1e-3, 1.0


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
    """The κ_s and κ_σ of the highest density, each within e^±4; (1, 1) for a small sample."""
    if residual.shape[0] < SMALLEST_SAMPLE:
        return VarianceScales()
    residual, latent, noise = (values.double().cpu() for values in (residual, latent, noise))

    def loss(logs: Tensor) -> Tensor:
        return -gaussian_log_density(residual, _variance(logs, latent, noise)).mean()

    return VarianceScales(*scales(minimised(loss, [0.0, 0.0])).tolist())


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

    logs = minimised(loss, [math.log(scale) for scale in gaussian] + [0.0])
    variance = gaussian.latent * latent + gaussian.noise * noise
    gain = gaussian_log_density(residual, variance).neg().mean() - loss(logs)
    if not pays(gain, len(residual), 1):
        return Tails(*gaussian)
    return Tails(*scales(logs[:2]).tolist(), tail=tail(logs[2]).item())


def is_tail(tail: Tensor) -> Tensor:
    """Where it is one that `fit_tails` can find."""
    return (tail == 0) | ((tail >= LIGHTEST) & (tail <= HEAVIEST))


def gaussian_log_density(residual: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((2 * torch.pi * variance).log() + residual.square() / variance)


def student_log_density(residual: Tensor, variance: Tensor, tail: Tensor) -> Tensor:
    """log t_ν(residual; 0, variance) with ν = 1 / tail, which is positive."""
    half = 0.5 / tail
    level = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * (torch.pi * variance / tail).log()
    return level - (half + 0.5) * torch.log1p(tail * residual.square() / variance)


def _variance(logs: Tensor, latent: Tensor, noise: Tensor) -> Tensor:
    found = scales(logs)
    return found[0] * latent + found[1] * noise
