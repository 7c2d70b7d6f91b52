"""The calibration of a regressor: its variances, densities and quantiles."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.special import ndtr, ndtri

from orthogp.estimators.calibration.scales import (
    SMALLEST_SAMPLE,
    fit_tails,
    fit_variance_scales,
    gaussian_log_density,
    student_log_density,
)
from orthogp.likelihoods import Gaussian, RegressionLikelihood
from orthogp.likelihoods.targets import Latents, PerRow, RowTargets, latents_first

LEVELS = 200
# A cdf rounds to 0 or 1 beyond eight standard deviations.
NEAREST_LEVEL = 1e-15


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
        clamped = score.clamp(self.scores[0], self.scores[-1])
        adjusted = [np.interp(clamped, self.scores, values) for values in self.values]
        return torch.from_numpy(np.stack(adjusted, axis=1)) + (score - clamped).unsqueeze(-1)


def fit_quantile_map(scores: Latents) -> QuantileMap:
    """The map of held-out normal scores; the identity for a small sample."""
    count = scores.shape[1]
    if count < SMALLEST_SAMPLE:
        return QuantileMap.identity(scores.shape[0])
    ordered = scores.double().cpu().sort(dim=1).values
    levels = torch.arange(1, LEVELS, dtype=torch.float64) / LEVELS
    # The i-th smallest of n stands for level i / (n + 1): a future row lies below it that often.
    positions = (count + 1) * levels
    attained = (positions >= 1) & (positions <= count)
    values = [np.interp(positions[attained], np.arange(1, count + 1), row) for row in ordered]
    return QuantileMap(ndtri(levels[attained]), torch.from_numpy(np.stack(values)))


@dataclass(frozen=True)
class Calibration:
    """For every output (κ_s, κ_σ) of its variances, (κ_s, κ_σ, 1/ν) of its densities, and Q_z."""

    scales: Float[Tensor, "c 2"]
    tails: Float[Tensor, "c 3"]
    quantile_map: QuantileMap

    @staticmethod
    def identity(num_outputs: int) -> "Calibration":
        ones = torch.ones(num_outputs, 2, dtype=torch.float64)
        return Calibration.gaussian(ones, QuantileMap.identity(num_outputs))

    @staticmethod
    def gaussian(scales: Float[Tensor, "c 2"], quantile_map: QuantileMap) -> "Calibration":
        """Densities of the Gaussian that has these variances."""
        return Calibration(scales, torch.nn.functional.pad(scales, (0, 1)), quantile_map)

    def latent_scale(self, like: Tensor) -> Float[Tensor, "c 1"]:
        """κ_s of every output."""
        return self.scales[:, :1].to(like)

    def variance(self, likelihood: RegressionLikelihood, variance: Latents) -> Latents:
        """The latent variance that gives the likelihood the calibrated predictive."""
        if not isinstance(likelihood, Gaussian):
            return variance
        # The likelihood will add σ² once: κ_s s + (κ_σ − 1) σ² + σ²
        noise = likelihood.likelihood.noise.to(variance)
        return self.latent_scale(variance) * variance + (self.scales[:, 1:].to(noise) - 1) * noise

    def log_density(
        self, likelihood: RegressionLikelihood, y: RowTargets, mean: Latents, variance: Latents
    ) -> PerRow:
        """log p(y) of every row, its outputs together."""
        if not isinstance(likelihood, Gaussian):
            return likelihood.log_density(y, mean, variance)
        latent, noise, tail = self.tails.to(mean.device).unsqueeze(-1).unbind(1)
        residual = latents_first(y).to(mean.device).double() - mean
        total = latent * variance + noise * likelihood.likelihood.noise.to(latent)
        heavy = student_log_density(residual, total, torch.where(tail > 0, tail, 1.0))
        return torch.where(tail > 0, heavy, gaussian_log_density(residual, total)).sum(0)

    def quantiles(
        self,
        likelihood: RegressionLikelihood,
        levels: Float[Tensor, " q"],
        mean: Latents,
        variance: Latents,
    ) -> Float[Tensor, "q c n"]:
        """F⁻¹(Φ(Q_z(p))) for every level p."""
        adjusted = ndtr(self.quantile_map(levels)).to(mean)
        return likelihood.quantiles(adjusted, mean, self.variance(likelihood, variance))

    def sample(
        self,
        likelihood: RegressionLikelihood,
        f: Float[Tensor, "s c n"],
        generator: torch.Generator,
    ) -> Float[Tensor, "s c n"]:
        """One y for each draw of the latents, whose variance has κ_s already."""
        y = likelihood.sample(f, generator)
        return f + self.scales[:, 1:].sqrt().to(f) * (y - f) if likelihood.gaussian else y


@torch.no_grad()
def calibrate(
    likelihood: RegressionLikelihood, y: RowTargets, mean: Latents, variance: Latents
) -> Calibration:
    """Calibrates the predictions at held-out rows; the identity for counts and for few rows."""
    count = mean.shape[0]
    found = Calibration.identity(count)
    if likelihood.support().discrete or mean.shape[1] < SMALLEST_SAMPLE:
        return found
    y = latents_first(y).to(mean)
    if isinstance(likelihood, Gaussian):
        noise = likelihood.likelihood.noise.to(mean).expand_as(mean)
        parts = list(zip(y - mean, variance, noise, strict=True))
        scales = [fit_variance_scales(*part) for part in parts]
        tails = [fit_tails(*part, scale) for part, scale in zip(parts, scales, strict=True)]
        found = Calibration(
            torch.tensor(scales, dtype=torch.float64),
            torch.tensor(tails, dtype=torch.float64),
            found.quantile_map,
        )
    below = likelihood.cumulative(y, mean, found.variance(likelihood, variance))
    # On the host: a GPU takes a second to compile it.
    scores = ndtri(below.cpu().clamp(NEAREST_LEVEL, 1 - NEAREST_LEVEL))
    return replace(found, quantile_map=fit_quantile_map(scores))
