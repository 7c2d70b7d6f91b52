"""Rows that are never in memory together: blocks in a new order every epoch, read ahead.

Where each process can read some of the blocks alone, the processes put every window together: it is
the window that a single process with all of the blocks would see.
"""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orthogp.execution.team import Team
from orthogp.training.batches import Rows

# Blocks are read until they have this many rows, which are then put in a random order.
WINDOW_ROWS = 2**18
# Threads that read windows, one each. On a CPU more would take the cores from the training step;
# a GPU's step takes rows faster than one thread decodes and checks them.
READERS = {"cpu": 1, "cuda": max(1, min(4, (os.cpu_count() or 1) // 2))}


@dataclass(frozen=True)
class Owners:
    """Which process can read each block of a stream, where no process can read all of them.

    `no_rows` are inputs, targets and weights, if there are any, of no rows: their shapes and dtypes
    for a process that has not read a block.
    """

    team: Team
    ranks: tuple[int, ...]
    no_rows: tuple[Tensor, ...]

    def join(self, blocks: list[int], sizes: list[int], own: list[Rows]) -> Rows:
        """The rows of these blocks, of which `own` are those that this process has read."""
        starts = np.cumsum([0, *sizes]).tolist()
        spans = [
            slice(start, start + size)
            for block, start, size in zip(blocks, starts[:-1], sizes, strict=True)
            if self.ranks[block] == self.team.rank
        ]
        whole = [part.new_zeros(starts[-1], *part.shape[1:]) for part in self.no_rows]
        for span, rows in zip(spans, own, strict=True):
            for out, part in zip(whole, rows.parts(), strict=True):
                out[span] = part
        return Rows(*self.team.sum(whole))


class Stream(ABC):
    """Rows in blocks, each of which is read whole: row groups of files, slices of an array."""

    sizes: tuple[int, ...]
    # None where this process can read every block.
    owners: Owners | None = None
    # Whether several threads may read blocks at once.
    concurrent: bool = False

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
        for number in np.flatnonzero(self.sizes).tolist():
            yield from self.join([number], self.read_own([number])).chunks(size)

    def read_own(self, blocks: list[int]) -> list[Rows]:
        """The rows of those of these blocks that this process can read."""
        owners = self.owners
        if owners is not None:
            blocks = [number for number in blocks if owners.ranks[number] == owners.team.rank]
        return [rows for rows in map(self.block, blocks) if rows is not None]

    def join(self, blocks: list[int], read: list[Rows]) -> Rows:
        """The rows of these blocks from what each process has read of them; every one calls it."""
        if self.owners is not None:
            return self.owners.join(blocks, [self.sizes[number] for number in blocks], read)
        return Rows(*map(torch.cat, zip(*(rows.parts() for rows in read), strict=True)))


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
        self.num_readers = READERS.get(device.type, 1) if stream.concurrent else 1
        self.readers = ThreadPoolExecutor(self.num_readers, "orthogp-stream")
        # Epoch, number and blocks of windows that are being read.
        self.ahead: deque[tuple[int, int, list[int], Future[Any]]] = deque()
        self.seek(0, 0)

    @property
    def epoch(self) -> int:
        """That of the next window."""
        return self.ahead[0][0]

    @property
    def number(self) -> int:
        """That of the next window in its epoch."""
        return self.ahead[0][1]

    def seek(self, epoch: int, number: int) -> None:
        """The next window is the one of that number in that epoch."""
        # A damaged checkpoint may name a window that is none.
        self._groups(epoch)[number]
        self.positions = self._positions(epoch, number)
        self.ahead.clear()
        self._read_ahead()

    def next(self) -> Window:
        """The window that was read ahead; reading of others goes on."""
        epoch, number, blocks, reading = self.ahead.popleft()
        owners = self.stream.owners
        if owners is None:
            window = reading.result()
        else:
            # Not in the thread, which must not talk to the other processes at the same time.
            read = owners.team.attempt(reading.result)
            window = self._window(blocks, read, self._place(epoch, number))
        self._read_ahead()
        return window

    def _read_ahead(self) -> None:
        # As many as there are readers, so that none waits for another to be taken.
        while len(self.ahead) < self.num_readers:
            epoch, number, blocks = next(self.positions)
            reading = self.readers.submit(self._read, blocks, self._place(epoch, number))
            self.ahead.append((epoch, number, blocks, reading))

    def _positions(self, epoch: int, number: int) -> Iterator[tuple[int, int, list[int]]]:
        """Every window from that one on, with its blocks."""
        while True:
            groups = self._groups(epoch)
            for place in range(number, len(groups)):
                yield epoch, place, groups[place]
            epoch, number = epoch + 1, 0

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

    def _read(self, blocks: list[int], place: list[int]) -> Any:
        """The window, or what this process can read of it."""
        read = self.stream.read_own(blocks)
        return read if self.stream.owners is not None else self._window(blocks, read, place)

    def _place(self, epoch: int, number: int) -> list[int]:
        return [self.seed, epoch, 1 + number]

    def _window(self, blocks: list[int], read: list[Rows], place: list[int]) -> Window:
        rows = self.stream.join(blocks, read).to(self.device, self.dtype)
        order = np.random.default_rng(place).permutation(len(rows))
        return Window(rows, torch.from_numpy(order).to(self.device))
