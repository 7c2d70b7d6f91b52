"""The classifier: any labels in, probabilities of them out."""

from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gpytorch.likelihoods import SoftmaxLikelihood
from gpytorch.means import Mean
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.estimators.base import OrthogonalGP
from orthogp.estimators.calibration import LatentScales, fit_latent_scales
from orthogp.estimators.checks import checked_labels, require_fitted
from orthogp.estimators.conformal import CrossScores, require_scores, threshold
from orthogp.estimators.defaults import CLASSIFICATION_VARIANCE
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.intake import FitData
from orthogp.estimators.promised import cross_set
from orthogp.estimators.scaling import Array, Scaling
from orthogp.estimators.setting_checks import is_number
from orthogp.estimators.settings import no_type_check
from orthogp.estimators.state import unpack_classes
from orthogp.estimators.targets import LabelLearner, LabelTargets, Targets
from orthogp.likelihoods import ClassificationLikelihood, Likelihood, as_likelihood


@no_type_check
class OrthogonalGPClassifier(ClassifierMixin, OrthogonalGP):
    """Gaussian process classification into two classes or more."""

    classes_: NDArray

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: ArrayLike | None = None,
        sample_weight: Any = None,
        shards: bool = False,
    ) -> Self:
        """Continues training with these rows, in the units of the first call.

        `classes` are all that may ever occur; the first call needs them if its y lacks some. The
        rows join those near which predictions are corrected, whose corrections stay as they were.
        """
        given = None if classes is None else checked_labels(classes, name="classes")
        return self._fit(
            X, y, sample_weight, continues=True, classes=given, adds=True, shards=shards
        )

    def predict(self, X: ArrayLike) -> NDArray:
        """The most probable label of every row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`; rows sum to one."""
        fitted, X = self._prediction_inputs(X)
        likelihood, scales = _likelihood(fitted), _scales(fitted)

        def probabilities(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            return scales.probabilities(likelihood, mean, variance).mT

        return fitted.map_latents(X, probabilities).T

    def predict_set(self, X: ArrayLike, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Which classes may be the right one, `(n, k)`, in the order of `classes_`.

        After a fit with `coverage_guarantee`: of new rows that are exchangeable with those of the
        fit, the set holds the right class for a share of `coverage` or more, whatever their
        distribution. With `coverage_guarantee="cross"` the share that is promised is 2 `coverage`
        − 1, less a term of the order of the folds over the rows. A set is never empty.
        """
        if not (is_number(coverage) and 0 < coverage < 1):
            raise ConfigurationError(f"coverage is {coverage!r}; expected a number in (0, 1)")
        require_fitted(self)
        scores, probabilities = require_scores(self._fitted.scores), self.predict_proba(X)
        if isinstance(scores, CrossScores):
            found = cross_set(scores, X, coverage)
        else:
            found = 1.0 - probabilities <= threshold(scores, coverage)
        found[np.arange(len(found)), probabilities.argmax(axis=1)] = True
        return found

    def _scores(self, fitted: Fitted, X: Array, y: Any) -> Array:
        """One less the probability of the right class."""
        likelihood, scales = _likelihood(fitted), _scales(fitted)

        def probabilities(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            return scales.probabilities(likelihood, mean, variance).mT

        found = fitted.map_latents(X, probabilities).T
        labels = fitted.units.targets.encode(checked_labels(y, len(X))).numpy()
        return 1.0 - found[np.arange(len(found)), labels]

    def predict_latent(self, X: ArrayLike) -> tuple[NDArray, NDArray]:
        """Mean and standard deviation of the latents: `(n,)` for two classes, else `(n, k)`."""
        fitted, X = self._prediction_inputs(X)
        scales = _scales(fitted)

        def moments(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            mean, variance = scales(mean, variance)
            return torch.stack([mean, variance.sqrt()])

        mean, std = fitted.map_latents(X, moments)
        return (mean[0], std[0]) if len(mean) == 1 else (mean.T, std.T)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """log p(label) of every row."""
        fitted, X = self._prediction_inputs(X)
        labels = fitted.units.targets.encode(checked_labels(y, len(X)))
        likelihood, scales = _likelihood(fitted), _scales(fitted)

        def density(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
            y = labels[rows].to(mean.device)
            return scales.log_density(likelihood, y, mean, variance)

        return fitted.map_latents(X, density)

    def export_onnx(self, path: str | Path) -> None:
        """Writes an ONNX graph from x to the mean and variance of the latents."""
        require_fitted(self)
        tau, kappa, _ = _scales(self._fitted)
        count = self._fitted.model.basis.num_latents
        latents = Scaling(np.zeros(count), np.full(count, tau))
        self._export(path, latents, noise_variance=None, latent_scale=kappa / tau**2)

    def _learner(self, classes: NDArray | None) -> LabelLearner:
        return LabelLearner(classes)

    def _prior(self, data: FitData) -> tuple[Likelihood, Mean | None, float]:
        targets = data.units.targets
        assert isinstance(targets, LabelTargets)
        count = len(targets.classes)
        spec = deepcopy(self.likelihood)
        if spec is None:
            # Robust-max charges every mistake −log ε, also where classes overlap.
            spec = "bernoulli" if count == 2 else "softmax"
        if isinstance(spec, Likelihood):
            latents = spec.num_latents
        elif isinstance(spec, SoftmaxLikelihood):
            latents = int(spec.num_features)
        else:
            latents = count if spec in ("robustmax", "softmax") else 1
        likelihood = as_likelihood(spec, latents)
        if not isinstance(likelihood, ClassificationLikelihood):
            raise ConfigurationError(
                f"the likelihood {self.likelihood!r} is one of numbers; use OrthogonalGPRegressor"
            )
        if likelihood.num_classes != count:
            raise ConfigurationError(
                f"the likelihood is for {likelihood.num_classes} classes; there are {count}"
            )
        return likelihood, None, CLASSIFICATION_VARIANCE

    def _identity(self, targets: Targets) -> LatentScales:
        return LatentScales()

    def _calibrate(
        self, likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
    ) -> LatentScales:
        assert isinstance(likelihood, ClassificationLikelihood)
        return fit_latent_scales(likelihood, y, mean, variance)

    _unpack_targets = staticmethod(unpack_classes)


def _likelihood(fitted: Fitted) -> ClassificationLikelihood:
    likelihood = fitted.model.likelihood
    assert isinstance(likelihood, ClassificationLikelihood)
    return likelihood


def _scales(fitted: Fitted) -> LatentScales:
    assert isinstance(fitted.calibration, LatentScales)
    return fitted.calibration
