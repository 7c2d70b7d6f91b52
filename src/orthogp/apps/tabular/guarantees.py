"""Guaranteed intervals and sets of classes: their columns, their promise, their share of test rows.

A model has them that was fitted with `--coverage-guarantee`.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.apps.tabular.model import TableModel, class_names
from orthogp.estimators import OrthogonalGPClassifier
from orthogp.estimators.conformal import CrossScores, promised_share
from orthogp.tables import ByName

DEFAULT_COVERAGE = 0.9
# Between the classes of a set; one within a name has a backslash before it.
SEPARATOR = "|"


def is_guaranteed(model: TableModel) -> bool:
    return model.estimator._fitted.scores is not None


def guaranteed_names(model: TableModel, coverage: float) -> list[str]:
    """The columns of predictions that a guaranteed model has besides."""
    classifies = isinstance(model.estimator, OrthogonalGPClassifier)
    parts = ("set",) if classifies else ("lower", "upper")
    return [f"guaranteed_{part}_{coverage:g}" for part in parts]


def promise(model: TableModel, coverage: float) -> str:
    """What is promised of these columns, in a sentence; a coverage beyond the rows is refused."""
    scores = model.estimator._fitted.scores
    assert scores is not None
    share = promised_share(scores, coverage)
    usual = f" (about {coverage:g} is usual)" if isinstance(scores, CrossScores) else ""
    classifies = isinstance(model.estimator, OrthogonalGPClassifier)
    what = "holds the right class" if classifies else "hold the target"
    return (
        f"{' to '.join(guaranteed_names(model, coverage))} {what} of a share of {share:.4g} or "
        f"more{usual} of new rows, guaranteed on average over rows that are exchangeable with "
        "those of the fit"
    )


def guaranteed_columns(
    model: TableModel, table: pa.Table | pa.RecordBatch, coverage: float
) -> dict[str, pa.Array]:
    """The ends of intervals, or the sets of classes as text, by name."""
    names = guaranteed_names(model, coverage)
    if not isinstance(model.estimator, OrthogonalGPClassifier):
        return dict(zip(names, map(pa.array, _intervals(model, table, coverage)), strict=True))
    classes = class_names(model.estimator.classes_)
    escaped = np.array([name.replace(SEPARATOR, rf"\{SEPARATOR}") for name in classes])
    sets = [SEPARATOR.join(escaped[chosen]) for chosen in _sets(model, table, coverage)]
    return {names[0]: pa.array(sets, pa.string())}


def guaranteed_figures(model: TableModel, table: pa.Table, y: NDArray[Any]) -> dict[str, float]:
    """The share of rows whose target is inside, and how large intervals or sets are."""
    if not isinstance(model.estimator, OrthogonalGPClassifier):
        low, high = _intervals(model, table, DEFAULT_COVERAGE)
        return {
            "guaranteed_coverage_90": float(((y >= low) & (y <= high)).mean()),
            "guaranteed_width_90": float((high - low).mean()),
        }
    chosen = _sets(model, table, DEFAULT_COVERAGE)
    right = np.asarray(y)[:, None] == model.estimator.classes_
    return {
        "set_coverage_90": float((chosen & right).any(axis=1).mean()),
        "set_size_90": float(chosen.sum(axis=1).mean()),
    }


def _intervals(
    model: TableModel, table: pa.Table | pa.RecordBatch, coverage: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    assert not isinstance(model.estimator, OrthogonalGPClassifier)
    # By name: the fits without a fold have plans of their own.
    return model.estimator.predict_interval(ByName(model.cleaned(table)), coverage)  # pyright: ignore


def _sets(
    model: TableModel, table: pa.Table | pa.RecordBatch, coverage: float
) -> NDArray[np.bool_]:
    assert isinstance(model.estimator, OrthogonalGPClassifier)
    return model.estimator.predict_set(ByName(model.cleaned(table)), coverage)  # pyright: ignore
