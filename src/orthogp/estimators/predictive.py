"""What a fitted regressor says of new rows: distributions in the units of y."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orthogp.errors import ConfigurationError, DataError, NumericalError
from orthogp.estimators.base import OrthogonalGP
from orthogp.estimators.calibration import Calibration
from orthogp.estimators.checks import checked_numbers, require_fitted
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.scaling import Array
from orthogp.estimators.setting_checks import drawn_seed, is_count, is_number
from orthogp.estimators.settings import cpu_by_default, no_type_check
from orthogp.estimators.targets import NumberTargets
from orthogp.likelihoods import RegressionLikelihood

# The most rows whose joint covariance is worth holding and factorising.
MOST_JOINT_ROWS = 2000


@no_type_check
class PredictsNumbers(OrthogonalGP):
    """The predictions of a regressor."""

    def predict(
        self, X: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> NDArray | tuple[NDArray, NDArray]:
        """The mean of a new observation; with it its standard deviation or covariance.

        The noise is included. Covariances are `(n, n)`, or `(n, n, t)` for several targets.
        """
        if return_std and return_cov:
            raise ConfigurationError("ask for return_std or return_cov, not for both")
        fitted, X = self._asked(X)
        in_units = _parts(fitted).targets.in_units
        mean, std = fitted.for_rows(X, _moments(fitted))
        if return_cov:
            return in_units(mean), _covariance(fitted, X, std)
        if return_std:
            return in_units(mean), in_units(std, shifted=False)
        return in_units(mean)

    def predict_latent(self, X: ArrayLike) -> tuple[NDArray, NDArray]:
        """Mean and standard deviation of the function itself, without noise.

        For a likelihood with a link (counts, fractions) that is the latent behind the link.
        """

        fitted, X = self._asked(X)
        parts = _parts(fitted)

        def moments(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            scale = parts.calibration.latent_scale(variance)
            return torch.stack([mean, (scale * variance).sqrt()])

        mean, std = fitted.for_rows(X, moments)
        return parts.targets.in_units(mean), parts.targets.in_units(std, shifted=False)

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> tuple[NDArray, NDArray]:
        """The central interval that holds a new observation with probability `coverage`."""
        if not (is_number(coverage) and 0 < coverage < 1):
            raise ConfigurationError(f"coverage is {coverage!r}; expected a number in (0, 1)")
        tail = (1 - coverage) / 2
        low, high = np.moveaxis(self.predict_quantiles(X, [tail, 1 - tail]), -1, 0)
        return low, high

    def predict_summary(self, X: ArrayLike, q: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
        """Mean, standard deviation and quantiles of a new observation, in one pass over X."""
        levels = _checked_levels(q)
        fitted, X = self._asked(X)
        moments, quantiles = _moments(fitted), _quantiles(fitted, levels)

        def summary(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
            return torch.cat([part(rows, mean, variance) for part in (moments, quantiles)])

        mean, std, *found = fitted.for_rows(X, summary)
        in_units = _parts(fitted).targets.in_units
        at_levels = np.stack([in_units(level) for level in found], axis=-1)
        return in_units(mean), in_units(std, shifted=False), at_levels

    def predict_quantiles(self, X: ArrayLike, q: ArrayLike) -> NDArray:
        """Quantiles of a new observation, `(n, len(q))` or `(n, t, len(q))`."""
        levels = _checked_levels(q)
        fitted, X = self._asked(X)
        found = fitted.for_rows(X, _quantiles(fitted, levels))
        return np.stack([_parts(fitted).targets.in_units(level) for level in found], axis=-1)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> NDArray:
        """log p(y) of every row, its targets together; densities are per unit of y."""
        fitted, X = self._asked(X)
        encoded, parts = _encoded(fitted, y, len(X)), _parts(fitted)

        def density(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
            y = encoded[rows].to(mean.device)
            return parts.calibration.log_density(parts.likelihood, y, mean, variance)

        return fitted.for_rows(X, density) + parts.targets.log_jacobian

    @cpu_by_default()
    @torch.no_grad()
    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
    ) -> NDArray:
        """Draws of new observations, `(n, n_samples)` or `(n, t, n_samples)`.

        Up to 2000 rows a draw is one function at all of them; beyond, rows are drawn independently.
        """
        fitted, X = self._asked(X)
        if not is_count(n_samples):
            raise ConfigurationError(f"n_samples is {n_samples!r}; expected a whole number from 1")
        generator = torch.Generator().manual_seed(drawn_seed(random_state))
        if len(X) > MOST_JOINT_ROWS:
            warnings.warn(
                f"{len(X)} rows are too many for one covariance matrix: each row is drawn "
                f"independently of the others; ask for at most {MOST_JOINT_ROWS} at once",
                stacklevel=2,
            )
        likelihood, calibration, targets = _parts(fitted)

        def draw(f: Tensor) -> Tensor:
            return calibration.sample(likelihood, f, generator)

        def independent(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            std = (calibration.latent_scale(variance) * variance).sqrt()
            return draw(mean + std * _normal((n_samples, *mean.shape), generator, mean))

        if len(X) > MOST_JOINT_ROWS:
            found = fitted.for_rows(X, independent)
        else:
            mean, covariance = _joint(fitted, X)
            noise = _normal((n_samples, *mean.shape), generator, mean)
            shape = _square_root(covariance)
            found = draw(mean + torch.einsum("cnm,scm->scn", shape, noise)).cpu().numpy()
        return np.stack([targets.in_units(sample) for sample in found], axis=-1)

    @cpu_by_default()
    @torch.no_grad()
    def export_onnx(self, path: str | Path) -> None:
        """Writes an ONNX graph from x to the mean and variance of a new observation.

        For a likelihood with a link (counts, fractions) they are those of the latent behind it.
        """
        require_fitted(self)
        likelihood, calibration, targets = _parts(self._fitted)
        scales, noise = calibration.scales, None
        if likelihood.location:
            zero = torch.zeros(len(scales), 1, dtype=torch.float64)
            on_host = deepcopy(likelihood).cpu()
            noise = on_host.predictive(zero, zero).variance[:, 0] * scales[:, 1]
        self._export(path, targets.scaling, noise_variance=noise, latent_scale=scales[:, 0])


class Parts(NamedTuple):
    """What the predictions of a regressor are made from."""

    likelihood: RegressionLikelihood
    calibration: Calibration
    targets: NumberTargets


def _parts(fitted: Fitted) -> Parts:
    likelihood, targets = fitted.model.likelihood, fitted.units.targets
    assert isinstance(likelihood, RegressionLikelihood)
    assert isinstance(fitted.calibration, Calibration)
    assert isinstance(targets, NumberTargets)
    return Parts(likelihood, fitted.calibration, targets)


def _moments(fitted: Fitted) -> Callable[[slice, Tensor, Tensor], Tensor]:
    """Mean and standard deviation of a new observation, from those of the latents."""
    likelihood, calibration, _ = _parts(fitted)

    def moments(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
        found = likelihood.predictive(mean, calibration.variance(likelihood, variance))
        return torch.stack([found.mean, found.variance.sqrt()])

    return moments


def _quantiles(fitted: Fitted, levels: Tensor) -> Callable[[slice, Tensor, Tensor], Tensor]:
    likelihood, calibration, _ = _parts(fitted)
    return lambda _, mean, variance: calibration.quantiles(likelihood, levels, mean, variance)


def _joint(fitted: Fitted, X: Array) -> tuple[Tensor, Tensor]:
    """The latents' mean at all rows together, `[c, n]`, and their covariance, `[c, n, n]`."""
    predictor = fitted.predictor
    x = fitted.placed(X).to(predictor.beta.device)
    mean, _ = fitted.model.predict(x, predictor)
    scale = _parts(fitted).calibration.latent_scale(mean).unsqueeze(-1)
    return mean, scale * predictor.full_covariance(x)


def _covariance(fitted: Fitted, X: Array, std: NDArray) -> NDArray:
    likelihood, _, targets = _parts(fitted)
    if not likelihood.location:
        raise ConfigurationError(
            "return_cov needs a likelihood with additive noise; ask for return_std"
        )
    _, covariance = _joint(fitted, X)
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


def _encoded(fitted: Fitted, y: ArrayLike, num_rows: int) -> Tensor:
    """Targets that come to be judged, in the units of the model."""
    likelihood, _, targets = _parts(fitted)
    given = checked_numbers(y, "y")
    expected = (num_rows,) if targets.single else (num_rows, targets.count)
    if given.shape != expected:
        raise DataError(f"y has shape {given.shape}; expected {expected}")
    found = targets.encode(given)
    likelihood.check_targets(found)
    return found


def _checked_levels(q: Any) -> Tensor:
    levels = torch.from_numpy(np.atleast_1d(checked_numbers(q, "q")))
    inside = bool(((levels > 0) & (levels < 1)).all())
    if levels.ndim != 1 or len(levels) == 0 or not inside:
        raise ConfigurationError(f"q is {q!r}; expected numbers in (0, 1)")
    return levels


def _normal(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)


def _square_root(covariance: Tensor) -> Tensor:
    """A with A Aᵀ = covariance, for one that is semidefinite but for rounding."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
