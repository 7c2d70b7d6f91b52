"""A model of a table: an estimator, and what the other columns of the table are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.apps.tabular.suspicions import without_values
from orthogp.apps.tabular.targets import as_column
from orthogp.errors import FileError
from orthogp.estimators import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.estimators.promised import plans_of
from orthogp.storage import load_model
from orthogp.tables import Encoded, Encoder, Plan, Tally

Estimator = OrthogonalGPClassifier | OrthogonalGPRegressor
ESTIMATORS: dict[str, type[Estimator]] = {
    "regression": OrthogonalGPRegressor,
    "classification": OrthogonalGPClassifier,
}


@dataclass(frozen=True)
class TableModel:
    """`target` and `id_column` are names of columns; None for a table that has no id.

    `missing_values` are numbers that stand for missing values in the table.
    """

    estimator: Estimator
    target: str
    id_column: str | None
    missing_values: tuple[float, ...] = ()

    @property
    def plan(self) -> Plan:
        """How the table's columns become inputs."""
        return self.estimator.columns_.plan

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every column that is an input, of this model or of a fit without a fold."""
        plans = plans_of(self.estimator)
        return {name: kind for plan in reversed(plans) for name, kind in plan.kinds.items()}

    def encode(self, table: pa.Table | pa.RecordBatch, tally: Tally) -> Encoded:
        """The inputs of rows, whose columns may come in any order; `tally` counts what is odd."""
        return Encoded(Encoder(self.plan).encode(self.cleaned(table), tally))

    def cleaned(self, table: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
        """The rows without the numbers that stand for missing values."""
        if not self.missing_values:
            return table
        table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        return without_values(table, self.missing_values)

    @property
    def task(self) -> str:
        classifies = isinstance(self.estimator, OrthogonalGPClassifier)
        return "classification" if classifies else "regression"

    def save(self, path: Path) -> None:
        """One file of data; the estimator's own `load` reads it too."""
        description = {
            "task": self.task,
            "target": self.target,
            "id": self.id_column,
            "missing_values": list(self.missing_values),
        }
        self.estimator.save(path, {"table": description})

    @staticmethod
    def load(path: Path) -> "TableModel":
        """Reads what `save` wrote; any other file is a `FileError`."""
        saved = load_model(path)
        description = _description(saved.meta, path)
        try:
            # Of files before format 1.8, whose estimators did not know the columns.
            plan = Plan.from_json(description["plan"]) if "plan" in description else None
            target, id_column = description["target"], description["id"]
            if not isinstance(target, str) or not isinstance(id_column, str | None):
                raise FileError("its target or its id is not a name")
            missing = description.get("missing_values", [])
            if not isinstance(missing, list) or not all(type(v) is float for v in missing):
                raise FileError("its missing values are no numbers")
            kind = ESTIMATORS[description["task"]]
        except (FileError, KeyError, TypeError) as error:
            reason = error if isinstance(error, FileError) else "its description is not whole"
            raise FileError(f"{path} cannot be loaded as a model of a table: {reason}") from error
        estimator = kind.from_saved(saved, path)
        try:
            estimator = estimator if plan is None else estimator.with_plan(plan)
        except FileError as error:
            raise FileError(f"{path} cannot be loaded as a model of a table: {error}") from error
        return TableModel(estimator, target, id_column, tuple(missing))

    def predictions(self, X: Encoded, levels: Sequence[float]) -> dict[str, pa.Array]:
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


def _classified(estimator: OrthogonalGPClassifier, X: Encoded) -> dict[str, pa.Array]:
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
