"""What `fit` takes, as this process's shard of a table."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.streamed import is_large, loaded
from orthogp.execution.team import current_team
from orthogp.sources import ArrayTable, RowBlock, Shards, Source, as_source
from orthogp.sources.blocks import ARRAY_ROWS, OUTLINED_ROWS
from orthogp.tables import Described, as_table, is_table


class FrameTable(Source):
    """Rows of a DataFrame or an Arrow table in memory, with their targets and weights."""

    def __init__(self, X: Any, y: Any, weight: Any = None):
        self.described = X if isinstance(X, Described) else None
        self.table = as_table(X.table if isinstance(X, Described) else X)
        self.y, self.weight = np.asarray(y), None if weight is None else np.asarray(weight)
        count = self.table.num_rows
        for name, part in (("y", self.y), ("sample_weight", self.weight)):
            if part is not None and part.shape[:1] != (count,):
                raise DataError(f"X has {count} rows and {name} has shape {part.shape}")
        self.sizes = tuple(min(ARRAY_ROWS, count - start) for start in range(0, count, ARRAY_ROWS))

    def read(self, number: int) -> RowBlock:
        start, size = number * ARRAY_ROWS, self.sizes[number]
        rows = slice(start, start + size)
        table = self.table.slice(start, size)
        X = table if self.described is None else replace(self.described, table=table)
        return RowBlock(X, self.y[rows], None if self.weight is None else self.weight[rows])

    def place(self, number: int) -> str:
        start = number * ARRAY_ROWS
        return f"rows {start} to {start + self.sizes[number] - 1}"

    def outline(self) -> Iterator[bytes]:
        stride = -(-self.table.num_rows // OUTLINED_ROWS)
        some = self.table.take(np.arange(0, self.table.num_rows, stride))
        yield str((self.table.shape, some.to_pydict())).encode()
        for part in (self.y, self.weight):
            if part is not None:
                yield part[::stride].astype(str).tobytes()


def as_shards(X: Any, y: Any, sample_weight: Any) -> Shards:
    """The rows of all processes, from those that `fit` was given in this one.

    X is None where a process has none.
    """
    return Shards(current_team().attempt(lambda: _own_rows(X, y, sample_weight)))


def gather_table(table: pa.Table) -> pa.Table:
    """The rows of all processes in every one, each of which calls it with its own."""
    shards = Shards(FrameTable(table, np.zeros(table.num_rows)))
    if is_large(shards):
        raise ConfigurationError(
            f"the shards have {len(shards)} rows in all, more than {shards.memory / 2**30:.0f} GiB "
            "as numbers; fit them in Python, where they are streamed"
        )
    return loaded(shards)[0]


def _own_rows(X: Any, y: Any, sample_weight: Any) -> Source | None:
    if X is None:
        return None
    source = as_source(X, y, sample_weight)
    if source is not None:
        return source
    if y is None:
        raise DataError("y is None; expected as many targets as rows")
    if isinstance(X, Described) or is_table(X):
        return FrameTable(X, y, sample_weight)
    values = np.asarray(X)
    if values.ndim == 2 and not len(values):
        return None
    return ArrayTable(values, y, sample_weight)
