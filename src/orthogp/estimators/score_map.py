"""Skewed inputs as the normal scores of their quantiles: a map of which nothing is learned."""

import numpy as np
from numpy.typing import NDArray

from orthogp.estimators.scaling import Array, Ramps
from orthogp.tables.monotone import normal_scores, suitable_transform


def score_map(x: Array) -> tuple[NDArray[np.float64], Ramps] | None:
    """The map in which skewed columns of x are their normal scores, and all others as they are.

    A score is a sum of ramps between the knots of its transform. None where no column is skewed.
    """
    count = x.shape[1]
    skewed = [j for j in range(count) if suitable_transform(x[:, j]) is not None]
    if not skewed:
        return None
    scores = [normal_scores(x[:, j]) for j in skewed]
    source = np.repeat(skewed, [len(score.x) - 1 for score in scores])
    low = np.concatenate([score.x[:-1] for score in scores])
    high = np.concatenate([score.x[1:] for score in scores])
    linear_map = np.zeros((count, count + len(source)))
    others = np.setdiff1d(np.arange(count), skewed)
    linear_map[others, others] = 1.0
    rises = np.concatenate([np.diff(score.z) for score in scores])
    linear_map[source, count + np.arange(len(source))] = rises
    return linear_map, Ramps(source, low, high)
