"""Rows that are never in memory together: blocks in a new order every epoch, read ahead."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orthogp.training.batches import Rows

# Blocks are read until they have this many rows, which are then put in a random order.
WINDOW_ROWS = 2**18


class Stream(ABC):
    """Rows in blocks, each of which is read whole: row groups of files, slices of an array."""

    sizes: tuple[int, ...]

    @abstractmethod
    def block(self, number: int) -> Rows | None:
        """The rows of one block, on the host; None where it has none."""

    @abstractmethod
    def outline(self) -> Iterator[bytes]:
        """What identifies these rows, for a checkpoint to compare."""

    def __len__(self) -> int:
        return sum(self.sizes)

    def chunks(self, size: int) -> Iterator[Rows]:
        """All rows in their order, at most `size` at a time."""
        for number in range(len(self.sizes)):
            rows = self.block(number)
            if rows is not None:
                yield from rows.chunks(size)


@dataclass(frozen=True)
class Window:
    """Rows in memory, and the order in which they are to be seen."""

    rows: Rows
    order: Tensor


class Windows:
    """The windows of a stream, epoch after epoch; a position is an epoch and a number in it.

    Part `part` of `parts` sees its own blocks of each epoch. All is decided by the seed.
    """

    def __init__(
        self,
        stream: Stream,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        part: int = 0,
        parts: int = 1,
    ):
        self.stream, self.seed, self.device, self.dtype = stream, seed, device, dtype
        self.part, self.parts = part, parts
        self.reader = ThreadPoolExecutor(1, "orthogp-stream")
        self.seek(0, 0)

    def seek(self, epoch: int, number: int) -> None:
        """The next window is the one of that number in that epoch."""
        self.epoch, self.number = epoch, number
        self.groups = self._groups(epoch)
        self.ahead = self._read_ahead()

    def next(self) -> Window:
        """The window that was read ahead; reading of the one after it begins."""
        window = self.ahead.result()
        self.number += 1
        if self.number >= len(self.groups):
            self.epoch, self.number = self.epoch + 1, 0
            self.groups = self._groups(self.epoch)
        self.ahead = self._read_ahead()
        return window

    def _groups(self, epoch: int) -> list[list[int]]:
        """The blocks of every window of an epoch."""
        filled = np.flatnonzero(self.stream.sizes)
        order = np.random.default_rng([self.seed, epoch]).permutation(filled)
        groups, rows = [[]], 0
        for block in order[self.part :: self.parts].tolist():
            if rows >= WINDOW_ROWS:
                groups.append([])
                rows = 0
            groups[-1].append(block)
            rows += self.stream.sizes[block]
        return groups

    def _read_ahead(self) -> Future[Window]:
        blocks = self.groups[self.number]
        return self.reader.submit(self._read, blocks, [self.seed, self.epoch, 1 + self.number])

    def _read(self, blocks: list[int], seed: list[int]) -> Window:
        read = [rows for rows in map(self.stream.block, blocks) if rows is not None]
        parts = (torch.cat(part) for part in zip(*(rows.parts() for rows in read), strict=True))
        rows = Rows(*parts).to(self.device, self.dtype)
        order = np.random.default_rng(seed).permutation(len(rows))
        return Window(rows, torch.from_numpy(order).to(self.device))
