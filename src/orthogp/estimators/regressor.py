"""The regressor: numbers in, their predictive distributions out."""

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean, Mean
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.estimators.base import OrthogonalGP
from orthogp.estimators.calibration import Calibration, calibrate
from orthogp.estimators.checks import require_fitted
from orthogp.estimators.conformal import CrossScores, require_scores, threshold
from orthogp.estimators.defaults import REGRESSION_VARIANCE
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.functions import SampledFunctions, gradient_of, gradient_std_of
from orthogp.estimators.intake import FitData
from orthogp.estimators.known_noise import fix_noise, fixed_noise
from orthogp.estimators.predictive import (
    MOST_JOINT_ROWS,
    checked_levels,
    covariance_of,
    density_of,
    encoded_targets,
    joint_latents,
    moments_of,
    noise_scale_at,
    parts_of,
    quantiles_of,
    square_root,
    standard_normal,
)
from orthogp.estimators.promised import cross_interval
from orthogp.estimators.scaling import Array
from orthogp.estimators.setting_checks import cpu_by_default, is_count, is_number, seed_from
from orthogp.estimators.settings import no_type_check
from orthogp.estimators.start import set_noise
from orthogp.estimators.state import unpack_numbers
from orthogp.estimators.target_transform import check_transform
from orthogp.estimators.targets import NumberLearner, NumberTargets, Targets
from orthogp.likelihoods import Gaussian, Likelihood, RegressionLikelihood, as_likelihood


@no_type_check
class OrthogonalGPRegressor(RegressorMixin, OrthogonalGP):
    """Gaussian process regression on one target or several.

    After a fit also `noise_learned_`: whether the noise changes with x. With noise="learned" it is
    False where constant noise predicts left-out rows as well.
    """

    noise_learned_: bool

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, shards: bool = False
    ) -> Self:
        """Continues training with these rows, in the units of the first call.

        After a fit with near rows nothing is trained: the rows join those that predictions are
        conditioned on. `elbo_` and the calibration stay those of the fit.
        """
        return self._fit(X, y, sample_weight, continues=True, adds=True, shards=shards)

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        noise_variance: ArrayLike | None = None,
    ) -> NDArray | tuple[NDArray, NDArray]:
        """The mean of a new observation; with it its standard deviation or covariance.

        The noise is included. Covariances are `(n, n)`, or `(n, n, t)` for several targets.

        Here and in what follows `noise_variance` is the variance of the noise of the new
        observations where it is known, in units of y²: a number, `(n,)`, or `(n, t)`. By default it
        is what was learned or, after a fit with the known noise of every row, the mean of those.
        """
        if return_std and return_cov:
            raise ConfigurationError("ask for return_std or return_cov, not for both")
        fitted, X = self._prediction_inputs(X)
        targets = parts_of(fitted).targets
        scale = noise_scale_at(fitted, X, noise_variance)
        mean, std = fitted.map_latents(X, moments_of(fitted, scale))
        if return_cov:
            return targets.in_units(mean), covariance_of(fitted, X, std)
        found = targets.moments_in_units(mean, std)
        return found if return_std else found[0]

    def predict_latent(self, X: ArrayLike) -> tuple[NDArray, NDArray]:
        """Mean and standard deviation of the function itself, without noise.

        For a likelihood with a link (counts, fractions) that is the latent behind the link; with a
        `target_transform` it is the function of the transformed target.
        """

        fitted, X = self._prediction_inputs(X)
        parts = parts_of(fitted)

        def moments(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            scale = parts.calibration.latent_scale(variance)
            return torch.stack([mean, (scale * variance).sqrt()])

        mean, std = fitted.map_latents(X, moments)
        targets = parts.targets
        return targets.before_inverse(mean), targets.before_inverse(std, shifted=False)

    def predict_gradient(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray | tuple[NDArray, NDArray]:
        """The gradient of the mean of the function, and with it its standard deviations.

        `(n, d)`, or `(n, t, d)` for several targets, in units of y for one unit of X. For a
        likelihood with a link that of the latent behind it, with a `target_transform` that of the
        transformed target. Standard deviations are those of the function's own gradient, infinite
        where it is too rough to have one; the kernel must be a sum of RBF and Matérn kernels for
        them. All columns must be numbers.
        """
        fitted, X = self._prediction_inputs(X)
        if fitted.units.plan is not None and not fitted.units.plan.plain:
            raise ConfigurationError(
                "predict_gradient needs columns that are numbers as they are, without gaps; "
                "columns_ says what each one is, input_transform=None transforms none"
            )
        gradient = gradient_of(fitted, X)
        return (gradient, gradient_std_of(fitted, X)) if return_std else gradient

    def predict_interval(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        noise_variance: ArrayLike | None = None,
        method: str | None = None,
    ) -> tuple[NDArray, NDArray]:
        """The central interval that holds a new observation with probability `coverage`.

        method: "model", by the quantiles of the model; "conformal", by rows that the fit has not
            seen, as wide as the model's own width times what these rows need: of new rows that are
            exchangeable with those of the fit, a share of `coverage` or more lies inside, whatever
            their distribution. After a fit with `coverage_guarantee="cross"` the share that is
            promised is 2 `coverage` − 1, less a term of the order of the folds over the rows. None
            is "conformal" after a fit with `coverage_guarantee`, else "model".
        """
        if method not in (None, "model", "conformal"):
            raise ConfigurationError(f"method is {method!r}; expected 'model', 'conformal' or None")
        if not (is_number(coverage) and 0 < coverage < 1):
            raise ConfigurationError(f"coverage is {coverage!r}; expected a number in (0, 1)")
        require_fitted(self)
        if method == "conformal" or (method is None and self._fitted.scores is not None):
            return self._conformal_interval(X, coverage, noise_variance)
        tail = (1 - coverage) / 2
        levels = [tail, 1 - tail]
        low, high = np.moveaxis(self.predict_quantiles(X, levels, noise_variance), -1, 0)
        return low, high

    def _conformal_interval(
        self, X: ArrayLike, coverage: float, noise_variance: ArrayLike | None
    ) -> tuple[NDArray, NDArray]:
        scores = require_scores(self._fitted.scores)
        if isinstance(scores, CrossScores):
            return cross_interval(scores, X, coverage, noise_variance)
        fitted, X = self._prediction_inputs(X)
        factor = threshold(scores, coverage)
        scale = noise_scale_at(fitted, X, noise_variance)
        mean, std = fitted.map_latents(X, moments_of(fitted, scale))
        in_units = parts_of(fitted).targets.in_units
        return in_units(mean - factor * std), in_units(mean + factor * std)

    def _scores(self, fitted: Fitted, X: Array, y: Any) -> Array:
        """|y − mean| / std, in the units of the model; of several targets the largest."""
        encoded = encoded_targets(fitted, y, len(X)).reshape(len(X), -1).numpy()
        scale = noise_scale_at(fitted, X)
        mean, std = fitted.map_latents(X, moments_of(fitted, scale))
        return (np.abs(encoded - mean.T) / std.T).max(axis=1)

    def predict_summary(self, X: ArrayLike, q: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
        """Mean, standard deviation and quantiles of a new observation, in one pass over X."""
        levels = checked_levels(q)
        fitted, X = self._prediction_inputs(X)
        scale = noise_scale_at(fitted, X)
        moments, quantiles = moments_of(fitted, scale), quantiles_of(fitted, levels, scale)

        def summary(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
            return torch.cat([part(rows, mean, variance) for part in (moments, quantiles)])

        mean, std, *found = fitted.map_latents(X, summary)
        targets = parts_of(fitted).targets
        at_levels = np.stack([targets.in_units(level) for level in found], axis=-1)
        return *targets.moments_in_units(mean, std), at_levels

    def predict_quantiles(
        self, X: ArrayLike, q: ArrayLike, noise_variance: ArrayLike | None = None
    ) -> NDArray:
        """Quantiles of a new observation, `(n, len(q))` or `(n, t, len(q))`."""
        levels = checked_levels(q)
        fitted, X = self._prediction_inputs(X)
        scale = noise_scale_at(fitted, X, noise_variance)
        found = fitted.map_latents(X, quantiles_of(fitted, levels, scale))
        return np.stack([parts_of(fitted).targets.in_units(level) for level in found], axis=-1)

    def log_density(
        self, X: ArrayLike, y: ArrayLike, noise_variance: ArrayLike | None = None
    ) -> NDArray:
        """log p(y) of every row, its targets together; densities are per unit of y."""
        fitted, X = self._prediction_inputs(X)
        encoded = encoded_targets(fitted, y, len(X))
        scale = noise_scale_at(fitted, X, noise_variance)
        found = fitted.map_latents(X, density_of(fitted, encoded, scale))
        return found + parts_of(fitted).targets.log_jacobians(np.asarray(y))

    @cpu_by_default()
    @torch.no_grad()
    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        noise_variance: ArrayLike | None = None,
    ) -> NDArray:
        """Draws of new observations, `(n, n_samples)` or `(n, t, n_samples)`.

        A draw is one function at all rows. Where there are more than 2000 of them and the kernel is
        no sum of RBF and Matérn kernels, rows are drawn independently.
        """
        fitted, X = self._prediction_inputs(X)
        if not is_count(n_samples):
            raise ConfigurationError(f"n_samples is {n_samples!r}; expected a whole number from 1")
        generator = torch.Generator().manual_seed(seed_from(random_state))
        likelihood, calibration, targets = parts_of(fitted)
        scale = noise_scale_at(fitted, X, noise_variance)

        def draw(rows: slice, f: Tensor) -> Tensor:
            root = 1.0 if scale is None else scale[:, rows].sqrt().to(f)
            return root * calibration.sample(likelihood, f / root, generator)

        def independent(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
            std = (calibration.latent_scale(variance) * variance).sqrt()
            f = mean + std * standard_normal((n_samples, *mean.shape), generator, mean)
            return draw(rows, f)

        if len(X) <= MOST_JOINT_ROWS:
            mean, covariance = joint_latents(fitted, X)
            noise = standard_normal((n_samples, *mean.shape), generator, mean)
            shape = square_root(covariance)
            f = mean + torch.einsum("cnm,scm->scn", shape, noise)
            found = draw(slice(None), f).cpu().numpy()
        elif fitted.model.covariance.terms is not None:
            functions = fitted.model.sample_functions(n_samples, generator)
            f = SampledFunctions(type(self), fitted, functions).latents(X)
            found = draw(slice(None), f.to(fitted.predictor.device)).cpu().numpy()
        else:
            warnings.warn(
                f"{len(X)} rows are too many for one covariance matrix: each row is drawn "
                f"independently of the others; ask for at most {MOST_JOINT_ROWS} at once",
                stacklevel=2,
            )
            found = fitted.map_latents(X, independent)
        return np.stack([targets.in_units(sample) for sample in found], axis=-1)

    @cpu_by_default()
    @torch.no_grad()
    def export_onnx(self, path: str | Path) -> None:
        """Writes an ONNX graph from x to the mean and variance of a new observation.

        For a likelihood with a link (counts, fractions) they are those of the latent behind it.
        """
        require_fitted(self)
        if self.noise_learned_:
            raise ConfigurationError(
                "an ONNX graph has one noise for all rows, and here it changes with x; fit with "
                "noise='constant' to export"
            )
        likelihood, calibration, targets = parts_of(self._fitted)
        if targets.transform is not None:
            raise ConfigurationError(
                "ONNX export knows no target_transform; fit without one, or transform y yourself"
            )
        scales, noise = calibration.scales, None
        if likelihood.location:
            zero = torch.zeros(len(scales), 1, dtype=torch.float64)
            on_host = deepcopy(likelihood).cpu()
            noise = on_host.predictive(zero, zero).variance[:, 0] * scales[:, 1]
        self._export(path, targets.scaling, noise_variance=noise, latent_scale=scales[:, 0])

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = fixed_noise(self.likelihood, self.noise_variance)
            settings |= {"likelihood": None, "noise_variance": noise}
        return settings

    def _learner(self, classes: NDArray | None) -> NumberLearner:
        check_transform(self.target_transform)
        return NumberLearner(bool(self.standardize), self._new_likelihood, self.target_transform)

    def _new_likelihood(self, num_targets: int) -> RegressionLikelihood:
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        spec = "gaussian" if self.likelihood is None or known else deepcopy(self.likelihood)
        likelihood = as_likelihood(spec, num_targets)
        if not isinstance(likelihood, RegressionLikelihood):
            raise ConfigurationError(
                f"the likelihood {self.likelihood!r} is one of classes; use OrthogonalGPClassifier"
            )
        return likelihood

    def _prior(self, data: FitData) -> tuple[Likelihood, Mean | None, float]:
        y, targets = data.sample.y, data.units.targets
        assert isinstance(targets, NumberTargets)
        likelihood = self._new_likelihood(targets.count)
        likelihood.check_targets(y)
        if data.typical_noise is not None and isinstance(likelihood, Gaussian):
            likelihood = fix_noise(targets.count, data.typical_noise, targets.scaling.scale)
            return likelihood, None, REGRESSION_VARIANCE
        named = self.likelihood is None or isinstance(self.likelihood, str)
        given = self.noise_variance is not None and data.typical_noise is None
        if likelihood.location and (named or given):
            noise = self.noise_variance if given else None
            set_noise(likelihood, noise, targets.scaling.scale)
        if likelihood.location:
            return likelihood, None, REGRESSION_VARIANCE
        level, variance = likelihood.starting_prior(y)
        mean = ConstantMean()
        mean.initialize(constant=level)
        return likelihood, mean, variance

    def _identity(self, targets: Targets) -> Calibration:
        assert isinstance(targets, NumberTargets)
        return Calibration.identity(targets.count)

    def _calibrate(
        self, likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
    ) -> Calibration:
        assert isinstance(likelihood, RegressionLikelihood)
        return calibrate(likelihood, y, mean, variance)

    _unpack_targets = staticmethod(unpack_numbers)
