"""A table in blocks, for data that are not to be in memory all at once."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class RowBlock:
    """Rows as they were stored; `X` is what scikit-learn takes for a table."""

    X: Any
    y: NDArray
    weight: NDArray | None = None


class Source(ABC):
    """Blocks that can be read in any order, each of them whole."""

    # Rows of every block.
    sizes: tuple[int, ...]

    @abstractmethod
    def read(self, number: int) -> RowBlock:
        """One block, unchecked."""

    @abstractmethod
    def place(self, number: int) -> str:
        """Where a block is, in words for a message."""

    @abstractmethod
    def outline(self) -> Iterator[bytes]:
        """What tells this table from others, without reading all of it."""

    def __len__(self) -> int:
        return sum(self.sizes)
