"""Noise whose variance is known: of every training row, or of new observations.

The likelihood has the mean of the rows' variances, which is not learned then, and each row a scale
that multiplies it.
"""

from typing import Any

import numpy as np
import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from numpy.typing import NDArray

from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.checks import checked_numbers
from orthogp.estimators.scaling import Array
from orthogp.likelihoods import Gaussian


def is_known(noise_variance: Any) -> bool:
    """Whether a setting gives the noise of every row, and not where one for all starts."""
    return isinstance(noise_variance, torch.Tensor) or np.ndim(noise_variance) > 0


def fixed_noise(likelihood: FixedNoiseGaussianLikelihood, noise_variance: Any) -> Array:
    """The variances in a likelihood of GPyTorch, in units of y², as targets first has them."""
    if noise_variance is not None:
        raise ConfigurationError(
            "noise_variance and a FixedNoiseGaussianLikelihood both give the noise; pass one"
        )
    if likelihood.second_noise_covar is not None:
        raise ConfigurationError(
            "a FixedNoiseGaussianLikelihood that learns additional noise cannot be used; build it "
            "with learn_additional_noise=False"
        )
    noise: Any = likelihood.noise
    found = noise.detach().cpu().double().numpy()
    # GPyTorch has outputs first.
    return found.T if found.ndim > 1 else found


def row_noise(noise_variance: Any, y: NDArray) -> Array | None:
    """The variances `(n,)` or `(n, t)` for these targets; None where the setting gives none."""
    if not is_known(noise_variance):
        return None
    found = checked_numbers(noise_variance, "noise_variance")
    if found.shape not in {y.shape[:1], y.shape}:
        raise DataError(
            f"noise_variance has shape {found.shape} and y has {y.shape}; expected one variance "
            "for every row of this call"
        )
    require_positive(found)
    return found


def require_positive(noise: Array) -> None:
    bad = int((noise <= 0).sum())
    if bad:
        raise DataError(
            f"noise_variance has {bad} values that are zero or less; expected positive variances"
        )


def fix_noise(num_targets: int, typical: Array, scale: Array) -> Gaussian:
    """A likelihood that keeps these variances, in units of y², for targets divided by `scale`."""
    with np.errstate(over="ignore", under="ignore"):
        noise = torch.as_tensor(typical / scale / scale, dtype=torch.float32)
    if not bool(((noise > 0) & noise.isfinite()).all()):
        raise ConfigurationError(
            "noise_variance is not a positive number of float32 in units of the standardised y"
        )
    likelihood = Gaussian(num_targets)
    inner = likelihood.likelihood
    inner.noise_covar.register_constraint("raw_noise", Positive())
    inner.noise = noise.reshape(inner.noise.shape)
    inner.noise_covar.raw_noise.requires_grad_(False)
    return likelihood
