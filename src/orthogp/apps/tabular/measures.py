"""How good a model is on rows it has not seen, where it errs, and which columns it uses."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.apps.tabular.model import Estimator, class_names
from orthogp.estimators import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.tables import Encoded, Matrix

Row = dict[str, Any]
Relevance = tuple[tuple[str, float], ...]
COVERAGE = 0.9
LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))
GROUPS = 10
MOST_CONFUSIONS = 10


@dataclass(frozen=True)
class Measures:
    """`figures` by name; the tables are rows of one shape each, empty where they do not apply.

    calibration: `stated` and `observed` shares; residuals: by the size of the prediction;
    classes: counts of each; confusions: which classes are taken for which.
    """

    figures: dict[str, float]
    calibration: tuple[Row, ...]
    residuals: tuple[Row, ...] = ()
    classes: tuple[Row, ...] = ()
    confusions: tuple[Row, ...] = ()


def measure(
    estimator: Estimator, X: Encoded | Matrix, y: NDArray[Any], y_train: NDArray[Any]
) -> Measures:
    if isinstance(estimator, OrthogonalGPClassifier):
        return _classification(estimator, X, y, y_train)
    return _regression(estimator, X, y, y_train)


def _regression(
    estimator: OrthogonalGPRegressor, X: Encoded | Matrix, y: NDArray[Any], y_train: NDArray[Any]
) -> Measures:
    mean, _, quantiles = estimator.predict_summary(X, LEVELS)
    low, high = quantiles[:, LEVELS.index(0.05)], quantiles[:, LEVELS.index(0.95)]
    residuals = y - mean
    spread = float(((y - y.mean()) ** 2).mean())
    squared = float((residuals**2).mean())
    figures = {
        "rmse": squared**0.5,
        "mae": float(np.abs(residuals).mean()),
        "r2": 1 - squared / spread if spread > 0 else float("nan"),
        "log_density": float(estimator.log_density(X, y).mean()),
        "coverage_90": float(((y >= low) & (y <= high)).mean()),
        "width_90": float((high - low).mean()),
        "rmse_of_the_mean": float(((y - y_train.mean()) ** 2).mean() ** 0.5),
    }
    observed = (y[:, None] <= quantiles).mean(axis=0).tolist()
    calibration = tuple(
        {"stated": level, "observed": share} for level, share in zip(LEVELS, observed, strict=True)
    )
    return Measures(figures, calibration, residuals=_residual_groups(mean, residuals))


def _residual_groups(mean: NDArray[Any], residuals: NDArray[Any]) -> tuple[Row, ...]:
    """Rows in groups of one size, from the smallest predictions to the largest."""
    groups = np.array_split(np.argsort(mean, kind="stable"), min(GROUPS, len(mean)))
    names = ("low", "median", "high")
    return tuple(
        {"prediction": float(mean[rows].mean())}
        | dict(zip(names, np.quantile(residuals[rows], [0.05, 0.5, 0.95]).tolist(), strict=True))
        | {"rows": len(rows)}
        for rows in groups
    )


def _classification(
    estimator: OrthogonalGPClassifier, X: Encoded | Matrix, y: NDArray[Any], y_train: NDArray[Any]
) -> Measures:
    probabilities = estimator.predict_proba(X)
    names = class_names(estimator.classes_)
    places = {label: i for i, label in enumerate(estimator.classes_.tolist())}
    true = np.array([places[label] for label in y.tolist()])
    trained = np.array([places[label] for label in y_train.tolist()])
    predicted = probabilities.argmax(axis=1)
    hits = predicted == true
    commonest = np.bincount(trained, minlength=len(names)).argmax()
    figures = {
        "accuracy": float(hits.mean()),
        "log_likelihood": float(estimator.log_density(X, y).mean()),
        "brier": float(((probabilities - np.eye(len(names))[true]) ** 2).sum(axis=1).mean()),
        "accuracy_of_the_commonest_class": float((true == commonest).mean()),
    }
    classes = tuple(
        {
            "class": name,
            "training": int((trained == i).sum()),
            "test": int((true == i).sum()),
            "predicted": int((predicted == i).sum()),
            "right": int((hits & (true == i)).sum()),
        }
        for i, name in enumerate(names)
    )
    pairs = Counter(zip(true[~hits].tolist(), predicted[~hits].tolist(), strict=True))
    confusions = tuple(
        {"class": names[one], "taken_for": names[other], "rows": count}
        for (one, other), count in pairs.most_common(MOST_CONFUSIONS)
    )
    calibration = _reliability(probabilities.max(axis=1), hits)
    return Measures(figures, calibration, classes=classes, confusions=confusions)


def _reliability(confidence: NDArray[Any], hits: NDArray[Any]) -> tuple[Row, ...]:
    """How often the most probable class is right, by its predicted probability."""
    bins = np.minimum((confidence * GROUPS).astype(int), GROUPS - 1)
    return tuple(
        {
            "stated": float(confidence[bins == i].mean()),
            "observed": float(hits[bins == i].mean()),
            "rows": int((bins == i).sum()),
        }
        for i in range(GROUPS)
        if (bins == i).any()
    )
