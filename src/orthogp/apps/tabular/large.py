"""Tables that are not read whole: a sample to plan by, and the rest block after block."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.apps.tabular.reading import ParquetSource
from orthogp.apps.tabular.suspicions import without_values
from orthogp.apps.tabular.targets import target_values
from orthogp.sources import RowBlock, Source
from orthogp.sources.parquet import group_outline
from orthogp.tables import Described, Learning

SAMPLE_ROWS = 2**18


class StreamedTable(Source):
    """Row groups without the test rows and those without a target."""

    concurrent = True

    def __init__(self, survey: "Survey", learning: Learning, test: NDArray[np.int64]):
        self.survey, self.learning = survey, learning
        starts = np.cumsum([0, *survey.sizes])
        firsts = np.searchsorted(test, starts)
        self.left_out = [
            test[firsts[k] : firsts[k + 1]] - starts[k] for k in range(len(survey.sizes))
        ]
        self.sizes = tuple(
            present - len(absent)
            for present, absent in zip(survey.present, self.left_out, strict=True)
        )

    def read(self, number: int) -> RowBlock:
        table = self.survey.table(number)
        values, present = target_values(table.column(0), self.survey.name, self.survey.task)
        selected = present.copy()
        selected[self.left_out[number]] = False
        rows = table.drop_columns([self.survey.name]).filter(pa.array(selected))
        return RowBlock(Described(rows, self.learning), values[selected[present]])

    def place(self, number: int) -> str:
        return self.survey.place(number)

    def outline(self) -> Iterator[bytes]:
        yield f"{self.learning} {self.survey.missing_values}".encode()
        for group in self.survey.groups:
            yield group_outline(group)


@dataclass
class Survey:
    """One pass over a table: a sample of its rows, and what must be known of every block.

    `rows` are those of the sample, counted over the whole table; `missing_values` are numbers that
    stand for missing values.
    """

    source: ParquetSource
    name: str
    inputs: list[str]
    groups: list[Any]
    sizes: list[int]
    present: list[int]
    labels: set[Any]
    rows: NDArray[np.int64]
    sample: pa.Table
    task: str = ""
    missing_values: tuple[float, ...] = ()

    @staticmethod
    def of(
        source: ParquetSource,
        target: str,
        inputs: list[str],
        seed: int,
        missing_values: tuple[float, ...] = (),
    ) -> "Survey":
        groups = source.groups()
        sizes = [group.row_groups[0].num_rows for group in groups]
        empty = pa.table({})
        found = Survey(
            source, target, inputs, groups, sizes, [], set(), np.empty(0, np.int64), empty,
            missing_values=missing_values,
        )  # fmt: skip
        rng, total = np.random.default_rng(seed), sum(sizes)
        chosen = np.sort(rng.choice(total, min(total, SAMPLE_ROWS), replace=False))
        starts, parts = np.cumsum([0, *sizes]), []
        firsts = np.searchsorted(chosen, starts)
        for number in range(len(groups)):
            table = found.table(number)
            found.count(table.column(0))
            rows = chosen[firsts[number] : firsts[number + 1]] - starts[number]
            parts.append(table.take(pa.array(rows)))
        found.rows, found.sample = chosen, pa.concat_tables(parts)
        return found

    def table(self, number: int) -> pa.Table:
        """The target and the inputs of one block."""
        found = self.source.read_group(self.groups[number], [self.name, *self.inputs])
        return without_values(found, self.missing_values)

    def place(self, number: int) -> str:
        group = self.groups[number]
        return f"row group {group.row_groups[0].id} of {group.path}"

    def count(self, column: pa.ChunkedArray) -> None:
        """Notes how many targets there are, and their values while those may be classes."""
        values, present = target_values(column, self.name, "")
        self.present.append(int(present.sum()))
        if len(self.labels) <= SAMPLE_ROWS:
            self.labels |= set(np.unique(values).tolist())
