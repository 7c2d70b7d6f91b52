"""Predictive distributions of test rows: all that a metric may look at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Array = NDArray[np.float64]
# A density that has collapsed onto its training rows would else divide by zero.
SMALLEST_DEVIATION = 1e-6


@runtime_checkable
class Predictive(Protocol):
    """The distribution of a number at each of n rows."""

    @property
    def mean(self) -> Array:
        """[n]"""
        ...

    def log_density(self, y: Array, /) -> Array:
        """log p(y) of each row, [n]."""
        ...

    def quantiles(self, levels: Sequence[float], /) -> Array:
        """[n, levels]"""
        ...


@dataclass(frozen=True)
class GaussianPredictive:
    """A normal distribution for every row, `mean` and `deviation` [n]."""

    mean: Array
    deviation: Array

    def log_density(self, y: Array) -> Array:
        return norm.logpdf(y, self.mean, np.maximum(self.deviation, SMALLEST_DEVIATION))

    def quantiles(self, levels: Sequence[float]) -> Array:
        return self.mean[:, None] + norm.ppf(levels) * self.deviation[:, None]


@dataclass(frozen=True)
class HeldOutPredictive:
    """A mean [n], and the residuals of rows that the model was not fitted to.

    The density is a Gaussian with the root mean square of these residuals. Quantiles are the mean
    plus conformal quantiles of the residuals: of m, the ⌈(m + 1) q⌉-th smallest for q ≥ ½ and the
    ⌊(m + 1) q⌋-th below, so that a new row lies between two of them at least as often as their
    levels say.
    """

    mean: Array
    residuals: Array

    def log_density(self, y: Array) -> Array:
        deviation = max(SMALLEST_DEVIATION, float(np.sqrt(np.mean(self.residuals**2))))
        return norm.logpdf(y, self.mean, deviation)

    def quantiles(self, levels: Sequence[float]) -> Array:
        count, level = len(self.residuals), np.asarray(levels)
        ranks = (count + 1) * level
        # Rounded a little inwards first: 0.95 · 20 is 19, whatever its last digit.
        ranks = np.where(level < 0.5, np.floor(ranks + 1e-9), np.ceil(ranks - 1e-9))
        places = np.clip(ranks.astype(int) - 1, 0, count - 1)
        return self.mean[:, None] + np.sort(self.residuals)[places]


@dataclass(frozen=True)
class FunctionsPredictive:
    """What a library says itself: a mean [n], and functions for density and quantiles."""

    mean: Array
    log_density: Callable[[Array], Array]
    quantiles: Callable[[Sequence[float]], Array]


@dataclass(frozen=True)
class ClassProbabilities:
    """Probabilities [n, k] of the k labels in `classes`, those that the training rows have."""

    classes: NDArray[np.int64]
    probabilities: Array
