"""Split-conformal intervals and sets: a share of new rows that is promised, not estimated.

Rows that no part of a fit has seen are scored. With n of them exchangeable with a new row, its
score is at most the ⌈(n + 1) c⌉-th smallest with probability c or more, whatever the model and the
distribution of the data. The promise is marginal: it is about new rows on average, not about every
x.
"""

import math

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import ConfigurationError
from orthogp.estimators.scaling import Array

# Of the rows of a fit, and at most so many: the promise holds for any number, and is sharp for
# hundreds.
HELD_OUT_SHARE, MOST_HELD_OUT, FEWEST_HELD_OUT = 0.2, 2000, 20


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
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    if rank > len(scores):
        raise ConfigurationError(
            f"coverage {coverage} needs {math.ceil(coverage / (1 - coverage))} rows that were held "
            f"out to promise it, and there are {len(scores)}; fit to more rows, or ask for less"
        )
    return float(np.sort(scores)[rank - 1])


def require_scores(scores: Array | None) -> Array:
    if scores is None:
        raise ConfigurationError(
            "a promise of coverage needs rows that the fit has not seen: set "
            "coverage_guarantee=True before fit (partial_fit forgets it)"
        )
    return scores
