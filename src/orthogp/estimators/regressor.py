"""The regressor: how it learns from numbers, and what a file holds of it."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from gpytorch.means import ConstantMean, Mean
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch import Tensor

from orthogp.calibration import Calibration, QuantileMap, calibrate, is_tail
from orthogp.errors import ConfigurationError, DataError, FileError
from orthogp.estimators.checks import checked_targets
from orthogp.estimators.defaults import REGRESSION_VARIANCE
from orthogp.estimators.noise import set_noise
from orthogp.estimators.predictive import PredictsNumbers
from orthogp.estimators.scaling import Array, Moments, Scaling
from orthogp.estimators.settings import no_type_check
from orthogp.estimators.state import finite, pack_scaling, unpack_scaling
from orthogp.likelihoods import Likelihood, RegressionLikelihood, as_likelihood
from orthogp.model import VariationalGP
from orthogp.team import current_team
from orthogp.training import Rows


@no_type_check
class OrthogonalGPRegressor(RegressorMixin, PredictsNumbers):
    """Gaussian process regression on one target or several."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Goes on training with these rows, in the units of the first call."""
        return self._fit(X, y, sample_weight, fresh=not hasattr(self, "model_"))

    def _checked_targets(self, y: Any, num_rows: int) -> NDArray:
        return checked_targets(y, num_rows)

    def _survey_targets(self, y: NDArray, weight: Array | None, before: Any) -> Any:
        columns = y.reshape(len(y), -1).astype(np.float64)
        likelihood = self._new_likelihood(columns.shape[1])
        if not likelihood.location:
            likelihood.check_targets(torch.from_numpy(columns[:, 0] if y.ndim == 1 else columns))
        found = Moments.of(columns, weight, "y")
        return y.ndim, found if before is None else before[1].merged(found)

    def _learn_targets(self, survey: Any, classes: NDArray | None) -> None:
        ndim, moments = survey
        self._single, count = ndim == 1, len(moments.mean)
        scaled = self.standardize and self._new_likelihood(count).location
        found = moments.scaling() if scaled else Scaling.none(count)
        self._y_scaling = current_team().agree(found)

    def _encode(self, y: NDArray) -> Tensor:
        columns = y.reshape(len(y), -1).astype(np.float64)
        if columns.shape[1] != len(self._y_scaling.scale) or (y.ndim == 1) != self._single:
            raise DataError(
                f"y has shape {y.shape}; the first fit had {len(self._y_scaling.scale)} target(s)"
            )
        found = self._y_scaling.standardise(columns)
        return found[:, 0] if self._single else found

    def _new_likelihood(self, num_targets: int) -> RegressionLikelihood:
        spec = "gaussian" if self.likelihood is None else deepcopy(self.likelihood)
        likelihood = as_likelihood(spec, num_targets)
        if not isinstance(likelihood, RegressionLikelihood):
            raise ConfigurationError(
                f"the likelihood {self.likelihood!r} is one of classes; use OrthogonalGPClassifier"
            )
        return likelihood

    def _prior(self, y: Tensor) -> tuple[Likelihood, Mean | None, float]:
        likelihood = self._new_likelihood(len(self._y_scaling.scale))
        likelihood.check_targets(y)
        named = self.likelihood is None or isinstance(self.likelihood, str)
        if likelihood.location and (named or self.noise_variance is not None):
            set_noise(likelihood, self.noise_variance, self._y_scaling.scale)
        if likelihood.location:
            return likelihood, None, REGRESSION_VARIANCE
        level, variance = likelihood.starting_prior(y)
        mean = ConstantMean()
        mean.initialize(constant=level)
        return likelihood, mean, variance

    def _calibrate(self, held: Rows | None, fresh: bool) -> None:
        if held is not None:
            found = calibrate(self._likelihood, held.y, *self._latents_of(held))
            self._calibration = current_team().agree(found)
        elif fresh:
            self._calibration = Calibration.identity(len(self._y_scaling.scale))

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        meta, tensors = super()._state()
        found = self._calibration
        tensors |= pack_scaling("y", self._y_scaling) | {
            "variance_scales": found.scales,
            "density_tails": found.tails,
            "map_scores": found.quantile_map.scores,
            "map_values": found.quantile_map.values,
        }
        return meta | {"single": self._single}, tensors

    def _set_state(
        self, model: VariationalGP, meta: dict[str, Any], tensors: dict[str, Tensor]
    ) -> None:
        if not isinstance(model.likelihood, RegressionLikelihood):
            raise FileError("its likelihood is one of classes")
        count = model.basis.num_latents
        self._single = bool(meta["single"])
        if self._single and count != 1:
            raise FileError(f"it has {count} targets and says that it has one")
        self._y_scaling = unpack_scaling("y", tensors, count)
        scales = finite(tensors, "variance_scales", (count, 2))
        scores = finite(tensors, "map_scores", (None,))
        values = finite(tensors, "map_values", (count, len(scores)))
        # Format 1.0 had Gaussian densities.
        found = Calibration.gaussian(scales, QuantileMap(scores, values))
        if "density_tails" in tensors:
            found = replace(found, tails=finite(tensors, "density_tails", (count, 3)))
        positive = bool((scales > 0).all() and (found.tails[:, :2] > 0).all())
        if len(scores) == 0 or not positive or not bool(is_tail(found.tails[:, 2]).all()):
            raise FileError("its calibration is not one")
        self._calibration = found
        super()._set_state(model, meta, tensors)

    def _log_jacobian(self) -> float:
        return -float(np.log(self._y_scaling.scale).sum())
