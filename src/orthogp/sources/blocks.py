"""Tables in blocks of rows, for data that are not in memory all at once."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset

from orthogp.errors import DataError

# Rows of a block: fewer of a dataset, whose items are read one by one.
ARRAY_ROWS, DATASET_ROWS = 2**16, 2**12
# Rows that tell one table from another.
OUTLINED_ROWS = 256


@dataclass(frozen=True)
class RowBlock:
    """Rows as they are stored; `X` is any table that scikit-learn accepts."""

    X: Any
    y: NDArray
    weight: NDArray | None = None


class Source(ABC):
    """A table in blocks of rows, which can be read in any order."""

    # Rows of every block.
    sizes: tuple[int, ...]
    # Whether several threads may read blocks at once.
    concurrent: bool = False

    @abstractmethod
    def read(self, number: int) -> RowBlock:
        """One block, unchecked."""

    @abstractmethod
    def place(self, number: int) -> str:
        """Where a block is, for an error message."""

    @abstractmethod
    def outline(self) -> Iterator[bytes]:
        """Bytes that differ between tables, without reading all of one."""

    def __len__(self) -> int:
        return sum(self.sizes)


class ArrayTable(Source):
    """Rows of a memory-mapped array, with their targets and weights."""

    concurrent = True

    def __init__(self, X: NDArray, y: Any, weight: Any = None):
        self.X, self.y = X, y if isinstance(y, np.ndarray) else np.asarray(y)
        self.weight = None if weight is None else np.asarray(weight)
        if X.ndim != 2 or not len(X):
            raise DataError(f"X has shape {X.shape}; expected rows and columns, (n, d)")
        for name, part in (("y", self.y), ("sample_weight", self.weight)):
            if part is not None and part.shape[:1] != X.shape[:1]:
                raise DataError(f"X has {len(X)} rows and {name} has shape {part.shape}")
        self.sizes = _block_sizes(len(X), ARRAY_ROWS)

    def read(self, number: int) -> RowBlock:
        rows = self._rows(number)
        weight = None if self.weight is None else self.weight[rows]
        block = RowBlock(np.array(self.X[rows]), np.array(self.y[rows]), weight)
        _release(self.X)
        _release(self.y)
        return block

    def place(self, number: int) -> str:
        rows = self._rows(number)
        return f"rows {rows.start} to {rows.stop - 1}"

    def outline(self) -> Iterator[bytes]:
        stride = -(-len(self.X) // OUTLINED_ROWS)
        for part in (self.X, self.y, self.weight):
            if part is not None:
                yield str((part.shape, part.dtype)).encode()
                yield np.ascontiguousarray(part[::stride]).astype(str).tobytes()

    def _rows(self, number: int) -> slice:
        start = number * ARRAY_ROWS
        return slice(start, start + self.sizes[number])


class DatasetTable(Source):
    """A torch dataset whose items are pairs of inputs, `(d,)`, and a target."""

    def __init__(self, dataset: Dataset):
        self.dataset: Any = dataset
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise DataError(
                f"{type(dataset).__name__} has no length and no items by number; expected a "
                "dataset that can be read in any order"
            )
        if not len(self.dataset):
            raise DataError(f"{type(dataset).__name__} has no items")
        self.sizes = _block_sizes(len(self.dataset), DATASET_ROWS)

    def read(self, number: int) -> RowBlock:
        rows = self._rows(number)
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(list(rows))
        else:
            items = [self.dataset[row] for row in rows]
        try:
            x, y = zip(*items, strict=True)
            return RowBlock(np.stack([_array(a) for a in x]), np.stack([_array(b) for b in y]))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.place(number)} of {type(self.dataset).__name__} are not pairs of inputs "
                f"and a target, all of one shape: {error}"
            ) from error

    def place(self, number: int) -> str:
        rows = self._rows(number)
        return f"items {rows.start} to {rows.stop - 1}"

    def outline(self) -> Iterator[bytes]:
        yield str((type(self.dataset).__name__, len(self.dataset))).encode()
        first = self.read(0)
        for part in (first.X, first.y):
            yield part[:OUTLINED_ROWS].astype(str).tobytes()

    def _rows(self, number: int) -> range:
        start = number * DATASET_ROWS
        return range(start, start + self.sizes[number])


def _block_sizes(count: int, size: int) -> tuple[int, ...]:
    return tuple(min(size, count - start) for start in range(0, count, size))


def _release(array: NDArray) -> None:
    """Gives back the pages of a memory map that were read: they count as the process's memory.

    Not those of a map whose changes are in memory alone.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and getattr(array, "mode", "c") != "c" and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _array(value: Any) -> NDArray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
