"""Whether probabilities are met: coverage of intervals, reliability of classes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import ConfigurationError, DataError
from orthogp.plotting.common import DATA, MEAN, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

COVERAGES = np.arange(1, 20) / 20
BINS = 10


@dataclass(frozen=True)
class Reliability:
    """Of every bin that has rows: mean probability, how often it came true, and how many rows."""

    predicted: Array
    observed: Array
    counts: NDArray[np.int64]


def coverage_curve(gp: Any, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Nominal coverages of central intervals, 5 % to 95 %, and the share of y inside them.

    Several targets count together.
    """
    check_is_fitted(gp)
    if is_classifier(gp):
        raise ConfigurationError("a classifier has no intervals; ask for its reliability_curve")
    targets = np.asarray(y, dtype=np.float64)
    tails = (1 - COVERAGES) / 2
    quantiles = gp.predict_quantiles(X, np.concatenate([tails, 1 - tails]))
    low, high = np.split(quantiles, 2, axis=-1)
    if targets.shape != low.shape[:-1]:
        raise DataError(f"y has shape {targets.shape}; expected {low.shape[:-1]}")
    inside = (low <= targets[..., None]) & (targets[..., None] <= high)
    return COVERAGES, inside.reshape(-1, len(COVERAGES)).mean(axis=0)


def reliability_curve(gp: Any, X: ArrayLike, y: ArrayLike) -> Reliability:
    """Probabilities in ten bins of equal width, and how often they came true.

    Of two classes it is the probability of `classes_[1]`, of more that of the label predicted.
    """
    check_is_fitted(gp)
    if not is_classifier(gp):
        raise ConfigurationError("a regressor has no classes; ask for its coverage_curve")
    probabilities, labels = gp.predict_proba(X), np.asarray(y)
    if labels.shape != (len(probabilities),):
        raise DataError(f"y has shape {labels.shape}; expected ({len(probabilities)},)")
    two = len(gp.classes_) == 2
    chosen = np.ones(len(labels), dtype=int) if two else probabilities.argmax(axis=1)
    probability = probabilities[np.arange(len(labels)), chosen]
    true = gp.classes_[chosen] == labels
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    filled = counts > 0

    def means(values: NDArray) -> Array:
        return np.bincount(bins, values, BINS)[filled] / counts[filled]

    return Reliability(means(probability), means(true), counts[filled])


def plot_calibration(gp: Any, X: ArrayLike, y: ArrayLike, ax: "Axes | None" = None) -> "Axes":
    """Observed against promised: intervals of a regressor, probabilities of a classifier.

    On the diagonal they agree. The numbers at a classifier's points are rows.
    """
    check_is_fitted(gp)
    ax = axes_or_new(ax, (4.6, 4.6))
    ax.plot([0, 1], [0, 1], color=DATA, ls="--", lw=1, label="perfect")
    if is_classifier(gp):
        found = reliability_curve(gp, X, y)
        ax.plot(found.predicted, found.observed, marker="o", color=MEAN, label="observed")
        for place, share, count in zip(found.predicted, found.observed, found.counts, strict=True):
            offset = (5, 4) if share < 0.5 else (5, -11)
            ax.annotate(
                str(count), (place, share), offset, textcoords="offset points", fontsize=8,
                color="0.35",
            )  # fmt: skip
        two = len(gp.classes_) == 2
        event = f"label is {gp.classes_[1]}" if two else "predicted label is right"
        ax.set_xlabel(f"probability that the {event}")
        ax.set_ylabel("how often it is")
    else:
        ax.plot(*coverage_curve(gp, X, y), marker="o", ms=4, color=MEAN, label="observed")
        ax.set_xlabel("coverage that central intervals promise")
        ax.set_ylabel("share of observations inside")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, 1.02)
    ax.set_aspect("equal")
    tidy(ax)
    ax.legend(loc="upper left", frameon=False)
    return ax
