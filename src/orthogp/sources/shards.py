"""Tables of which every process has some rows and none has all."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from orthogp.errors import DataError
from orthogp.execution.team import current_team
from orthogp.sources.blocks import RowBlock, Source

# In float64, of all shards together. Up to this size every process gets all rows.
GATHERED_BYTES = 2**31
# Columns in an error message.
MOST_NAMED = 5


@dataclass(frozen=True)
class Shape:
    """What all shards of a table have in common.

    `kinds` are those of the columns; None for one without any value, which goes with each.
    """

    names: tuple[str, ...]
    kinds: tuple[str | None, ...]
    target: str
    outputs: tuple[int, ...]
    weighted: bool

    def difference(self, other: "Shape") -> tuple[str, str] | None:
        """What this one has, and what the other has instead; None where they are alike."""
        if self.names != other.names:
            return f"the columns {_listed(self.names)}", _listed(other.names)
        for name, kind, another in zip(self.names, self.kinds, other.kinds, strict=True):
            if kind != another and kind is not None and another is not None:
                return f"{kind} in the column {name}", another
        if (self.target, self.outputs) != (other.target, other.outputs):
            return f"{self._targets()} as targets", other._targets()
        if self.weighted != other.weighted:
            return ("weights", "none") if self.weighted else ("no weights", "some")
        return None

    def _targets(self) -> str:
        count = int(np.prod(self.outputs)) if self.outputs else 0
        return f"{count} columns of {self.target}" if count else self.target


class Shards(Source):
    """The rows of all processes of a group, one process after the other in the order of ranks.

    Every process makes it from its own rows at the same time; `source` is None, or has no rows,
    where a process has none. Up to `memory` bytes in all, as float64, every process gets all rows;
    beyond that they are streamed, and each process reads its own.
    """

    def __init__(self, source: Source | None, memory: int = GATHERED_BYTES):
        self.team, self.source, self.memory = current_team(), source, memory
        found = self.team.collect(self.team.attempt(lambda: _describe(source)))
        sizes = [sizes for sizes, _, _ in found]
        self.sizes = tuple(size for shard in sizes for size in shard)
        self.ranks = tuple(rank for rank, shard in enumerate(sizes) for _ in shard)
        self._first = self.ranks.index(self.team.rank) if self.team.rank in self.ranks else 0
        self._digests = [digest for _, _, digest in found]
        shapes = {rank: shape for rank, (_, shape, _) in enumerate(found) if shape is not None}
        if not shapes:
            raise DataError(f"none of the {self.team.size} processes has any rows")
        _require_alike(shapes)
        shape = next(iter(shapes.values()))
        self.num_bytes = 8 * len(self) * (len(shape.names) + int(np.prod(shape.outputs)))

    def is_here(self, number: int) -> bool:
        """Whether this process can read the block."""
        return self.ranks[number] == self.team.rank

    def read(self, number: int) -> RowBlock:
        """One of this process's own blocks."""
        assert self.source is not None
        return self.source.read(number - self._first)

    def place(self, number: int) -> str:
        assert self.source is not None
        return self.source.place(number - self._first)

    def outline(self) -> Iterator[bytes]:
        yield from self._digests


def _describe(source: Source | None) -> tuple[tuple[int, ...], Shape | None, bytes]:
    """Rows of the blocks, what they look like, and what tells them from others."""
    if source is None or not len(source):
        return (), None, b""
    block = source.read(int(np.argmax(source.sizes)))
    names, kinds = _columns(block.X)
    y = np.asarray(block.y)
    shape = Shape(names, kinds, _array_kind(y), y.shape[1:], block.weight is not None)
    digest = hashlib.sha256(str(source.sizes).encode())
    for part in source.outline():
        digest.update(part)
    return source.sizes, shape, digest.digest()


def _require_alike(shapes: dict[int, Shape]) -> None:
    (first, expected), *others = shapes.items()
    for rank, shape in others:
        difference = shape.difference(expected)
        if difference is not None:
            raise DataError(
                f"process {rank} has {difference[0]} and process {first} has {difference[1]}; "
                "shards of one table have the same columns and types in every process"
            )


def _columns(X: Any) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Names and kinds of the columns; an array's are numbered."""
    table = getattr(X, "table", X)
    if isinstance(table, pa.Table):
        return tuple(table.column_names), tuple(_kind(field.type) for field in table.schema)
    if hasattr(table, "columns"):
        return tuple(map(str, table.columns)), (None,) * len(table.columns)
    values = np.asarray(table)
    width = values.shape[1]
    return tuple(map(str, range(width))), (_array_kind(values),) * width


def _kind(found: pa.DataType) -> str | None:
    if types.is_null(found):
        return None
    if types.is_dictionary(found):
        return _kind(found.value_type)
    if types.is_integer(found) or types.is_floating(found) or types.is_decimal(found):
        return "numbers"
    if types.is_string(found) or types.is_large_string(found) or types.is_string_view(found):
        return "text"
    return str(found)


def _array_kind(values: NDArray) -> str:
    if values.dtype.kind in "iuf":
        return "numbers"
    return "text" if values.dtype.kind in "OTU" else str(values.dtype)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
