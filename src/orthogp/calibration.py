"""Predictive intervals that cover what they say, fitted on held-out rows.

A sparse posterior is too wide where β is thin: s(x) keeps the prior's variance there although γ has
long corrected the mean, and the noise absorbs what both miss. For Gaussian noise two numbers, κ_s
and κ_σ, maximise the held-out density of N(m, κ_s s + κ_σ σ²). What no variance can mend, such as
heavy tails, a map of quantiles does: the held-out normal scores z = Φ⁻¹(F(y)) should be standard
normal, so the quantile of level p is moved to F⁻¹(Φ(Q_z(p))), where Q_z is their own quantile
function. The bound and the posterior stay as they are.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor
from torch.special import ndtr, ndtri

from orthogp.likelihoods import Gaussian, RegressionLikelihood
from orthogp.likelihoods.targets import latents_first

# Fewer rows than this say too little about two numbers, or about a tail.
SMALLEST_SAMPLE = 100
LIMIT = 4.0
ITERATIONS = 50
LEVELS = 200
# A cdf rounds to 0 or 1 beyond eight standard deviations.
NEAREST_LEVEL = 1e-15


@dataclass(frozen=True)
class VarianceScales:
    latent: float = 1.0
    noise: float = 1.0


def fit_variance_scales(
    residual: Float[Tensor, " n"], latent: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> VarianceScales:
    """The κ_s and κ_σ of the highest density, each within e^±4; (1, 1) for a small sample."""
    if residual.shape[0] < SMALLEST_SAMPLE:
        return VarianceScales()
    residual, latent, noise = residual.double(), latent.double(), noise.double()
    logs = torch.zeros(2, dtype=torch.float64, device=residual.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([logs], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        scales = logs.clamp(-LIMIT, LIMIT).exp()
        variance = scales[0] * latent + scales[1] * noise
        value = 0.5 * (variance.log() + residual.square() / variance).mean()
        # Keeps a scale that the sample says nothing about where it was.
        value = value + 1e-4 * logs.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    found = logs.detach().clamp(-LIMIT, LIMIT).exp().tolist()
    return VarianceScales(latent=found[0], noise=found[1])


@dataclass(frozen=True)
class QuantileMap:
    """Q_z of every output: linear between knots `(scores, values)`, of slope one beyond them.

    `scores` are Φ⁻¹ of the knots' levels, so the identity is the single knot (0, 0).
    """

    scores: Float[Tensor, " k"]
    values: Float[Tensor, "c k"]

    @staticmethod
    def identity(num_outputs: int) -> "QuantileMap":
        zero = torch.zeros(num_outputs, 1, dtype=torch.float64)
        return QuantileMap(zero[0], zero)

    def __call__(self, levels: Float[Tensor, " q"]) -> Float[Tensor, "q c"]:
        """The normal score to take in place of Φ⁻¹(level)."""
        score = ndtri(levels.double().cpu())
        inside = score.clamp(self.scores[0], self.scores[-1])
        moved = [np.interp(inside, self.scores, values) for values in self.values]
        return torch.from_numpy(np.stack(moved, axis=1)) + (score - inside).unsqueeze(-1)


def fit_quantile_map(scores: Float[Tensor, "c n"]) -> QuantileMap:
    """The map of held-out normal scores; the identity for a small sample."""
    count = scores.shape[1]
    if count < SMALLEST_SAMPLE:
        return QuantileMap.identity(scores.shape[0])
    ordered = scores.double().cpu().sort(dim=1).values
    levels = torch.arange(1, LEVELS, dtype=torch.float64) / LEVELS
    # The i-th smallest of n stands for level i / (n + 1): a future row lies below it that often.
    positions = (count + 1) * levels
    reached = (positions >= 1) & (positions <= count)
    values = [np.interp(positions[reached], np.arange(1, count + 1), row) for row in ordered]
    return QuantileMap(ndtri(levels[reached]), torch.from_numpy(np.stack(values)))


@dataclass(frozen=True)
class Calibration:
    """What held-out rows changed in the predictions; `scales` are (κ_s, κ_σ) of every output."""

    scales: Float[Tensor, "c 2"]
    quantile_map: QuantileMap

    @staticmethod
    def identity(num_outputs: int) -> "Calibration":
        ones = torch.ones(num_outputs, 2, dtype=torch.float64)
        return Calibration(ones, QuantileMap.identity(num_outputs))

    def latent_scale(self, like: Tensor) -> Float[Tensor, "c 1"]:
        """κ_s of every output."""
        return self.scales[:, :1].to(like)

    def variance(
        self, likelihood: RegressionLikelihood, variance: Float[Tensor, "c n"]
    ) -> Float[Tensor, "c n"]:
        """The latent variance that gives the likelihood the calibrated predictive."""
        if not isinstance(likelihood, Gaussian):
            return variance
        # The likelihood will add σ² once: κ_s s + (κ_σ − 1) σ² + σ²
        noise = likelihood.likelihood.noise.to(variance)
        return self.latent_scale(variance) * variance + (self.scales[:, 1:].to(noise) - 1) * noise

    def quantiles(
        self,
        likelihood: RegressionLikelihood,
        levels: Float[Tensor, " q"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, "q c n"]:
        """F⁻¹(Φ(Q_z(p))) for every level p."""
        moved = ndtr(self.quantile_map(levels)).to(mean)
        return likelihood.quantiles(moved, mean, self.variance(likelihood, variance))

    def sample(
        self,
        likelihood: RegressionLikelihood,
        f: Float[Tensor, "s c n"],
        generator: torch.Generator,
    ) -> Float[Tensor, "s c n"]:
        """One y for each draw of the latents; κ_s is the business of who draws those."""
        y = likelihood.sample(f, generator)
        return f + self.scales[:, 1:].sqrt().to(f) * (y - f) if likelihood.gaussian else y


@torch.no_grad()
def calibrate(
    likelihood: RegressionLikelihood,
    y: Real[Tensor, "n *outputs"],
    mean: Float[Tensor, "c n"],
    variance: Float[Tensor, "c n"],
) -> Calibration:
    """Calibrates the predictions at held-out rows; the identity for counts and for few rows."""
    count = mean.shape[0]
    found = Calibration.identity(count)
    if likelihood.support().discrete or mean.shape[1] < SMALLEST_SAMPLE:
        return found
    y = latents_first(y).to(mean)
    if isinstance(likelihood, Gaussian):
        noise = likelihood.likelihood.noise.to(mean).expand_as(mean)
        with torch.enable_grad():
            fits = [
                fit_variance_scales(y[c] - mean[c], variance[c], noise[c]) for c in range(count)
            ]
        scales = torch.tensor([[k.latent, k.noise] for k in fits], dtype=torch.float64)
        found = Calibration(scales, found.quantile_map)
    below = likelihood.cumulative(y, mean, found.variance(likelihood, variance))
    scores = ndtri(below.clamp(NEAREST_LEVEL, 1 - NEAREST_LEVEL))
    return Calibration(found.scales, fit_quantile_map(scores))
