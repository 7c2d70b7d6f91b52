"""Conformal intervals and sets: a share of new rows that is promised, not estimated.

Split: rows that no part of a fit has seen are scored. With n of them exchangeable with a new row,
its score is at most the ⌈(n + 1) c⌉-th smallest with probability c or more, whatever the model and
the distribution of the data.

Cross (CV+): every row is scored by a fit to the other folds, so that none is held out. A target y
of x is in the set where its scores s_k(x, y), by the fit without fold k, are above fewer than
(n + 1) c of the scores R_i of the rows i, each compared for the fold of i. With α = 1 − c and K
folds of n / K rows the set holds the target of a new, exchangeable row with probability
1 − 2α − min{2 (1 − 1/K) / (n/K + 1), (1 − K/n) / (K + 1)} or more (R. Barber, E. Candès, A. Ramdas
and R. Tibshirani, Predictive inference with the jackknife+, Annals of Statistics, 2021). About c is
usual.

Both promises are marginal: they are about new rows on average, not about every x.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import ConfigurationError
from orthogp.estimators.scaling import Array

# Of the rows of a fit, and at most so many: the promise holds for any number, and is sharp for
# hundreds.
HELD_OUT_SHARE, MOST_HELD_OUT, FEWEST_HELD_OUT = 0.2, 2000, 20
FOLDS = 5


@dataclass(frozen=True)
class CrossScores:
    """The estimators fitted without each fold, and the scores and the fold of every row."""

    estimators: tuple[Any, ...]
    scores: NDArray[np.float64]
    folds: NDArray[np.int64]


def fold_rows(count: int, seed: int) -> NDArray[np.int64]:
    """The fold of every row, drawn at random, all of nearly one size."""
    if count < 2 * FEWEST_HELD_OUT:
        raise ConfigurationError(
            f"coverage_guarantee needs {2 * FEWEST_HELD_OUT} rows or more, and there are {count}; "
            "fit without it"
        )
    return np.random.default_rng(seed).permutation(np.arange(count) % FOLDS)


def cross_bounds(low: NDArray, high: NDArray, coverage: float) -> tuple[NDArray, NDArray]:
    """The ⌊(n + 1) α⌋-th smallest of lower ends `[n, …]`, and the ⌈(n + 1) c⌉-th of upper ones."""
    rank = rank_of(len(low), coverage)
    first, last = len(low) - rank, rank - 1
    return np.partition(low, first, axis=0)[first], np.partition(high, last, axis=0)[last]


def rank_of(count: int, coverage: float) -> int:
    """⌈(n + 1) c⌉, which must not be above n."""
    rank = math.ceil((count + 1) * coverage - 1e-9)
    if rank > count:
        raise ConfigurationError(
            f"coverage {coverage} needs {math.ceil(coverage / (1 - coverage))} rows that were "
            f"scored to promise it, and there are {count}; fit to more rows, or ask for less"
        )
    return rank


def promised_share(scores: Array | CrossScores, coverage: float) -> float:
    """The share of new, exchangeable rows that intervals or sets of this coverage hold at least."""
    if not isinstance(scores, CrossScores):
        rank_of(len(scores), coverage)
        return coverage
    count = len(scores.scores)
    rank_of(count, coverage)
    # 1 − 2α − min{2 (1 − 1/K) / (n/K + 1), (1 − K/n) / (K + 1)}
    lost = min(
        2 * (1 - 1 / FOLDS) / (count / FOLDS + 1),
        (1 - FOLDS / count) / (FOLDS + 1),
    )
    return max(0.0, 2 * coverage - 1 - lost)


def split_rows(count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to fit to, and rows to score, drawn at random, each in the order of the table."""
    scored = min(MOST_HELD_OUT, max(FEWEST_HELD_OUT, round(HELD_OUT_SHARE * count)))
    if count < 2 * FEWEST_HELD_OUT:
        raise ConfigurationError(
            f"coverage_guarantee holds out rows, {FEWEST_HELD_OUT} or more, and there are "
            f"{count} in all; expected {2 * FEWEST_HELD_OUT}, or fit without it"
        )
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[scored:]), np.sort(order[:scored])


def threshold(scores: Array, coverage: float) -> float:
    """The ⌈(n + 1) c⌉-th smallest of n scores."""
    return float(np.sort(scores)[rank_of(len(scores), coverage) - 1])


def require_scores(scores: Array | CrossScores | None) -> Array | CrossScores:
    if scores is None:
        raise ConfigurationError(
            "a promise of coverage needs rows that the fit has not seen: set "
            "coverage_guarantee=True before fit (partial_fit forgets it)"
        )
    return scores
