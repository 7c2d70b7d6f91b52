"""A table to a matrix by scikit-learn, with the transformer made anew from a plan."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from orthogp.apps.tabular.plan import LevelColumn, NumberColumn, Plan
from orthogp.apps.tabular.reading import Column, as_numbers, as_texts, listed
from orthogp.errors import DataError

Matrix = NDArray[np.float64]
# An unseen level has no column of its own: the encoder gives zeros.
UNSEEN = -1.0


@dataclass
class Tally:
    """What was met on the way, by column: how often a level was new, or a value missing."""

    unseen: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def add(self, counts: dict[str, int], name: str, count: int) -> None:
        if count:
            counts[name] = counts.get(name, 0) + count


class Encoder:
    """Rows of a table to rows of a matrix, as the plan says."""

    def __init__(self, plan: Plan):
        self.plan = plan
        # Fitted to two rows that have these medians, and gaps where an indicator is to be.
        medians = np.array([column.median for column in plan.numbers])
        gaps = np.array([column.indicator for column in plan.numbers], dtype=bool)
        example = np.zeros((2, len(plan.numbers) + len(plan.levels)))
        example[:, : len(medians)] = medians
        example[1, : len(medians)][gaps] = np.nan
        self.transformer = new_transformer(plan.levels, len(medians)).fit(example)

    def encode(self, table: pa.Table | pa.RecordBatch, tally: Tally) -> Matrix:
        """The matrix of these rows; its columns have `plan.sources`."""
        raw = raw_matrix(table, self.plan, tally)
        if self.plan.missing == "refuse" and tally.missing:
            raise DataError(missing_refused(tally.missing))
        if len(raw) == 0:
            # scikit-learn transforms no fewer than one row.
            return np.empty((0, len(self.plan.sources)))
        return np.asarray(self.transformer.transform(raw))


def new_transformer(levels: tuple[LevelColumn, ...], num_numbers: int) -> ColumnTransformer:
    """Unfitted; the matrix it takes has the numbers first, then a code for each level column."""
    codes: Any = [np.arange(column.codes, dtype=np.float64) for column in levels]
    parts = [
        ("numbers", SimpleImputer(strategy="median", add_indicator=True), slice(0, num_numbers)),
        (
            "levels",
            OneHotEncoder(categories=codes, handle_unknown="ignore", sparse_output=False),
            slice(num_numbers, None),
        ),
    ]
    present = [bool(num_numbers), bool(levels)]
    kept = [part for part, there in zip(parts, present, strict=True) if there]
    return ColumnTransformer(kept, sparse_threshold=0.0)


def learn_medians(names: tuple[str, ...], columns: list[Matrix]) -> tuple[NumberColumn, ...]:
    """What the imputer finds in these columns of numbers, none of which is all missing."""
    if not names:
        return ()
    fitted = new_transformer((), len(names)).fit(np.stack(columns, axis=1))
    imputer = fitted.named_transformers_["numbers"]
    indicated = set(imputer.indicator_.features_.tolist())
    medians = zip(names, imputer.statistics_.tolist(), strict=True)
    return tuple(
        NumberColumn(name, median, i in indicated) for i, (name, median) in enumerate(medians)
    )


def raw_matrix(table: pa.Table | pa.RecordBatch, plan: Plan, tally: Tally) -> Matrix:
    """Numbers with NaN where they are missing, then the codes of levels."""
    raw = np.empty((table.num_rows, len(plan.numbers) + len(plan.levels)))
    for i, column in enumerate(plan.numbers):
        raw[:, i] = finite_numbers(table.column(column.name), column.name)
        tally.add(tally.missing, column.name, int(np.isnan(raw[:, i]).sum()))
    for i, column in enumerate(plan.levels, len(plan.numbers)):
        raw[:, i] = _codes(table.column(column.name), column, tally)
    return raw


def finite_numbers(column: Column, name: str) -> Matrix:
    values = as_numbers(column)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise DataError(f"the column {name!r} has {infinite} infinite values; mend or drop them")
    return values


def _codes(values: Column, column: LevelColumn, tally: Tally) -> Matrix:
    strings = as_texts(values)
    known = pa.array([*column.levels, *column.pooled], type=strings.type)
    places = pc.index_in(strings, value_set=known)  # pyright: ignore
    places = places.fill_null(int(UNSEEN))
    codes = np.minimum(places.to_numpy(zero_copy_only=False), len(column.levels)).astype(np.float64)
    gaps = np.asarray(strings.is_null().to_numpy(zero_copy_only=False))
    tally.add(tally.unseen, column.name, int(((codes == UNSEEN) & ~gaps).sum()))
    tally.add(tally.missing, column.name, int(gaps.sum()))
    if column.missing:
        codes[gaps] = column.codes - 1
    return codes


def missing_refused(counts: dict[str, int]) -> str:
    named = listed(list(counts), counts)
    return (
        f"there are missing values, which the model refuses, in {named}; fill them in, drop these "
        "rows or columns, or fit with --missing impute"
    )
