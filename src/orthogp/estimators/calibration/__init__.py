"""Predictive distributions that are as wide as they should be, fitted on rows held or left out.

A sparse posterior is too wide where β is thin: s(x) keeps the prior's variance there although γ has
long corrected the mean, and the noise absorbs what both miss. Each of these is mended by what
measures it best; the bound and the posterior stay as they are.

- **Variances**, for Gaussian noise: the κ_s and κ_σ that maximise the held-out density of
  N(m, κ_s s + κ_σ σ²).
- **Densities**, for Gaussian noise: those of Student's t about m, with two scales and degrees of
  freedom of its own; the Gaussian where tails do not pay for their parameter.
- **Quantiles**, for any continuous likelihood: the held-out normal scores z = Φ⁻¹(F(y)) should be
  standard normal, so the quantile of level p is moved to F⁻¹(Φ(Q_z(p))), where Q_z is their own
  quantile function.
- **Probabilities of classes**: those of latents τ m and κ s, with the τ and κ of the highest
  held-out density.
"""

from orthogp.estimators.calibration.calibration import (
    Calibration,
    QuantileMap,
    calibrate,
    fit_quantile_map,
)
from orthogp.estimators.calibration.scales import (
    SMALLEST_SAMPLE,
    LatentScales,
    Tails,
    VarianceScales,
    fit_latent_scales,
    fit_tails,
    fit_variance_scales,
    is_tail,
    student_log_density,
)

__all__ = [
    "SMALLEST_SAMPLE",
    "Calibration",
    "LatentScales",
    "QuantileMap",
    "Tails",
    "VarianceScales",
    "calibrate",
    "fit_latent_scales",
    "fit_quantile_map",
    "fit_tails",
    "fit_variance_scales",
    "is_tail",
    "student_log_density",
]
