"""From a table to a matrix, by a plan."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orthogp.apps.tabular.plan import LevelColumn, Plan
from orthogp.apps.tabular.reading import Column, as_numbers, as_texts, listed
from orthogp.errors import DataError

Matrix = NDArray[np.float64]
# The code of a level that training has not seen, which has no column in the matrix.
UNSEEN = -1


@dataclass
class Tally:
    """How many values were unseen levels, and how many missing, by column."""

    unseen: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def add(self, counts: dict[str, int], name: str, count: int) -> None:
        if count:
            counts[name] = counts.get(name, 0) + count


class Encoder:
    """Rows of a table to rows of a matrix: the numbers with missing values imputed, an indicator of
    missing values for the columns that have one, then the levels one-hot."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def encode(self, table: pa.Table | pa.RecordBatch, tally: Tally) -> Matrix:
        """The matrix of these rows; its columns have `plan.sources`."""
        plan, X = self.plan, np.zeros((table.num_rows, len(self.plan.sources)))
        start = len(plan.numbers)
        for i, column in enumerate(plan.numbers):
            values = finite_numbers(table.column(column.name), column.name)
            missing = np.isnan(values)
            tally.add(tally.missing, column.name, int(missing.sum()))
            X[:, i] = np.where(missing, column.median, values)
            if column.indicator:
                X[:, start] = missing
                start += 1
        for column in plan.levels:
            codes = _codes(table.column(column.name), column, tally)
            seen = np.flatnonzero(codes != UNSEEN)
            X[seen, start + codes[seen]] = 1
            start += column.codes
        if plan.missing == "refuse" and tally.missing:
            raise DataError(missing_refused(tally.missing))
        return X


def finite_numbers(column: Column, name: str) -> Matrix:
    values = as_numbers(column)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise DataError(f"the column {name!r} has {infinite} infinite values; mend or drop them")
    return values


def _codes(values: Column, column: LevelColumn, tally: Tally) -> NDArray[np.int32]:
    """Which of the level's columns is 1 in each row, or `UNSEEN`."""
    strings = as_texts(values)
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
