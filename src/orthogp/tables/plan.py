"""How the columns of a table become the inputs of a model, as plain data for a file.

The inputs are in this order: the numbers, the indicators of their gaps, those of their frequent
values, the levels one-hot, the target statistics, the parts of dates.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from orthogp.errors import FileError
from orthogp.tables.arrow import Matrix
from orthogp.tables.imputation import GaussianColumn, Imputation
from orthogp.tables.monotone import Monotone

POLICIES = ("impute", "refuse")
# Inputs of a part of a date: two of a cycle, its sine and cosine.
DATE_PARTS = {"trend": 1, "time of day": 2, "day of week": 2, "day of year": 2}
# Bits of a digest.
MOST_MARKS = 256
T = TypeVar("T")


@dataclass(frozen=True)
class NumberColumn:
    """A number. A missing one is filled by the plan's `imputation`, or with the median where that
    has not the column; with `indicator` another input is 1 where it was missing.

    `kind` is number, or bool for truth values, which are 0 and 1. With a `transform` the input is a
    monotone function of the number. With a `frequent_value`, which much of the column has,
    another input is 1 where the number is that."""

    name: str
    median: float
    indicator: bool
    reason: str = ""
    kind: str = "number"
    transform: Monotone | None = None
    frequent_value: float | None = None

    def transformed(self, values: Matrix) -> Matrix:
        """The input for numbers without gaps."""
        return values if self.transform is None else self.transform(values)


@dataclass(frozen=True)
class LevelColumn:
    """One input for each of `levels`, one for all of `pooled` together, if there are any, and one
    for missing values, if training had them; `kind` is text, bool or number.

    They share a lengthscale. A level that training has not seen is zero in all of them, as far from
    every level as from any other."""

    name: str
    kind: str
    levels: tuple[str, ...]
    pooled: tuple[str, ...]
    missing: bool
    reason: str = ""

    @property
    def codes(self) -> int:
        """How many inputs it has."""
        return len(self.levels) + bool(self.pooled) + self.missing


@dataclass(frozen=True)
class StatisticsColumn:
    """The mean targets of a level, shrunk towards that of all rows, the log of its count, and its
    marks: so many signs from a digest of its name, by which the model tells levels from each other.

    The marks are nearly as far from each other as one-hot inputs, and far fewer. `values` and
    `counts` are those of `levels`, then of missing values where `missing`; `prior` is what every
    other level has; `smoothing` is how many rows the prior counts for.
    """

    name: str
    kind: str
    levels: tuple[str, ...]
    missing: bool
    counts: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    prior: tuple[float, ...]
    smoothing: tuple[float, ...]
    marks: int
    reason: str = ""

    @property
    def codes(self) -> int:
        """How many inputs it has."""
        return len(self.prior) + 1 + self.marks


@dataclass(frozen=True)
class DateColumn:
    """Days since `origin`, and cycles, in the time zone of training; `form` is that of text.

    A missing date is the `median` of the trend and the middle of every cycle.
    """

    name: str
    parts: tuple[str, ...]
    origin: float
    median: float
    zone: str | None
    form: str | None
    indicator: bool
    reason: str = ""

    @property
    def codes(self) -> int:
        """How many inputs it has."""
        return sum(DATE_PARTS[part] for part in self.parts) + self.indicator


@dataclass(frozen=True)
class DroppedColumn:
    """A column that is no input: `kind` is what it was taken for."""

    name: str
    kind: str
    reason: str


AnyColumn = NumberColumn | LevelColumn | StatisticsColumn | DateColumn | DroppedColumn


@dataclass(frozen=True)
class Plan:
    """The inputs of a model; `missing` is whether missing values are imputed or refused.

    `order` has the names of all columns as the table had them. Where numbers were missing in
    training, `imputation` fills them in.
    """

    numbers: tuple[NumberColumn, ...]
    levels: tuple[LevelColumn, ...] = ()
    missing: str = "impute"
    statistics: tuple[StatisticsColumn, ...] = ()
    dates: tuple[DateColumn, ...] = ()
    dropped: tuple[DroppedColumn, ...] = ()
    order: tuple[str, ...] = ()
    imputation: Imputation | None = None

    @property
    def columns(self) -> dict[str, AnyColumn]:
        """Every column by name, in the order of the table."""
        parts = (*self.numbers, *self.levels, *self.statistics, *self.dates, *self.dropped)
        by_name: dict[str, AnyColumn] = {column.name: column for column in parts}
        return {name: by_name[name] for name in self.order or by_name}

    @property
    def kinds(self) -> dict[str, str]:
        """The kind that each column must have which is an input."""
        return {c.name: c.kind for c in (*self.numbers, *self.levels, *self.statistics)} | {
            c.name: "time" if c.form is None else "text" for c in self.dates
        }

    @property
    def plain(self) -> bool:
        """Whether every column is a number without an indicator: inputs are the columns."""
        others = (self.levels, self.statistics, self.dates, self.dropped, self.with_frequent_value)
        changed = any(c.indicator or c.transform is not None for c in self.numbers)
        return not any(others) and not changed

    @property
    def with_frequent_value(self) -> tuple[NumberColumn, ...]:
        """The numbers of which one value is frequent."""
        return tuple(c for c in self.numbers if c.frequent_value is not None)

    def filled(self, numbers: Matrix) -> Matrix:
        """The columns of numbers with their gaps, which are NaN, filled."""
        filled = numbers.copy()
        if self.imputation is not None:
            places = {column.name: i for i, column in enumerate(self.numbers)}
            chosen = [places[name] for name in self.imputation.names]
            filled[:, chosen] = self.imputation.fill(numbers[:, chosen])
        return np.where(np.isnan(filled), [column.median for column in self.numbers], filled)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The column of the table behind each input."""
        indicators = [c.name for c in self.numbers if c.indicator]
        others = (*self.levels, *self.statistics, *self.dates)
        encoded = [c.name for c in others for _ in range(c.codes)]
        frequent = [c.name for c in self.with_frequent_value]
        return (*(c.name for c in self.numbers), *indicators, *frequent, *encoded)

    @cached_property
    def groups(self) -> tuple[int, ...] | None:
        """The number of each input's lengthscale; None where every input has its own."""
        indicators = sum(c.indicator for c in self.numbers) + len(self.with_frequent_value)
        sizes = [1] * (len(self.numbers) + indicators)
        sizes += [column.codes for column in self.levels]
        for column in self.statistics:
            sizes += [len(column.prior), 1, *([column.marks] if column.marks else [])]
        for column in self.dates:
            sizes += [*(DATE_PARTS[part] for part in column.parts), *[1] * column.indicator]
        if all(size == 1 for size in sizes):
            return None
        return tuple(group for group, size in enumerate(sizes) for _ in range(size))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> "Plan":
        """The reverse of `as_json`, for untrusted input; a wrong one is a FileError."""
        try:
            plan = Plan(
                _columns(value["numbers"], _number_column),
                _columns(value["levels"], _level_column),
                _one_of(value["missing"], POLICIES),
                # Files of format 1.7 and before have none of these.
                _columns(value.get("statistics", ()), _statistics_column),
                _columns(value.get("dates", ()), _date_column),
                _columns(value.get("dropped", ()), _dropped_column),
                tuple(map(_text, _list(value.get("order", ())))),
                # Files of format 1.9 and before fill every gap with the median.
                _imputation(value.get("imputation")),
            )
            names = [c.name for part in _parts(plan) for c in part]
            if plan.imputation is not None:
                _require_distinct(plan.imputation.names)
                if not set(plan.imputation.names) <= {c.name for c in plan.numbers}:
                    raise ValueError("the imputation is not that of the numbers")
            if plan.order and sorted(plan.order) != sorted(names):
                raise ValueError("the order is not one of the columns")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError("its description of the table's columns is not one") from error
        if len(set(names)) != len(names):
            raise FileError("it names a column of the table twice")
        return plan


def _parts(plan: Plan) -> tuple[tuple[AnyColumn, ...], ...]:
    return plan.numbers, plan.levels, plan.statistics, plan.dates, plan.dropped


def _columns(value: Any, read: Callable[[Mapping[str, Any]], T]) -> tuple[T, ...]:
    return tuple(read(column) for column in _list(value))


def _number_column(value: Mapping[str, Any]) -> NumberColumn:
    return NumberColumn(
        _text(value["name"]),
        _finite(value["median"]),
        _truth(value["indicator"]),
        _reason(value),
        _one_of(value.get("kind", "number"), ("number", "bool")),
        _transform(value.get("transform")),
        None if value.get("frequent_value") is None else _finite(value["frequent_value"]),
    )


def _transform(value: Mapping[str, Any] | None) -> Monotone | None:
    if value is None:
        return None
    knots = (tuple(map(_finite, _list(value[name]))) for name in ("x", "z"))
    return Monotone(_text(value["kind"]), *knots)


def _imputation(value: Mapping[str, Any] | None) -> Imputation | None:
    if value is None:
        return None
    rows = (tuple(map(_finite, _list(row))) for row in _list(value["covariance"]))
    return Imputation(_columns(value["columns"], _gaussian_column), tuple(rows))


def _gaussian_column(value: Mapping[str, Any]) -> GaussianColumn:
    column = GaussianColumn(
        _text(value["name"]),
        _finite(value["center"]),
        _finite(value["scale"]),
        _finite(value["lowest"]),
        _finite(value["highest"]),
        _transform(value["transform"]),
    )
    if not column.scale > 0 or not column.lowest < column.highest:
        raise ValueError("the column does not vary")
    return column


def _level_column(value: Mapping[str, Any]) -> LevelColumn:
    column = LevelColumn(
        _text(value["name"]),
        _one_of(value["kind"], ("text", "bool", "number")),
        tuple(map(_text, _list(value["levels"]))),
        tuple(map(_text, _list(value["pooled"]))),
        _truth(value["missing"]),
        _reason(value),
    )
    _require_distinct((*column.levels, *column.pooled))
    if column.codes == 0:
        raise ValueError("there are no levels")
    return column


def _statistics_column(value: Mapping[str, Any]) -> StatisticsColumn:
    column = StatisticsColumn(
        _text(value["name"]),
        _one_of(value["kind"], ("text", "bool", "number")),
        tuple(map(_text, _list(value["levels"]))),
        _truth(value["missing"]),
        tuple(map(_count, _list(value["counts"]))),
        tuple(tuple(map(_finite, _list(row))) for row in _list(value["values"])),
        tuple(map(_finite, _list(value["prior"]))),
        tuple(map(_finite, _list(value["smoothing"]))),
        _count(value["marks"]),
        _reason(value),
    )
    _require_distinct(column.levels)
    rows, width = len(column.levels) + column.missing, len(column.prior)
    widths = {len(row) for row in column.values} | {len(column.smoothing)}
    if column.marks > MOST_MARKS:
        raise ValueError("there are more marks than a digest has bits")
    if (len(column.counts), len(column.values)) != (rows, rows) or widths != {width} or not width:
        raise ValueError("the statistics are not those of the levels")
    return column


def _date_column(value: Mapping[str, Any]) -> DateColumn:
    column = DateColumn(
        _text(value["name"]),
        tuple(_one_of(part, tuple(DATE_PARTS)) for part in _list(value["parts"])),
        _finite(value["origin"]),
        _finite(value["median"]),
        None if value["zone"] is None else _text(value["zone"]),
        None if value["form"] is None else _text(value["form"]),
        _truth(value["indicator"]),
        _reason(value),
    )
    _require_distinct(column.parts)
    return column


def _dropped_column(value: Mapping[str, Any]) -> DroppedColumn:
    return DroppedColumn(_text(value["name"]), _text(value["kind"]), _text(value["reason"]))


def _reason(value: Mapping[str, Any]) -> str:
    return _text(value.get("reason", ""))


def _require_distinct(names: tuple[str, ...]) -> None:
    if len(set(names)) != len(names):
        raise ValueError("names are not distinct")


def _finite(value: Any) -> float:
    if type(value) not in (float, int) or not math.isfinite(value):
        raise ValueError("no finite number")
    return float(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no count")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("no truth value")
    return value


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if type(value) not in (list, tuple):
        raise TypeError("no list")
    return value


def _one_of(value: Any, expected: tuple[str, ...]) -> str:
    if value not in expected:
        raise ValueError("not one of those expected")
    return value
