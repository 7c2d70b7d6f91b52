"""Where a fit starts: points, kernel and noise before the first training step.

The typical distance between values of a column can be far below its standard deviation: a column
with a few large values, such as a sum of money that is zero for most, has nearly all of its values
within a small part of it. Lengthscales that start at the typical distance learn what varies between
these values; those that start at the standard deviation may never do.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.checks import checked_numbers
from orthogp.estimators.defaults import (
    MOST_ROWS_STARTED,
    MOST_TRAINED,
    NOISE_VARIANCE,
    point_counts,
    start_steps,
    starts_by_evidence,
)
from orthogp.estimators.intake import FitData
from orthogp.estimators.scaling import Array, Scaling
from orthogp.estimators.setting_checks import is_number, torch_dtype
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian, Likelihood, RegressionLikelihood
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.posterior.points import choose_beta, choose_gamma
from orthogp.training import Rows, start_hyperparameters

# Columns with no more values than these are codes, whose distances mean nothing.
MOST_CODES = 10
SPREAD_ROWS = 10_000


@dataclass(frozen=True)
class NewModel:
    """A model before training.

    `started` says whether the evidence of a few rows has chosen where the hyperparameters start;
    `added_gamma` are the residual points that join after training.
    """

    model: VariationalGP
    started: bool
    added_gamma: Float[Tensor, "g d"]


def new_model(
    settings: Mapping[str, Any],
    data: FitData,
    likelihood: Likelihood,
    mean: Mean | None,
    variance: float,
    generator: torch.Generator,
) -> NewModel:
    """A model of a table at its prior, with β and γ among the rows of its sample.

    `variance` is that of the default kernel's parts.
    """
    inputs, rows, num_rows = data.units.inputs, data.sample, len(data.train)
    num_inducing, num_residual = point_counts(settings, num_rows)
    beta = given_points(settings, "inducing_points", inputs)
    if beta is None:
        beta = choose_beta(rows.x, num_inducing, generator)
    gamma = given_points(settings, "residual_points", inputs)
    if gamma is None or settings["basis"] == "coupled":
        gamma = choose_gamma(rows.x, num_residual, beta, generator)
    dtype = torch_dtype(settings["dtype"])
    kernel = own_kernel(settings, rows.x, num_rows, variance, data.units.groups)
    likelihood = likelihood.to(dtype)
    started = starts_by_evidence(settings, num_rows, likelihood)
    if started:
        assert isinstance(likelihood, Gaussian)
        steps = start_steps(settings)
        started = start_hyperparameters(Covariance(kernel), likelihood, rows, generator, steps)
    trained = most_trained(settings, data, likelihood)
    gamma, added = gamma[:trained], gamma[trained:]
    basis = build_basis(
        settings["basis"], kernel, beta, gamma, likelihood.num_latents, settings["optimizer"],
        settings["hold_fixed"], settings["jitter"],
    )  # fmt: skip
    model = VariationalGP(kernel, likelihood, basis, mean, settings["jitter"])
    return NewModel(model.to(dtype), started, added)


def most_trained(settings: Mapping[str, Any], data: FitData, likelihood: Likelihood) -> int | None:
    """How many residual points training moves where the others can be solved for; None for all."""
    solved = isinstance(likelihood, Gaussian) and settings["optimizer"] == "natural"
    in_memory = isinstance(data.train, Rows) and not settings["shard_residual"]
    orthogonal = settings["basis"] == "orthogonal"
    return MOST_TRAINED if solved and in_memory and orthogonal else None


def given_points(settings: Mapping[str, Any], name: str, inputs: Scaling) -> Tensor | None:
    points = settings[name]
    if points is None:
        return None
    points = checked_numbers(points, name)
    expected = len(inputs.scale)
    if points.ndim != 2 or points.shape[1] != expected:
        raise DataError(f"{name} has shape {points.shape}; expected (m, {expected})")
    return inputs.standardise(points, torch_dtype(settings["dtype"]))


def own_kernel(
    settings: Mapping[str, Any],
    x: Float[Tensor, "n d"],
    num_rows: int,
    variance: float,
    groups: Sequence[int] | None = None,
) -> Kernel:
    """A copy of the kernel given, or the default one where it starts, in the dtype of the fit.

    `groups` are those of inputs that share a lengthscale in the default kernel.
    """
    kernel = settings["kernel"]
    if kernel is None:
        kernel = starting_kernel(settings, x, num_rows, variance, groups)
    else:
        kernel = deepcopy(kernel)
    return kernel.to(torch_dtype(settings["dtype"]))


def starting_kernel(
    settings: Mapping[str, Any],
    x: Float[Tensor, "n d"],
    num_rows: int,
    variance: float,
    groups: Sequence[int] | None = None,
) -> Kernel:
    """The default kernel for `num_rows` rows, these among them."""
    # In a short run they would not get far from where they start.
    trained = settings["train_hyperparameters"] and num_rows > MOST_ROWS_STARTED
    spread = typical_spread(x) if settings["ard"] and trained else None
    return default_kernel(x.shape[1], settings["ard"], variance, spread, groups)


def typical_spread(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The mean distance of a column's values from their median as a share of a normal column's."""
    sample = x[:: max(1, len(x) // SPREAD_ROWS)].double()
    distance = (sample - sample.median(0).values).abs().mean(0)
    # √(2/π) is what a standard normal column has.
    share = distance / (sample.std(0) * math.sqrt(2 / math.pi))
    for column, values in enumerate(sample.mT):
        if len(values.unique()) <= MOST_CODES:
            share[column] = 1.0
    return share.clamp_max(1.0).to(x.dtype)


def set_noise(likelihood: RegressionLikelihood, noise_variance: Any, scale: Array) -> None:
    """Sets it to the variance given in units of y², for targets that were divided by `scale`."""
    if noise_variance is None:
        noise = torch.full((len(scale),), NOISE_VARIANCE)
    elif is_number(noise_variance) and 0 < noise_variance < np.inf:
        with np.errstate(over="ignore", under="ignore"):
            noise = torch.as_tensor(float(noise_variance) / scale / scale, dtype=torch.float32)
    else:
        raise ConfigurationError(
            f"noise_variance is {noise_variance!r}; expected a positive number"
        )
    inner: Any = likelihood.get_submodule("likelihood")
    bounds = dict(inner.named_constraints())
    lowest = max(float(c.lower_bound) for n, c in bounds.items() if "raw_noise" in n)
    if not bool(((noise > lowest) & noise.isfinite()).all()):
        raise ConfigurationError(
            f"noise_variance is {noise_variance!r}, {float(noise.min()):.1e} in units of the "
            f"standardised y; the likelihood's constraint allows more than {lowest:.1e}, and "
            "float32 less than 3e38"
        )
    shared = inner.noise.numel() == 1
    inner.noise = noise.mean() if shared else noise.reshape(inner.noise.shape)
