"""What each column of a table is, and the plan for it, learned from the rows of training."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from orthogp.errors import ConfigurationError, DataError
from orthogp.tables.arrow import (
    Column,
    Matrix,
    as_levels,
    as_numbers,
    as_texts,
    decoded,
    finite_numbers,
    kind_of,
    listed,
)
from orthogp.tables.dates import learn_dates, other_form, text_form
from orthogp.tables.encoding import missing_refused
from orthogp.tables.imputation import learn_imputation
from orthogp.tables.monotone import suitable_transform
from orthogp.tables.plan import (
    AnyColumn,
    DateColumn,
    DroppedColumn,
    LevelColumn,
    NumberColumn,
    Plan,
    StatisticsColumn,
)
from orthogp.tables.statistics import learn_statistics

# A column of more levels has target statistics, or without targets an input for each of the most
# frequent and one for the others together.
MOST_LEVELS = 30
# From this share of distinct values on, a column of text names its rows rather than describes them.
NAMES_ROWS = 0.9
FEWEST_NAMED = 20
# A gap has an input of its own from this share of the rows on: fewer teach nothing.
GAPS_MARKED = 0.01
# A value of a number has an input of its own where it has a share of the rows between these, is so
# many times as frequent as the next, and there are so many other values: counts and codes do not.
FREQUENT_SHARES, STANDS_OUT, FEWEST_OTHERS = (0.1, 0.9), 5, 20
# Names that are given to row numbers and keys, in lower case.
KEYS = re.compile(
    r"(unnamed: ?\d+|index|idx|rowid|row|row[ _]?(id|nr|no|number)|id|.*[ _]id|uuid|)"
)


@dataclass(frozen=True)
class Learning:
    """The rules by which columns of a table become inputs.

    `targets` are numbers `(n, t)` for target statistics, None where there are to be none.

    `tidy` leaves out constants and identifiers; `text_dates` reads text of common forms as dates.
    """

    categorical: frozenset[str] = frozenset()
    by_type: bool = True
    missing: str = "impute"
    targets: Matrix | None = None
    tidy: bool = True
    text_dates: bool = False

    def plan(self, table: pa.Table) -> Plan:
        """The plan for every column of these rows."""
        columns = {name: self._column(name, table.column(name)) for name in table.column_names}
        plan = Plan(
            _of(columns, NumberColumn),
            _of(columns, LevelColumn),
            self.missing,
            _of(columns, StatisticsColumn),
            _of(columns, DateColumn),
            _of(columns, DroppedColumn),
            tuple(table.column_names),
        )
        if not plan.sources:
            raise DataError("no column is left to learn from: every one is constant or left out")
        if self.missing == "refuse":
            return plan
        numbers = ((c.name, as_numbers(table.column(c.name))) for c in plan.numbers)
        return replace(plan, imputation=learn_imputation(numbers))

    def _column(self, name: str, column: Column) -> AnyColumn:
        kind, type_name = kind_of(column.type), _type_name(column.type)
        is_category = types.is_dictionary(column.type) and self.by_type
        if name in self.categorical:
            kind, is_category = ("number" if kind == "number" else "text"), True
        if kind == "empty" or column.null_count == len(column):
            return DroppedColumn(name, "constant", "every value is missing")
        if kind == "other":
            raise DataError(
                f"the column {name!r:.60} is of type {column.type}; expected numbers, text, truth "
                "values, dates or times: convert it or leave it out"
            )
        form = text_form(column) if kind == "text" and self.text_dates else None
        if form is not None or (kind == "time" and not types.is_duration(column.type)):
            return self._dates(name, column, form)
        if not is_category and kind == "text" and types.is_dictionary(column.type):
            inner = kind_of(column.type.value_type)
            kind = inner if inner in ("number", "bool") else kind
        if kind in ("number", "time", "bool") and not is_category:
            return self._number(name, column, type_name)
        return self._levels(name, kind, column, type_name)

    def _number(self, name: str, column: Column, type_name: str) -> AnyColumn:
        values = finite_numbers(column, name)
        found = number_column(name, values, self.tidy, type_name, types.is_integer(column.type))
        is_bool = isinstance(found, NumberColumn) and kind_of(decoded(column).type) == "bool"
        return replace(found, kind="bool") if is_bool else found

    def _levels(self, name: str, kind: str, column: Column, type_name: str) -> AnyColumn:
        strings = as_levels(column, kind)
        counts = strings.drop_null().value_counts().to_pylist()
        count, missing, rows = len(counts), strings.null_count, len(strings)
        gaps = f", {missing} missing" if missing else ""
        reason = f"{type_name} with {count} level{'s' if count != 1 else ''}{gaps}"
        if self.tidy and count + bool(missing) < 2:
            return DroppedColumn(name, "constant", f"one value in every row ({type_name})")
        many = count > MOST_LEVELS
        distinct = count > max(FEWEST_NAMED, NAMES_ROWS * (rows - missing))
        if self.tidy and many and distinct and name not in self.categorical:
            reason = f"{count} distinct values in {rows} rows ({type_name})"
            return DroppedColumn(name, "identifier", reason)
        if many and self.targets is not None:
            return learn_statistics(name, kind, column, self.targets, reason)
        # By frequency, and where that is equal by name: the order of rows must not matter.
        ordered = [c["values"] for c in sorted(counts, key=lambda c: (-c["counts"], c["values"]))]
        frequent, pooled = sorted(ordered[:MOST_LEVELS]), sorted(ordered[MOST_LEVELS:])
        return LevelColumn(name, kind, tuple(frequent), tuple(pooled), missing > 0, reason)

    def _dates(self, name: str, column: Column, form: str | None) -> AnyColumn:
        found = learn_dates(name, column, form, GAPS_MARKED)
        if not found.parts:
            return DroppedColumn(name, "constant", f"one date in every row ({found.reason})")
        other = None if form is None else other_form(column, form)
        if other is None:
            return found
        return replace(found, reason=f"{found.reason}; {other} would fit as well")


def without_gap_indicators(plan: Plan) -> Plan:
    """The plan without indicators of the gaps that the other numbers of a row fill."""
    filled = () if plan.imputation is None else plan.imputation.names
    numbers = tuple(
        replace(c, indicator=c.indicator and c.name not in filled) for c in plan.numbers
    )
    return replace(plan, numbers=numbers)


def with_transforms(plan: Plan, table: pa.Table) -> Plan:
    """The plan with the transforms that may suit its skewed numbers in these rows."""
    numbers = tuple(
        replace(c, transform=suitable_transform(as_numbers(table.column(c.name))))
        if c.kind == "number"
        else c
        for c in plan.numbers
    )
    return replace(plan, numbers=numbers)


def with_frequent_values(plan: Plan, table: pa.Table) -> Plan:
    """The plan with an input for the frequent value of every column of numbers that has one."""
    numbers = tuple(
        _with_frequent_value(c, as_numbers(table.column(c.name))) if c.kind == "number" else c
        for c in plan.numbers
    )
    return replace(plan, numbers=numbers)


def _with_frequent_value(column: NumberColumn, values: Matrix) -> NumberColumn:
    found = frequent_value(values)
    if found is None:
        return column
    value, share = found
    return replace(
        column, frequent_value=value, reason=f"{column.reason}, {value:g} in {share:.0%}"
    )


def frequent_value(values: Matrix) -> tuple[float, float] | None:
    """The value that stands out of numbers with NaN for gaps, and its share; None where none does.

    Such a column mixes two: whether there was any rain, and how much. A smooth function of the
    amount alone has no step between them.
    """
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if len(distinct) <= FEWEST_OTHERS:
        return None
    most, second = np.sort(counts)[[-1, -2]]
    share = float(counts.max() / counts.sum())
    least, largest = FREQUENT_SHARES
    if not least <= share <= largest or most < STANDS_OUT * second:
        return None
    return float(distinct[counts.argmax()]), share


@dataclass(frozen=True)
class Described:
    """A table with its own rules for what its columns are, in place of an estimator's settings."""

    table: pa.Table
    learning: Learning

    @property
    def shape(self) -> tuple[int, int]:
        return self.table.shape


def number_column(
    name: str, values: Matrix, tidy: bool, type_name: str, whole: bool
) -> NumberColumn | DroppedColumn:
    """The plan for a column of numbers with NaN for gaps."""
    present = values[~np.isnan(values)]
    gaps = len(values) - len(present)
    if not len(present):
        return DroppedColumn(name, "constant", "every value is missing")
    # Whether the number is missing may still be informative.
    if tidy and not gaps and bool((present == present[0]).all()):
        return DroppedColumn(name, "constant", f"{present[0]:g} in every row")
    if tidy and whole and (why := _key(name, present)):
        return DroppedColumn(name, "identifier", why)
    marked = gaps > 0 and gaps >= GAPS_MARKED * len(values)
    reason = f"{type_name}, {gaps} missing" if gaps else type_name
    return NumberColumn(name, float(np.median(present)), marked, reason)


def _key(name: str, values: Matrix) -> str:
    """Why whole numbers are row numbers or keys; empty where they are not."""
    if len(values) < FEWEST_NAMED or not KEYS.fullmatch(name.strip().lower()):
        return ""
    if len(np.unique(values)) < len(values):
        return ""
    consecutive = np.ptp(values) == len(values) - 1
    what = "consecutive whole numbers" if consecutive else "whole numbers, all distinct,"
    return f"{what} under the name of a key; rename the column to use it"


def number_plan(X: Matrix, names: Sequence[str]) -> Plan:
    """The plan for an array of numbers: every column is one, and none is left out."""
    columns = [number_column(n, X[:, i], False, "number", False) for i, n in enumerate(names)]
    empty = [c.name for c in columns if isinstance(c, DroppedColumn)]
    if empty and len(empty) == len(columns):
        raise DataError("every value of X is missing; there is nothing to learn from")
    plan = Plan(
        tuple(c for c in columns if isinstance(c, NumberColumn)),
        dropped=tuple(c for c in columns if isinstance(c, DroppedColumn)),
        order=tuple(names),
    )
    numbers = ((n, X[:, i]) for i, n in enumerate(names) if n not in empty)
    return replace(plan, imputation=learn_imputation(numbers))


def plain_plan(names: Sequence[str]) -> Plan:
    """The plan of a model that knows its columns as complete numbers and no more."""
    return Plan(tuple(NumberColumn(name, 0.0, False) for name in names), order=tuple(names))


def named_categories(given: Any, names: Sequence[str]) -> tuple[frozenset[str], bool]:
    """The columns that are categories whatever their type, and whether types count besides.

    As scikit-learn has it: "from_dtype", None, a list of names or of numbers, or a mask.
    """
    if given is None:
        return frozenset(), False
    if isinstance(given, str):
        if given != "from_dtype":
            raise ConfigurationError(
                f"categorical_features is {given!r}; expected 'from_dtype', None, a list of names "
                "or numbers of columns, or a mask"
            )
        return frozenset(), True
    items = np.asarray(given, dtype=object).reshape(-1).tolist()
    if items and all(isinstance(item, bool | np.bool_) for item in items):
        if len(items) != len(names):
            raise ConfigurationError(
                f"categorical_features is a mask of {len(items)} columns; X has {len(names)}"
            )
        return frozenset(n for n, chosen in zip(names, items, strict=True) if chosen), True
    found = set()
    for item in items:
        is_place = isinstance(item, int | np.integer) and -len(names) <= item < len(names)
        if not is_place and item not in names:
            raise ConfigurationError(
                f"categorical_features names {item!r:.60}; X has {listed(list(names))}"
            )
        found.add(names[int(item)] if is_place else str(item))
    return frozenset(found), True


def require_complete(table: pa.Table) -> None:
    """Refuses missing values, by column and count."""
    counts = {name: _count_missing(table.column(name)) for name in table.column_names}
    gaps = {name: count for name, count in counts.items() if count}
    if gaps:
        raise DataError(missing_refused(gaps))


def _count_missing(column: Column) -> int:
    kind = kind_of(column.type)
    if kind == "number":
        return int(np.isnan(as_numbers(column)).sum())
    return as_texts(column).null_count if kind in ("text", "bool") else column.null_count


def _type_name(kind: pa.DataType) -> str:
    if types.is_dictionary(kind):
        return f"category of {_type_name(kind.value_type)}"
    return "text" if kind_of(kind) == "text" else str(kind)


def _of(columns: Mapping[str, AnyColumn], kind: type) -> tuple[Any, ...]:
    return tuple(column for column in columns.values() if isinstance(column, kind))
