"""How a table becomes a matrix, as plain data for a model file."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orthogp.errors import FileError

POLICIES = ("impute", "refuse")


@dataclass(frozen=True)
class NumberColumn:
    """A missing value becomes the median; with `indicator` another column is 1 where it was."""

    name: str
    median: float
    indicator: bool


@dataclass(frozen=True)
class LevelColumn:
    """One encoded column for each of `levels`, one for all of `pooled` together, if there are
    any, and one for missing values, if training had them; `kind` is text or bool."""

    name: str
    kind: str
    levels: tuple[str, ...]
    pooled: tuple[str, ...]
    missing: bool

    @property
    def codes(self) -> int:
        """How many encoded columns it has."""
        return len(self.levels) + bool(self.pooled) + self.missing


@dataclass(frozen=True)
class Plan:
    """The inputs of a model; `missing` is whether missing values are imputed or refused."""

    numbers: tuple[NumberColumn, ...]
    levels: tuple[LevelColumn, ...]
    missing: str

    @property
    def kinds(self) -> dict[str, str]:
        """The kind that each column must have."""
        return dict.fromkeys((c.name for c in self.numbers), "number") | {
            c.name: c.kind for c in self.levels
        }

    @property
    def sources(self) -> tuple[str, ...]:
        """The column of the table behind each column of the matrix."""
        indicators = [c.name for c in self.numbers if c.indicator]
        encoded = [c.name for c in self.levels for _ in range(c.codes)]
        return (*(c.name for c in self.numbers), *indicators, *encoded)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> "Plan":
        """The reverse of `as_json`, for untrusted input; a wrong one is a FileError."""
        try:
            plan = Plan(
                tuple(_number_column(column) for column in value["numbers"]),
                tuple(_level_column(column) for column in value["levels"]),
                _one_of(value["missing"], POLICIES),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileError("its description of the table's columns is not one") from error
        if len(plan.kinds) != len(plan.numbers) + len(plan.levels):
            raise FileError("it names a column of the table twice")
        return plan


def _number_column(value: Mapping[str, Any]) -> NumberColumn:
    median = value["median"]
    if type(median) is not float or not math.isfinite(median):
        raise ValueError("a median is no number")
    return NumberColumn(_text(value["name"]), median, _truth(value["indicator"]))


def _level_column(value: Mapping[str, Any]) -> LevelColumn:
    column = LevelColumn(
        _text(value["name"]),
        _one_of(value["kind"], ("text", "bool")),
        tuple(map(_text, _list(value["levels"]))),
        tuple(map(_text, _list(value["pooled"]))),
        _truth(value["missing"]),
    )
    all_levels = (*column.levels, *column.pooled)
    if len(set(all_levels)) != len(all_levels) or column.codes == 0:
        raise ValueError("levels are not distinct")
    return column


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("no truth value")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) not in (list, tuple):
        raise TypeError("no list")
    return value


def _one_of(value: Any, expected: tuple[str, ...]) -> str:
    if value not in expected:
        raise ValueError("not one of those expected")
    return value
