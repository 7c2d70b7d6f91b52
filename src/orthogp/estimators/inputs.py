"""From what a user passes as X to the inputs of a model: one treatment of columns for every fit."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.checks import (
    Columns,
    checked_array,
    checked_names,
    missing_targets,
    targets_where,
)
from orthogp.estimators.scaling import Array
from orthogp.tables import (
    ByName,
    Described,
    Encoded,
    Encoder,
    Learning,
    OutOfFold,
    Plan,
    Tally,
    array_table,
    as_table,
    finite_numbers,
    is_table,
    named_categories,
    number_inputs,
    number_plan,
    plain_plan,
)

# Numbers with NaN for gaps, or a table whose columns are named as the plan has them.
RawRows: TypeAlias = Array | pa.Table
# Folds of the target statistics are the same in every fit, as a fit that continues another needs.
FOLD_SEED = 0


class GapsError(DataError):
    """Missing values, or columns that are not numbers, where no plan says what to do with them."""


def checked_rows(
    estimator: type, X: Any, columns: Columns | None, plan: Plan | None = None
) -> tuple[RawRows, Columns]:
    """X as it is to be encoded, and its columns, which must be those given, if any.

    `plan` is that of a fitted model, None before there is one.
    """
    X = X.table if isinstance(X, Described) else X
    if is_table(X):
        found = checked_names(estimator, X, columns)
        table = as_table(X)
        if not table.num_rows or not table.num_columns:
            raise DataError(
                f"X has {table.num_rows} rows and {table.num_columns} columns; expected some"
            )
        return table.rename_columns(found.labels), found
    numbers_only = plan is None or not (plan.levels or plan.statistics or plan.dates)
    if numbers_only:
        return checked_array(estimator, X, columns)
    found = checked_names(estimator, values := np.asarray(X, dtype=object), columns)
    return array_table(values, found.labels), found


def rows_where(X: RawRows, chosen: NDArray[np.bool_]) -> RawRows:
    return X[chosen] if isinstance(X, np.ndarray) else X.filter(pa.array(chosen))


class Part(NamedTuple):
    """Some rows of what `fit` is given."""

    X: Any
    y: NDArray
    weight: Any


class TableRows:
    """What `fit` is given, in memory, of which any rows can be taken that have a target."""

    def __init__(self, X: Any, y: Any, sample_weight: Any, missing: str):
        if y is None or isinstance(y, str) or isinstance(X, str | Path):
            raise ConfigurationError(
                "coverage_guarantee needs X and y in memory; pass arrays or tables"
            )
        self.X, self.table = X, X.table if isinstance(X, Described) else X
        self.rows = as_table(self.table) if is_table(self.table) else np.asarray(self.table)
        self.y = np.asarray(y)
        self.weight = None if sample_weight is None else np.asarray(sample_weight)
        if isinstance(self.rows, np.ndarray) and self.rows.ndim != 2:
            raise DataError(f"X has shape {self.rows.shape}; expected rows and columns, (n, d)")
        if len(self.rows) != len(self.y):
            count = len(self.rows)
            raise DataError(f"X has {count} rows and y has {len(self.y)}; expected as many")
        present = ~missing_targets(self.y) if missing == "drop" else np.ones(len(self.y), bool)
        self.present = np.flatnonzero(present)

    def __len__(self) -> int:
        return len(self.present)

    def take(self, places: NDArray[np.int64]) -> Part:
        """The rows at these places among those that have a target."""
        chosen, weight = self.present[places], self.weight
        weight = weight if weight is None or weight.ndim == 0 else weight[chosen]
        if hasattr(self.table, "iloc"):
            taken = self.table.iloc[chosen]
        else:
            rows = self.rows
            taken = rows[chosen] if isinstance(rows, np.ndarray) else rows.take(chosen)
        taken = replace(self.X, table=taken) if isinstance(self.X, Described) else taken
        return Part(taken, targets_where(self.y, chosen), weight)


def learn_plan(
    settings: Mapping[str, Any],
    X: RawRows,
    columns: Columns,
    targets: Array | None,
    described: Learning | None = None,
) -> Plan:
    """What each column is; `targets` are those of target statistics, None for none of them."""
    labels = columns.labels
    categorical, by_type = named_categories(settings["categorical_features"], labels)
    if isinstance(X, np.ndarray) and not categorical:
        return number_plan(X, labels)
    # An array keeps every column; of a table those that say nothing are left out.
    learning = described or Learning(tidy=not isinstance(X, np.ndarray))
    table = X if isinstance(X, pa.Table) else array_table(X, labels)
    learning = replace(learning, categorical=categorical, by_type=by_type, targets=targets)
    return learning.plan(table)


def encode_rows(plan: Plan | None, X: RawRows, targets: Array | None = None) -> Array:
    """The inputs of rows; `targets` are given for rows of training, whose statistics are out of
    fold."""
    if plan is None:
        # Models of format 1.7 and before know numbers alone.
        return _complete_numbers(X)
    if isinstance(X, np.ndarray):
        if not plan.levels and not plan.statistics and not plan.dropped:
            return number_inputs(plan, X)
        X = array_table(X, plan.order)
    training = None if targets is None else OutOfFold(targets, FOLD_SEED)
    return Encoder(plan).encode(X, Tally(), training)


def encoded(estimator: type, X: Any, columns: Columns, plan: Plan | None) -> Array:
    """The inputs of new rows."""
    if isinstance(X, Encoded):
        return X.matrix
    if isinstance(X, ByName):
        return Encoder(plan or plain_plan(columns.labels)).encode(X.table, Tally())
    rows, _ = checked_rows(estimator, X, columns, plan)
    return encode_rows(plan, rows)


def _complete_numbers(rows: RawRows) -> Array:
    X = _plain_numbers(rows) if isinstance(rows, pa.Table) else rows
    missing = int(np.isnan(X).sum())
    if missing:
        raise GapsError(
            f"X has {missing} values that are NaN; the model was fitted before gaps were learned: "
            "fit it anew, or fill them in"
        )
    return X


def _plain_numbers(table: pa.Table) -> Array:
    """The columns of a table of numbers, with NaN for gaps."""
    plan = Learning(tidy=False, missing="refuse").plan(table)
    if not plan.plain:
        raise GapsError("X has columns that are not numbers; the model was fitted to numbers")
    columns = [finite_numbers(table.column(c.name), c.name) for c in plan.numbers]
    return np.stack(columns, axis=1)
