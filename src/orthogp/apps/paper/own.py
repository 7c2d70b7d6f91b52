"""Columns of our own, on the paper's splits: the estimators' defaults and boosted trees."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from orthogp.apps.paper.datasets import Split
from orthogp.apps.paper.metrics import (
    HALF_WIDTH,
    INTERVAL,
    Array,
    classification_metrics,
    regression_metrics,
)
from orthogp.apps.paper.records import HistoryRow
from orthogp.errors import ConfigurationError

# NGBoost takes minutes beyond.
NGBOOST_ROWS = 60_000


@dataclass(frozen=True)
class FitResult:
    """What a fit left behind, for its record."""

    settings: dict[str, Any]
    metrics: dict[str, float]
    costs: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    recoveries: int = 0
    seconds: float = 0.0
    history: list[HistoryRow] = field(default_factory=list)


def run_default(split: Split, regression: bool, seed: int, device: str, folder: Path) -> FitResult:
    """`OrthogonalGPRegressor()` or `OrthogonalGPClassifier()`, nothing set."""
    from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

    x, y = split.x_test, split.y_test
    if regression:
        gp = OrthogonalGPRegressor(device=device, random_state=seed, checkpoint_dir=folder)
        gp.fit(split.x_train, split.y_train)
        low, high = gp.predict_interval(x, INTERVAL)
        mean = np.asarray(gp.predict(x))
        metrics = regression_metrics(y, mean, gp.log_density(x, y), low, high)
    else:
        gp = OrthogonalGPClassifier(device=device, random_state=seed, checkpoint_dir=folder)
        gp.fit(split.x_train, split.y_train)
        metrics = classification_metrics(y, gp.classes_, gp.predict_proba(x))
    rows = len(split.x_train)
    history = [
        {"step": r["step"], "seconds": r["seconds"], "bound": r["bound"] / rows}
        for r in gp.history_
    ]
    return FitResult(
        settings={"estimator": type(gp).__name__, "random_state": seed},
        metrics=metrics | {"bound": gp.elbo_ / rows},
        steps=gp.n_iter_,
        seconds=history[-1]["seconds"],
        history=history,
    )


def run_boosting(split: Split, regression: bool, seed: int) -> FitResult:
    """scikit-learn's boosted trees; for regression with a Gaussian around them.

    Its width is that of the residuals of a tenth of the training rows that were held out.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if not regression:
        trees = HistGradientBoostingClassifier(random_state=seed)
        trees.fit(split.x_train, split.y_train)
        probabilities = trees.predict_proba(split.x_test)
        metrics = classification_metrics(split.y_test, np.asarray(trees.classes_), probabilities)
        return FitResult({"estimator": type(trees).__name__, "random_state": seed}, metrics)
    trees = HistGradientBoostingRegressor(random_state=seed)
    held_out = max(1, len(split.x_train) // 10)
    trees.fit(split.x_train[held_out:], split.y_train[held_out:])
    residuals = split.y_train[:held_out] - trees.predict(split.x_train[:held_out])
    deviation = np.full(len(split.y_test), max(1e-6, float(np.sqrt(np.mean(residuals**2)))))
    metrics = _gaussian_metrics(split.y_test, trees.predict(split.x_test), deviation)
    return FitResult({"estimator": type(trees).__name__, "random_state": seed}, metrics)


def run_ngboost(split: Split, seed: int) -> FitResult:
    if len(split.x_train) > NGBOOST_ROWS:
        raise ConfigurationError(
            f"NGBoost is left out beyond {NGBOOST_ROWS:,} training rows, where it takes too long; "
            f"here are {len(split.x_train):,}"
        )
    try:
        from ngboost import NGBRegressor  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigurationError("NGBoost is not installed: pip install ngboost") from error
    model = NGBRegressor(random_state=seed, verbose=False)
    found = model.fit(split.x_train, split.y_train).pred_dist(split.x_test)
    metrics = _gaussian_metrics(split.y_test, found.loc, found.scale)
    return FitResult({"estimator": "NGBRegressor", "random_state": seed}, metrics)


def _gaussian_metrics(y: Array, mean: Array, deviation: Array) -> dict[str, float]:
    low, high = mean - HALF_WIDTH * deviation, mean + HALF_WIDTH * deviation
    return regression_metrics(y, mean, norm.logpdf(y, mean, deviation), low, high)
