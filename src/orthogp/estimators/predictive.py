"""Distributions of new observations in the units of y, as functions of what was learned."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orthogp.errors import ConfigurationError, DataError, NumericalError
from orthogp.estimators.calibration import Calibration
from orthogp.estimators.checks import checked_numbers
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.known_noise import require_positive
from orthogp.estimators.scaling import Array
from orthogp.estimators.targets import NumberTargets
from orthogp.likelihoods import Gaussian, RegressionLikelihood
from orthogp.likelihoods.row_noise import log_jacobian, with_unit_scale
from orthogp.likelihoods.targets import RowTargets

# The most rows whose joint covariance is worth holding and factorising.
MOST_JOINT_ROWS = 2000


class Parts(NamedTuple):
    """What the predictions of a regressor are made from."""

    likelihood: RegressionLikelihood
    calibration: Calibration
    targets: NumberTargets


def parts_of(fitted: Fitted) -> Parts:
    likelihood, targets = fitted.model.likelihood, fitted.units.targets
    assert isinstance(likelihood, RegressionLikelihood)
    assert isinstance(fitted.calibration, Calibration)
    assert isinstance(targets, NumberTargets)
    return Parts(likelihood, fitted.calibration, targets)


# Of the rows in a slice, from mean and variance of their latents.
OfLatents = Callable[[slice, Tensor, Tensor], Tensor]


def noise_scale_at(
    fitted: Fitted, X: Array, noise_variance: Any = None
) -> Float[Tensor, "c n"] | None:
    """By what the likelihood's noise is multiplied at new rows; None where it is by nothing.

    `noise_variance` is that of the rows where it is known, in units of y².
    """
    likelihood, _, targets = parts_of(fitted)
    if noise_variance is None:
        return fitted.noise_scale(X)
    if not isinstance(likelihood, Gaussian):
        raise ConfigurationError("noise_variance of new observations needs Gaussian noise")
    known = checked_numbers(noise_variance, "noise_variance")
    shapes = {(), (len(X),), (len(X), targets.count)}
    if known.shape not in shapes:
        raise DataError(
            f"noise_variance has shape {known.shape} and X has {len(X)} rows; expected a number or "
            "one for every row"
        )
    require_positive(known)
    known = known.reshape(-1, 1) if known.ndim < 2 else known
    variance = torch.from_numpy(known / targets.scaling.scale**2).expand(len(X), targets.count)
    return variance.mT / likelihood.likelihood.noise.detach().cpu().double().reshape(-1, 1)


def rescaled(compute: OfLatents, scale: Float[Tensor, "c n"] | None) -> OfLatents:
    """What is computed of y/√r, in units of y."""
    if scale is None:
        return compute

    def of_scaled(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
        root = scale[:, rows].to(mean).sqrt()
        return root * compute(rows, mean / root, variance / root.square())

    return of_scaled


def density_of(
    fitted: Fitted, y: RowTargets, scale: Float[Tensor, "c n"] | None = None
) -> OfLatents:
    """The log density of these targets."""
    likelihood, calibration, _ = parts_of(fitted)

    def density(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
        targets = y[rows].to(mean.device)
        if scale is None:
            return calibration.log_density(likelihood, targets, mean, variance)
        own = scale[:, rows].to(mean)
        unit = with_unit_scale(own, targets, mean, variance)
        return calibration.log_density(likelihood, *unit) + log_jacobian(own, len(mean))

    return density


def moments_of(fitted: Fitted, scale: Float[Tensor, "c n"] | None = None) -> OfLatents:
    """Mean and standard deviation of a new observation, from those of the latents."""
    likelihood, calibration, _ = parts_of(fitted)

    def moments(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
        found = likelihood.predictive(mean, calibration.variance(likelihood, variance))
        return torch.stack([found.mean, found.variance.sqrt()])

    return rescaled(moments, scale)


def quantiles_of(
    fitted: Fitted, levels: Tensor, scale: Float[Tensor, "c n"] | None = None
) -> OfLatents:
    likelihood, calibration, _ = parts_of(fitted)

    def quantiles(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
        return calibration.quantiles(likelihood, levels, mean, variance)

    return rescaled(quantiles, scale)


def joint_latents(fitted: Fitted, X: Array) -> tuple[Tensor, Tensor]:
    """The latents' mean at all rows together, `[c, n]`, and their covariance, `[c, n, n]`."""
    predictor = fitted.predictor
    x = fitted.standardised(X).to(predictor.device)
    mean, _ = fitted.model.predict(x, predictor)
    scale = parts_of(fitted).calibration.latent_scale(mean).unsqueeze(-1)
    return mean, scale * predictor.full_covariance(x)


def covariance_of(fitted: Fitted, X: Array, std: NDArray) -> NDArray:
    likelihood, _, targets = parts_of(fitted)
    if not likelihood.location:
        raise ConfigurationError(
            "return_cov needs a likelihood with additive noise; ask for return_std"
        )
    _, covariance = joint_latents(fitted, X)
    # Noise is independent from row to row: only the diagonal has it.
    covariance.diagonal(dim1=-2, dim2=-1).copy_(torch.from_numpy(std).square())
    scale = targets.scaling.scale
    with np.errstate(over="ignore"):
        found = covariance.permute(1, 2, 0).cpu().numpy() * scale * scale
    if not np.isfinite(found).all():
        raise NumericalError(
            "the covariance is too large for float64 in the units of y; ask for return_std, or "
            "fit y in larger units"
        )
    return found[..., 0] if targets.single else found


def encoded_targets(fitted: Fitted, y: ArrayLike, num_rows: int) -> Tensor:
    """Targets to evaluate, in the units of the model."""
    likelihood, _, targets = parts_of(fitted)
    values = checked_numbers(y, "y")
    expected = (num_rows,) if targets.single else (num_rows, targets.count)
    if values.shape != expected:
        raise DataError(f"y has shape {values.shape}; expected {expected}")
    encoded = targets.encode(values)
    likelihood.check_targets(encoded)
    return encoded


def checked_levels(q: Any) -> Tensor:
    levels = torch.from_numpy(np.atleast_1d(checked_numbers(q, "q")))
    valid = bool(((levels > 0) & (levels < 1)).all())
    if levels.ndim != 1 or len(levels) == 0 or not valid:
        raise ConfigurationError(f"q is {q!r}; expected numbers in (0, 1)")
    return levels


def standard_normal(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)


def square_root(covariance: Tensor) -> Tensor:
    """A with A Aᵀ = covariance, for one that is semidefinite but for rounding."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
