"""Records by data set and method, and which of them count."""

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from orthogp.apps.paper import published
from orthogp.apps.paper.experiments import METHODS, OWN_METHODS
from orthogp.apps.paper.records import Record
from orthogp.apps.paper.tables.model import METRICS, ResultCell
from orthogp.errors import ConfigurationError

FULL_STEPS = 20_000
PAPER_METHODS = {
    "regression": published.REGRESSION_COLUMNS,
    "classification": published.CLASSIFICATION_COLUMNS,
}
NO_DATA = "no data set here"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Grid:
    """The records of one experiment: (data set, method) → split → record.

    A record of a method of the paper counts only with `full_steps` steps or more.
    """

    task: str
    records: dict[tuple[str, str], dict[int, Record]]
    full_steps: int

    @property
    def paper_methods(self) -> tuple[str, ...]:
        return PAPER_METHODS[self.task]

    @property
    def own_methods(self) -> tuple[str, ...]:
        """Methods in the records that the paper does not have."""
        found = dict.fromkeys(method for _, method in self.records)
        ordered = [m for m in OWN_METHODS[self.task] if m in found]
        return tuple(dict.fromkeys([*ordered, *(m for m in found if m not in self.paper_methods)]))

    @property
    def found(self) -> tuple[str, ...]:
        """Data sets that have a record, the paper's first and in its order."""
        names = dict.fromkeys(dataset for dataset, _ in self.records)
        paper = [name for name in published.sizes(self.task) if name in names]
        return tuple(dict.fromkeys([*paper, *names]))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The paper's data sets in its order, then others that have a record."""
        return tuple(dict.fromkeys([*published.sizes(self.task), *self.found]))

    def cell(self, dataset: str, method: str, metric: str) -> ResultCell:
        """The mean over the splits that count, without the paper's figure."""
        records = self.records.get((dataset, method), {}).values()
        reasons = [self.exclusion_reason(record, metric) for record in records]
        counted = tuple(r for r, why in zip(records, reasons, strict=True) if not why)
        if not records:
            return ResultCell(missing=NOT_RUN if dataset in self.found else NO_DATA)
        if not counted:
            return ResultCell(missing="; ".join(dict.fromkeys(reasons)))
        mean, error = mean_and_error([record.metrics[metric] for record in counted])
        return ResultCell(mean, error, records=counted)

    def paired(self, dataset: str, methods: Iterable[str], metric: str) -> dict[str, ResultCell]:
        """Cells to compare with each other: means over the splits that all of them have."""
        cells = {method: self.cell(dataset, method, metric) for method in methods}
        splits = [{r.job.split for r in cell.records} for cell in cells.values() if cell.records]
        common = set.intersection(*splits) if splits else set()
        return {method: _restricted(cell, common, metric) for method, cell in cells.items()}

    def with_paper_value(
        self, dataset: str, method: str, metric: str, column: str | None = None
    ) -> ResultCell:
        """The cell with the paper's figure, where the paper has one; `column` is its method."""
        ours = self.cell(dataset, method, metric)
        paper = published.figures(self.task, metric).get(dataset, {}).get(column or method)
        return ResultCell(ours.value, ours.error, paper, missing=ours.missing, records=ours.records)

    def excluded(self, dataset: str, method: str, metric: str) -> list[str]:
        """Splits that do not count, and why, of a cell that has others that do."""
        records = self.records.get((dataset, method), {})
        reasons = {split: self.exclusion_reason(r, metric) for split, r in sorted(records.items())}
        if all(reasons.values()):
            return []
        return [f"{dataset} {method} split {n}: {why}" for n, why in reasons.items() if why]

    def exclusion_reason(self, record: Record, metric: str) -> str:
        """Why a record does not count; empty when it does."""
        if record.status != "done":
            return f"failed: {textwrap.shorten(record.reason or 'no reason recorded', 160)}"
        if record.job.method in METHODS and record.steps < self.full_steps:
            return f"only {spaced(record.steps)} of {spaced(self.full_steps)} steps"
        if not record.commit:
            return "no commit recorded"
        if not record.machine:
            return "no machine recorded"
        if metric not in record.metrics:
            return f"no {metric} recorded"
        if not math.isfinite(record.metrics[metric]):
            return f"{metric} is {record.metrics[metric]}"
        return ""


def build_grid(records: Iterable[Record], experiment: str, full_steps: int = FULL_STEPS) -> Grid:
    """The grid of an experiment, of records of any; of two records of one job the later counts."""
    if experiment not in METRICS:
        raise ConfigurationError(
            f"there are tables of {' and '.join(METRICS)} only, none of {experiment!r}"
        )
    grid: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        job = record.job
        if job.experiment == experiment:
            grid.setdefault((job.dataset, job.method), {})[job.split] = record
    return Grid(experiment, grid, full_steps)


def _restricted(cell: ResultCell, splits: set[int], metric: str) -> ResultCell:
    """The cell over these splits alone."""
    records = tuple(record for record in cell.records if record.job.split in splits)
    if cell.value is None or len(records) == len(cell.records):
        return cell
    if not records:
        return ResultCell(missing="no split in common")
    mean, error = mean_and_error([record.metrics[metric] for record in records])
    return ResultCell(mean, error, records=records)


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """The mean, and its standard error of two values or more."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (count - 1) / count)


def spaced(count: int) -> str:
    """20000 as 20 000."""
    return f"{count:,}".replace(",", " ")
