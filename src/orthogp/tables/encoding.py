"""From a table to a matrix, by a plan."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orthogp.errors import DataError
from orthogp.tables.arrow import Column, Matrix, as_levels, finite_numbers, listed
from orthogp.tables.dates import encode_dates
from orthogp.tables.plan import LevelColumn, Plan
from orthogp.tables.statistics import count_unseen, encode_out_of_fold, encode_statistics

# The code of a level that training has not seen, which has no input.
UNSEEN = -1


@dataclass
class Tally:
    """How many values were unseen levels, and how many missing, by column."""

    unseen: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def add(self, counts: dict[str, int], name: str, count: int) -> None:
        if count:
            counts[name] = counts.get(name, 0) + count


@dataclass(frozen=True)
class Encoded:
    """Rows that a plan has encoded already, in place of a table."""

    matrix: Matrix

    def __len__(self) -> int:
        return len(self.matrix)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.matrix, dtype=dtype, copy=copy)


@dataclass(frozen=True)
class ByName:
    """Rows of a table whose columns any plan finds by their names, in whatever order they are."""

    table: pa.Table | pa.RecordBatch


@dataclass(frozen=True)
class OutOfFold:
    """The targets of the rows of training, and the seed of their folds."""

    targets: Matrix
    seed: int


class Encoder:
    """Rows of a table to rows of a matrix, whose columns have `plan.sources`."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def encode(
        self, table: pa.Table | pa.RecordBatch, tally: Tally, training: OutOfFold | None = None
    ) -> Matrix:
        """The matrix of these rows; rows of `training` have their statistics out of fold."""
        plan, X = self.plan, np.zeros((table.num_rows, len(self.plan.sources)))
        numbers = np.empty((table.num_rows, len(plan.numbers)))
        for i, column in enumerate(plan.numbers):
            numbers[:, i] = finite_numbers(table.column(column.name), column.name)
            tally.add(tally.missing, column.name, int(np.isnan(numbers[:, i]).sum()))
        found = number_inputs(plan, numbers)
        start = found.shape[1]
        X[:, :start] = found
        for column in plan.levels:
            codes = _codes(table.column(column.name), column, tally)
            seen = np.flatnonzero(codes != UNSEEN)
            X[seen, start + codes[seen]] = 1
            start += column.codes
        for column in plan.statistics:
            strings = as_levels(table.column(column.name), column.kind)
            tally.add(tally.missing, column.name, strings.null_count)
            tally.add(tally.unseen, column.name, count_unseen(column, strings))
            if training is None:
                found = encode_statistics(column, strings)
            else:
                found = encode_out_of_fold(column, strings, training.targets, training.seed)
            X[:, start : start + column.codes] = found
            start += column.codes
        for column in plan.dates:
            found, missing = encode_dates(column, table.column(column.name))
            tally.add(tally.missing, column.name, int(missing.sum()))
            X[:, start : start + column.codes] = found
            start += column.codes
        if plan.missing == "refuse" and tally.missing:
            raise DataError(missing_refused(tally.missing))
        return X


def number_inputs(plan: Plan, numbers: Matrix) -> Matrix:
    """The inputs of the plan's columns of numbers, which have NaN for gaps."""
    gaps = np.isnan(numbers)
    if plan.plain and not gaps.any():
        return numbers
    columns = list(zip(plan.numbers, plan.filled(numbers).T, strict=True))
    inputs = [column.transformed(values) for column, values in columns]
    missing = [gaps[:, i] for i, column in enumerate(plan.numbers) if column.indicator]
    frequent = [v == c.frequent_value for c, v in columns if c.frequent_value is not None]
    found: Matrix = np.empty((len(numbers), len(inputs) + len(missing) + len(frequent)))
    for place, values in enumerate([*inputs, *missing, *frequent]):
        found[:, place] = values
    return found


def _codes(values: Column, column: LevelColumn, tally: Tally) -> NDArray[np.int32]:
    """Which of the level's inputs is 1 in each row, or `UNSEEN`."""
    strings = as_levels(values, column.kind)
    trained = pa.array([*column.levels, *column.pooled], type=strings.type)
    places = pc.index_in(strings, value_set=trained).fill_null(UNSEEN)  # pyright: ignore
    codes = np.minimum(places.to_numpy(zero_copy_only=False), len(column.levels))
    missing = np.asarray(strings.is_null().to_numpy(zero_copy_only=False))
    tally.add(tally.unseen, column.name, int(((codes == UNSEEN) & ~missing).sum()))
    tally.add(tally.missing, column.name, int(missing.sum()))
    if column.missing:
        codes[missing] = column.codes - 1
    return codes


def missing_refused(counts: dict[str, int]) -> str:
    named = listed(list(counts), counts)
    return (
        f"there are missing values, which the model refuses, in {named}; fill them in, drop these "
        "rows or columns, or fit with --missing impute"
    )
