"""Scales of variances and latents, and tails, that maximise the density of held-out rows."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.estimators.calibration.losses import Residuals
from orthogp.likelihoods import ClassificationLikelihood

# Fewer rows than this say too little about two numbers, or about a tail.
SMALLEST_SAMPLE = 100
# The largest |log κ|: rows that are predicted to the last digit would ask for a scale of zero.
LIMIT, ITERATIONS = 10.0, 50
# The search ends where no derivative with respect to a logarithm is larger.
LARGEST_SLOPE = 1e-7
# 1/ν where the search begins, and its bounds.
FIRST_TAIL, LIGHTEST, HEAVIEST = 0.2, 1e-3, 1.0
# Of the rows that calibrate a classifier, those whose labels may be random.
RANDOM_ROWS = 0.1
# The most latents whose density one evaluation of the loss computes.
MOST_LATENTS = 2**16
# The prior standard deviation of the logarithm of a latent scale: a hundred labels without a
# mistake would else ask for any certainty.
PRIOR_SPREAD = 0.5
# So many standard errors must the mean gain of latent scales be above zero.
ERRORS = 2.0


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
    rows = Residuals.of(residual, latent, noise)

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        scales, slopes = _exp_within(logs, -LIMIT, LIMIT)
        value, gradient = rows.gaussian_loss(scales)
        return value, slopes * gradient

    logs = _minimise(loss, np.zeros(2))
    return VarianceScales(*_exp_within(logs, -LIMIT, LIMIT)[0].tolist())


def fit_tails(
    residual: Float[Tensor, " n"],
    latent: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    gaussian: VarianceScales,
) -> Tails:
    """Student's t of the highest density; the Gaussian unless t gains more than its parameter."""
    if residual.shape[0] < SMALLEST_SAMPLE:
        return Tails(*gaussian)
    rows = Residuals.of(residual, latent, noise)
    lower = np.array([-LIMIT, -LIMIT, math.log(LIGHTEST)])
    upper = np.array([LIMIT, LIMIT, math.log(HEAVIEST)])

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        found, slopes = _exp_within(logs, lower, upper)
        value, gradient = rows.student_loss(found[:2], found[2])
        return value, slopes * gradient

    logs = _minimise(loss, np.log([*gaussian, FIRST_TAIL]))
    gain = rows.gaussian_loss(np.array(gaussian))[0] - loss(logs)[0]
    if not _improves(gain, len(rows), 1):
        return Tails(*gaussian)
    latent_scale, noise_scale, tail = _exp_within(logs, lower, upper)[0].tolist()
    # The exponential of a logarithm rounds.
    return Tails(latent_scale, noise_scale, min(max(tail, LIGHTEST), HEAVIEST))


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


class LatentScales(NamedTuple):
    """τ m and κ s in place of the latents' means and variances, and labels that may be random.

    With the probability `random` a label is any of the classes: some rows cannot show that
    something never happens.
    """

    mean: float = 1.0
    variance: float = 1.0
    random: float = 0.0

    def __call__(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean * mean, self.variance * variance

    def probabilities(
        self,
        likelihood: ClassificationLikelihood,
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, "n k"]:
        p = likelihood.probabilities(*self(mean, variance))
        return (1.0 - self.random) * p + self.random / likelihood.num_classes

    def log_density(
        self,
        likelihood: ClassificationLikelihood,
        y: Int[Tensor, " n"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        density = likelihood.log_density(y, *self(mean, variance))
        if self.random == 0.0:
            return density
        least = math.log(self.random / likelihood.num_classes)
        return torch.logaddexp(density + math.log1p(-self.random), density.new_tensor(least))


@torch.no_grad()
def fit_latent_scales(
    likelihood: ClassificationLikelihood,
    y: Int[Tensor, " n"],
    mean: Float[Tensor, "c n"],
    variance: Float[Tensor, "c n"],
) -> LatentScales:
    """The most probable τ and κ, each within e^±10; (1, 1) unless they gain more than by chance.

    Labels are random with the probability `RANDOM_ROWS` / n.
    """
    random = RANDOM_ROWS / max(1, len(y))
    count = min(mean.shape[1], max(SMALLEST_SAMPLE, MOST_LATENTS // mean.shape[0]))
    y, mean, variance = y[:count].to(mean.device), mean[:, :count], variance[:, :count]
    if count < SMALLEST_SAMPLE:
        return LatentScales()

    def densities(logs: Tensor) -> Tensor:
        scales = LatentScales(*logs.clamp(-LIMIT, LIMIT).exp(), random=random)  # pyright: ignore
        return scales.log_density(likelihood, y, mean, variance)

    @torch.enable_grad()
    def with_gradient(values: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.from_numpy(values).requires_grad_()
        value = 0.5 * (logs / PRIOR_SPREAD).square().sum() / count - densities(logs).mean()
        return value.item(), torch.autograd.grad(value, [logs])[0].numpy()

    found = _minimise(with_gradient, np.zeros(2))
    gains = densities(torch.from_numpy(found)) - densities(torch.zeros(2, dtype=torch.float64))
    # Written so that NaN is no gain.
    if not gains.mean() > ERRORS * gains.std() / count**0.5:
        return LatentScales(random=random)
    return LatentScales(*_exp_within(found, -LIMIT, LIMIT)[0].tolist(), random=random)


def _minimise(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray
) -> np.ndarray:
    """The logarithms, searched from `start`, that minimise the mean loss of a row.

    `loss` returns its gradient as well.
    """
    # Not `torch.optim`: it imports a compiler when it is first used, which takes a second.
    from scipy.optimize import minimize

    def penalised(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(logs)
        # Keeps a number that the sample does not determine at its start.
        moved = logs - start
        return value + 1e-4 * float(moved @ moved), gradient + 2e-4 * moved

    # Not L-BFGS-B: its linear algebra wakes threads for matrices of two rows.
    options = {"maxiter": ITERATIONS, "gtol": LARGEST_SLOPE}
    return minimize(penalised, start, jac=True, method="BFGS", options=options).x


def _exp_within(
    logs: np.ndarray, lower: float | np.ndarray, upper: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """exp of logarithms moved within bounds, and its derivative."""
    found = np.exp(np.clip(logs, lower, upper))
    return found, np.where((logs < lower) | (logs > upper), 0.0, found)


def _improves(gain: float, num_rows: int, parameters: int) -> bool:
    """Akaike's criterion for the mean gain of a row; False for NaN."""
    return gain * num_rows > parameters
