"""Where the noise of a likelihood starts."""

from typing import Any

import numpy as np
import torch

from orthogp.errors import ConfigurationError
from orthogp.estimators.defaults import NOISE_VARIANCE
from orthogp.estimators.scaling import Array
from orthogp.estimators.setting_checks import is_number
from orthogp.likelihoods import RegressionLikelihood


def set_noise(likelihood: RegressionLikelihood, given: Any, scale: Array) -> None:
    """Sets it to the variance given in units of y², for targets that were divided by `scale`."""
    if given is None:
        noise = torch.full((len(scale),), NOISE_VARIANCE)
    elif is_number(given) and 0 < given < np.inf:
        with np.errstate(over="ignore", under="ignore"):
            noise = torch.as_tensor(float(given) / scale / scale, dtype=torch.float32)
    else:
        raise ConfigurationError(f"noise_variance is {given!r}; expected a positive number")
    holder: Any = likelihood.get_submodule("likelihood")
    bounds = dict(holder.named_constraints())
    lowest = max(float(c.lower_bound) for n, c in bounds.items() if "raw_noise" in n)
    if not bool(((noise > lowest) & noise.isfinite()).all()):
        raise ConfigurationError(
            f"noise_variance is {given!r}, {float(noise.min()):.1e} in units of the standardised "
            f"y; the likelihood's constraint allows more than {lowest:.1e}, and float32 less than "
            "3e38"
        )
    shared = holder.noise.numel() == 1
    holder.noise = noise.mean() if shared else noise.reshape(holder.noise.shape)
