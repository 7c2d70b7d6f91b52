"""Tables of results as data; `text` (terminal, CSV), `latex` and the report show them."""

from dataclasses import dataclass
from typing import Literal

from orthogp.apps.paper.records import Record

Kind = Literal["summary", "summary-own", "appendix", "coverage"]


@dataclass(frozen=True)
class Metric:
    """`key` names it in records; `digits` are those shown after the point."""

    key: str
    title: str
    digits: int
    higher_is_better: bool | None


LOG_LIKELIHOOD = Metric("log_likelihood", "test log-likelihood, nats a row", 4, True)
RMSE = Metric("rmse", "test RMSE of z-scored targets", 4, False)
ACCURACY = Metric("accuracy", "test accuracy, percent", 2, True)
COVERAGE = Metric("coverage", "test targets inside 90 % intervals, percent", 1, None)
METRICS = {"regression": (LOG_LIKELIHOOD, RMSE), "classification": (LOG_LIKELIHOOD, ACCURACY)}


@dataclass(frozen=True)
class ResultCell:
    """A figure of ours, and the paper's.

    `value` is None where no record counts, and `missing` then says why; both are empty where only
    the paper has a figure, or neither. `error` is a standard error: over splits where there are two
    or more, over data sets for an average rank. `records` are those that `value` is the mean of.
    """

    value: float | None = None
    error: float | None = None
    original: float | None = None
    original_error: float | None = None
    missing: str = ""
    records: tuple[Record, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, where there are both."""
        if self.value is None or self.original is None:
            return None
        return self.value - self.original


@dataclass(frozen=True)
class Row:
    """One cell a column of the table; `higher_is_better` is None where neither end is."""

    name: str
    cells: tuple[ResultCell, ...]
    digits: int
    higher_is_better: bool | None

    def best(self) -> frozenset[int]:
        """The places of our best figure, several where they read the same."""
        values = {i: c.value for i, c in enumerate(self.cells) if c.value is not None}
        if self.higher_is_better is None or not values:
            return frozenset()
        rounded = {i: round(value, self.digits) for i, value in values.items()}
        best = max(rounded.values()) if self.higher_is_better else min(rounded.values())
        return frozenset(i for i, value in rounded.items() if value == best)


@dataclass(frozen=True)
class ResultTable:
    """`name` can be that of a file; `heading` is above the rows' names, `columns` are methods.

    `kind` is what the rows are: "appendix" and "coverage" have one a data set; "summary" has mean,
    median and average rank of the paper's methods, "summary-own" the same with columns of our own.
    """

    name: str
    kind: Kind
    metric: str
    title: str
    heading: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def table_name(task: str, kind: Kind, metric: Metric) -> str:
    parts = (task, kind) if kind == metric.key else (task, kind, metric.key)
    return "-".join(parts).replace("_", "-")
