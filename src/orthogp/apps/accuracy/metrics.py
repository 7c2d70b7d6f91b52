"""Figures of a predictive distribution on test rows, by the same rules for every model."""

import numpy as np

from orthogp.apps.accuracy.predictive import Array, Predictive
from orthogp.apps.paper.metrics import INTERVAL, regression_metrics

INTERVAL_LEVELS = ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)
# Midpoints of a hundred equal parts of (0, 1).
CRPS_LEVELS = tuple((k + 0.5) / 100 for k in range(100))
CHUNK_ROWS = 20_000


def predictive_metrics(found: Predictive, y: Array) -> dict[str, float]:
    """RMSE, log density, CRPS, and coverage (percent) and mean width of 90 % intervals."""
    low, high = found.quantiles(INTERVAL_LEVELS).T
    metrics = regression_metrics(y, found.mean, found.log_density(y), low, high)
    return metrics | {"crps": crps(found, y), "width": float(np.mean(high - low))}


def crps(found: Predictive, y: Array) -> float:
    """The mean continuous ranked probability score, 2 ∫ pinball loss dq, by a hundred quantiles.

    With q the level of a quantile z the pinball loss is (q − 1[y < z]) (y − z).
    """
    levels = np.asarray(CRPS_LEVELS)
    quantiles, total = found.quantiles(CRPS_LEVELS), 0.0
    # A table of two million rows is not held twice.
    for start in range(0, len(y), CHUNK_ROWS):
        z = quantiles[start : start + CHUNK_ROWS]
        error = y[start : start + CHUNK_ROWS, None] - z
        total += float(((levels - (error < 0)) * error).sum())
    return 2 * total / (len(y) * len(levels))
