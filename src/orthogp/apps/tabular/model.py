"""A model of a table: an estimator, and how the table's columns become its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.apps.tabular.encoding import Encoder, Matrix
from orthogp.apps.tabular.plan import Plan
from orthogp.apps.tabular.targets import as_column
from orthogp.errors import FileError
from orthogp.estimators import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.storage import load_model

Estimator = OrthogonalGPClassifier | OrthogonalGPRegressor
ESTIMATORS: dict[str, type[Estimator]] = {
    "regression": OrthogonalGPRegressor,
    "classification": OrthogonalGPClassifier,
}


@dataclass(frozen=True)
class TableModel:
    """`target` and `id_column` are names of columns; None for a table that has no id."""

    estimator: Estimator
    encoder: Encoder
    target: str
    id_column: str | None

    @property
    def plan(self) -> Plan:
        return self.encoder.plan

    @property
    def task(self) -> str:
        classifies = isinstance(self.estimator, OrthogonalGPClassifier)
        return "classification" if classifies else "regression"

    def save(self, path: Path) -> None:
        """One file of data; the estimator's own `load` reads it too, without the columns."""
        description = {
            "task": self.task,
            "target": self.target,
            "id": self.id_column,
            "plan": self.plan.as_json(),
        }
        self.estimator.save(path, {"table": description})

    @staticmethod
    def load(path: Path) -> "TableModel":
        """Reads what `save` wrote; any other file is a `FileError`."""
        saved = load_model(path)
        description = _description(saved.meta, path)
        try:
            plan = Plan.from_json(description["plan"])
            target, id_column = description["target"], description["id"]
            if not isinstance(target, str) or not isinstance(id_column, str | None):
                raise FileError("its target or its id is not a name")
            kind = ESTIMATORS[description["task"]]
        except (FileError, KeyError, TypeError) as error:
            reason = error if isinstance(error, FileError) else "its description is not whole"
            raise FileError(f"{path} cannot be loaded as a model of a table: {reason}") from error
        estimator = kind.from_saved(saved, path)
        if estimator.n_features_in_ != len(plan.sources):
            raise FileError(
                f"{path} cannot be loaded as a model of a table: its columns make "
                f"{len(plan.sources)} inputs and its estimator has {estimator.n_features_in_}"
            )
        return TableModel(estimator, Encoder(plan), target, id_column)

    def predictions(self, X: Matrix, levels: Sequence[float]) -> dict[str, pa.Array]:
        """Columns by name: mean, std and the quantiles at `levels`, or label and probabilities."""
        if isinstance(self.estimator, OrthogonalGPClassifier):
            return _classified(self.estimator, X)
        if not levels:
            mean, std = self.estimator.predict(X, return_std=True)
            columns = []
        else:
            mean, std, quantiles = self.estimator.predict_summary(X, list(levels))
            columns = quantiles.T
        named = {f"q{q:g}": column for q, column in zip(levels, columns, strict=True)}
        found = {"mean": mean, "std": std, **named}
        return {name: pa.array(np.ascontiguousarray(column)) for name, column in found.items()}


def class_names(classes: NDArray[Any]) -> list[str]:
    """Labels as a table writes them."""
    return [str(label).lower() if type(label) is bool else str(label) for label in classes.tolist()]


def _classified(estimator: OrthogonalGPClassifier, X: Matrix) -> dict[str, pa.Array]:
    probabilities = estimator.predict_proba(X)
    labels = as_column(estimator.classes_[probabilities.argmax(axis=1)])
    columns = zip(class_names(estimator.classes_), probabilities.T, strict=True)
    return {"label": labels} | {
        f"p_{name}": pa.array(np.ascontiguousarray(column)) for name, column in columns
    }


def _description(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    extra = meta.get("extra")
    description = extra.get("table") if isinstance(extra, dict) else None
    if not isinstance(description, dict):
        raise FileError(
            f"{path} holds a model without the columns of a table; `orthogp fit` writes one with "
            "them, and in Python its estimator's load reads this one"
        )
    return description
