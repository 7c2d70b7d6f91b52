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
from sklearn.preprocessing import LabelEncoder
from torch import Tensor

from orthogp.calibration import LatentScales, fit_latent_scales
from orthogp.errors import ConfigurationError, DataError, FileError
from orthogp.estimators.base import OrthogonalGP
from orthogp.estimators.checks import checked_labels, require_classes, require_fitted
from orthogp.estimators.defaults import CLASSIFICATION_VARIANCE
from orthogp.estimators.scaling import Array, Scaling
from orthogp.estimators.settings import no_type_check
from orthogp.estimators.state import finite, pack_labels, unpack_labels
from orthogp.likelihoods import ClassificationLikelihood, Likelihood, as_likelihood
from orthogp.model import VariationalGP
from orthogp.team import current_team
from orthogp.training import Rows

# Labels in a refusal.
MOST_NAMED = 5


@no_type_check
class OrthogonalGPClassifier(ClassifierMixin, OrthogonalGP):
    """Gaussian process classification into two classes or more."""

    classes_: NDArray
    _scales: LatentScales

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: ArrayLike | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Goes on training with these rows, in the units of the first call.

        `classes` are all that may ever come; the first call needs them if its y lacks some.
        """
        given = None if classes is None else checked_labels(classes, name="classes")
        return self._fit(X, y, sample_weight, not hasattr(self, "model_"), given)

    def predict(self, X: ArrayLike) -> NDArray:
        """The most probable label of every row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`; rows sum to one."""

        def probabilities(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            return self._likelihood.probabilities(*self._scales(mean, variance)).mT

        return self._for_rows(self._inputs(X), probabilities).T

    def predict_latent(self, X: ArrayLike) -> tuple[NDArray, NDArray]:
        """Mean and standard deviation of the latents: `(n,)` for two classes, else `(n, k)`."""

        def moments(_: slice, mean: Tensor, variance: Tensor) -> Tensor:
            mean, variance = self._scales(mean, variance)
            return torch.stack([mean, variance.sqrt()])

        mean, std = self._for_rows(self._inputs(X), moments)
        return (mean[0], std[0]) if len(mean) == 1 else (mean.T, std.T)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """log p(label) of every row."""
        X = self._inputs(X)
        labels = self._encode(checked_labels(y, len(X)))

        def density(rows: slice, mean: Tensor, variance: Tensor) -> Tensor:
            y = labels[rows].to(mean.device)
            return self._likelihood.log_density(y, *self._scales(mean, variance))

        return self._for_rows(X, density)

    def export_onnx(self, path: str | Path) -> None:
        """Writes an ONNX graph from x to the mean and variance of the latents."""
        require_fitted(self)
        tau, kappa = self._scales
        count = self.model_.basis.num_latents
        latents = Scaling(np.zeros(count), np.full(count, tau))
        self._export(path, latents, noise_variance=None, latent_scale=kappa / tau**2)

    @property
    def _likelihood(self) -> ClassificationLikelihood:
        likelihood = self.model_.likelihood
        assert isinstance(likelihood, ClassificationLikelihood)
        return likelihood

    def _checked_targets(self, y: Any, num_rows: int) -> NDArray:
        return checked_labels(y, num_rows)

    def _survey_targets(self, y: NDArray, weight: Array | None, before: Any) -> Any:
        require_classes(y)
        found = np.asarray(LabelEncoder().fit(y).classes_)
        return found if before is None else np.union1d(before, found)

    def _learn_targets(self, survey: Any, classes: NDArray | None) -> None:
        found = np.asarray(survey if classes is None else LabelEncoder().fit(classes).classes_)
        if len(found) < 2:
            raise DataError(
                f"y has one class, {found.tolist()[0]!r}; a classifier needs samples of at least 2 "
                "classes"
            )
        self.classes_ = found

    def _encode(self, y: NDArray) -> Tensor:
        encoder = LabelEncoder()
        encoder.classes_ = self.classes_
        try:
            return torch.from_numpy(encoder.transform(y).astype(np.int64))
        except (ValueError, TypeError) as error:
            known = set(self.classes_.tolist())
            unseen = dict.fromkeys(label for label in y.tolist() if label not in known)
            named = ", ".join(f"{label!r:.60}" for label in list(unseen)[:MOST_NAMED])
            raise DataError(
                f"y has {len(unseen)} label(s) that are not among the classes: {named}; pass all "
                "of them as classes to the first partial_fit, or fit anew"
            ) from error

    def _prior(self, y: Tensor) -> tuple[Likelihood, Mean | None, float]:
        count = len(self.classes_)
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

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        meta, tensors = super()._state()
        tensors["latent_scales"] = torch.tensor(self._scales, dtype=torch.float64)
        return meta | {"classes": pack_labels(self.classes_)}, tensors

    def _set_state(
        self, model: VariationalGP, meta: dict[str, Any], tensors: dict[str, Tensor]
    ) -> None:
        if not isinstance(model.likelihood, ClassificationLikelihood):
            raise FileError("its likelihood is one of numbers")
        self.classes_ = unpack_labels(meta["classes"], model.likelihood.num_classes)
        # Format 1.0 had none.
        scales = torch.ones(2, dtype=torch.float64)
        if "latent_scales" in tensors:
            scales = finite(tensors, "latent_scales", (2,))
        if bool((scales <= 0).any()):
            raise FileError("its calibration is not one")
        self._scales = LatentScales(*scales.tolist())
        super()._set_state(model, meta, tensors)

    def _calibrate(self, held: Rows | None, fresh: bool) -> None:
        if held is not None:
            found = fit_latent_scales(self._likelihood, held.y, *self._latents_of(held))
            self._scales = current_team().agree(found)
        elif fresh:
            self._scales = LatentScales()

    def _log_jacobian(self) -> float:
        return 0.0
