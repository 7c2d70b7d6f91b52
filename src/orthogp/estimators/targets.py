"""Targets: how they are checked, learned, and encoded for a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import LabelEncoder
from torch import Tensor

from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.checks import checked_labels, checked_targets, require_classes
from orthogp.estimators.scaling import Array, Moments, Scaling
from orthogp.estimators.target_transform import TargetTransform, learn_transform, moments
from orthogp.execution.team import current_team
from orthogp.likelihoods import RegressionLikelihood
from orthogp.tables import sketched

# Labels in an error message.
MOST_NAMED = 5
TRANSFORM_NEEDS = (
    "target_transform needs one target, a likelihood with additive noise and a table that fits in "
    "memory; transform y yourself, or leave it None"
)


@dataclass(frozen=True)
class NumberTargets:
    """Numbers in the units of the model; `single` says that y has one dimension.

    With a `transform` the scaling is that of the transformed target.
    """

    scaling: Scaling
    single: bool
    transform: TargetTransform | None = None

    @property
    def count(self) -> int:
        return len(self.scaling.scale)

    @property
    def log_jacobian(self) -> float:
        """log |∂(the model's y) / ∂(the user's y)| of one row, the mean over those of training."""
        slope = 0.0 if self.transform is None else self.transform.mean_log_slope
        return slope - float(np.log(self.scaling.scale).sum())

    def log_jacobians(self, y: NDArray) -> NDArray | float:
        """The same of these rows."""
        if self.transform is None:
            return self.log_jacobian
        slopes = self.transform.log_slope(y.astype(np.float64))
        return slopes - float(np.log(self.scaling.scale).sum())

    def encode(self, y: NDArray) -> Tensor:
        """Targets as the likelihood takes them."""
        columns = y.reshape(len(y), -1).astype(np.float64)
        if columns.shape[1] != self.count or (y.ndim == 1) != self.single:
            raise DataError(f"y has shape {y.shape}; the first fit had {self.count} target(s)")
        if self.transform is not None:
            columns = self.transform.forward(columns)
            # Such a y has no density, and any number will do for it.
            columns = np.where(np.isfinite(columns), columns, self.scaling.shift)
        found = self.scaling.standardise(columns)
        return found[:, 0] if self.single else found

    def statistics(self, y: NDArray) -> Array:
        """What the levels of a column are described by: the standardised targets, `(n, t)`."""
        return sketched(self.encode(y).reshape(len(y), -1).numpy())

    def in_units(self, values: NDArray, shifted: bool = True) -> NDArray:
        """Values `[c, n]` of the model as `(n,)` or `(n, t)` in the units of y."""
        found = self.before_inverse(values, shifted)
        return found if self.transform is None or not shifted else self.transform.inverse(found)

    def before_inverse(self, values: NDArray, shifted: bool = True) -> NDArray:
        """The same in the units of the transformed target."""
        found = values.T * self.scaling.scale + (self.scaling.shift if shifted else 0.0)
        return found[:, 0] if self.single else found

    def moments_in_units(self, mean: NDArray, std: NDArray) -> tuple[NDArray, NDArray]:
        """Means and standard deviations of the model in the units of y."""
        found = self.before_inverse(mean), self.before_inverse(std, shifted=False)
        return found if self.transform is None else moments(self.transform, *found)


@dataclass(frozen=True)
class LabelTargets:
    """Labels as their place among the classes."""

    classes: NDArray

    @property
    def log_jacobian(self) -> float:
        return 0.0

    def encode(self, y: NDArray) -> Tensor:
        """Targets as the likelihood takes them."""
        encoder = LabelEncoder()
        encoder.classes_ = self.classes
        try:
            return torch.from_numpy(encoder.transform(y).astype(np.int64))
        except (ValueError, TypeError) as error:
            classes = set(self.classes.tolist())
            unseen = dict.fromkeys(label for label in y.tolist() if label not in classes)
            named = ", ".join(f"{label!r:.60}" for label in list(unseen)[:MOST_NAMED])
            raise DataError(
                f"y has {len(unseen)} label(s) that are not among the classes: {named}; pass all "
                "of them as classes to the first partial_fit, or fit anew"
            ) from error

    def statistics(self, y: NDArray) -> Array:
        """What the levels of a column are described by: the classes, one-hot, `(n, k)`, of two
        the second alone, and of many some sums of them."""
        found = np.eye(len(self.classes))[self.encode(y).numpy()]
        return found[:, 1:] if len(self.classes) == 2 else sketched(found)


@dataclass(frozen=True)
class NumberLearner:
    """Learns `NumberTargets`; `new_likelihood` makes a likelihood of so many targets."""

    standardize: bool
    new_likelihood: Callable[[int], RegressionLikelihood]
    transform: str | None = None

    def check(self, y: Any, num_rows: int) -> NDArray:
        return checked_targets(y, num_rows)

    def survey(self, y: NDArray, weight: Array | None, before: Any) -> Any:
        """What `learn` must know of these targets and of those surveyed before."""
        columns = y.reshape(len(y), -1).astype(np.float64)
        likelihood = self.new_likelihood(columns.shape[1])
        if not likelihood.location:
            likelihood.check_targets(torch.from_numpy(columns[:, 0] if y.ndim == 1 else columns))
        transform = None
        if self.transform is not None:
            if y.ndim != 1 or not likelihood.location:
                raise ConfigurationError(TRANSFORM_NEEDS)
            transform = learn_transform(self.transform, columns[:, 0], weight)
            columns = transform.forward(columns)
        found = y.ndim, Moments.of(columns, weight, "y"), transform
        return found if before is None else self.merged(before, found)

    def merged(self, first: Any, second: Any) -> Any:
        """What `survey` makes of the targets of both."""
        if self.transform is not None:
            raise ConfigurationError(TRANSFORM_NEEDS)
        return first[0], first[1].merged(second[1]), None

    def learn(self, survey: Any) -> NumberTargets:
        ndim, moments, transform = survey
        count = len(moments.mean)
        scaled = self.standardize and self.new_likelihood(count).location
        found = moments.scaling() if scaled else Scaling.none(count)
        return NumberTargets(current_team().agree(found), ndim == 1, transform)


@dataclass(frozen=True)
class LabelLearner:
    """Learns `LabelTargets`; `classes` are all that may ever occur, None for those of y."""

    classes: NDArray | None

    def check(self, y: Any, num_rows: int) -> NDArray:
        return checked_labels(y, num_rows)

    def survey(self, y: NDArray, weight: Array | None, before: Any) -> Any:
        """What `learn` must know of these targets and of those surveyed before."""
        require_classes(y)
        found = np.asarray(LabelEncoder().fit(y).classes_)
        return found if before is None else self.merged(before, found)

    def merged(self, first: Any, second: Any) -> Any:
        """What `survey` makes of the targets of both."""
        return np.union1d(first, second)

    def learn(self, survey: Any) -> LabelTargets:
        given = self.classes
        found = np.asarray(survey if given is None else LabelEncoder().fit(given).classes_)
        if len(found) < 2:
            raise DataError(
                f"y has one class, {found.tolist()[0]!r}; a classifier needs samples of at least 2 "
                "classes"
            )
        return LabelTargets(found)


Targets = NumberTargets | LabelTargets
Learner = NumberLearner | LabelLearner
