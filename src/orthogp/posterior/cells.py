"""The rows nearest to x among those of a folder: the nearest of the rows in a few cells near x.

Which cells are searched is decided by the distance of x to their centres. With all cells the search
is exact; with few it misses rows beyond the edge of the last one, and `measure_recall` says how
many. Queries are sorted by cell, so that a cell is read once for all that ask for it.
Distances are in the units of x times `scale`, which need not be those in which cells were made.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orthogp.posterior.row_store import RowStore

# Distances to centres in memory at a time, and queries that share what is read of the disk.
CENTRE_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
QUERIES = {"cpu": 2**17, "cuda": 2**20}
# The first of these numbers of cells that finds the wanted share of the nearest rows is used.
PROBES, WANTED_RECALL = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), 0.9


@dataclass(frozen=True)
class Cells:
    """A search in at least `probes` cells for each x; it runs on the device of `scale`."""

    store: RowStore
    scale: Float[Tensor, " d"]
    probes: int

    def __len__(self) -> int:
        return len(self.store)

    @property
    def device(self) -> torch.device:
        return self.scale.device

    @property
    def queries(self) -> int:
        """How many x are best asked for together."""
        return self._limit(QUERIES)

    @cached_property
    def _centres(self) -> Float[Tensor, "cells d"]:
        return (self.store.centres.to(self.device).double() * self.scale.double()).float()

    @property
    def _on_device(self) -> Float[Tensor, "n w"] | None:
        """All rows in the memory of a GPU that has room for them."""
        return None if self.device.type == "cpu" else self.store.on_device(self.device)

    def rows(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n w"]:
        """The rows at these places, which rise."""
        if self._on_device is not None:
            return self._on_device[places]
        return self.store.rows(places).to(self.device)

    def nearest_cells(self, x: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m p"]:
        """The cells with the nearest centres, the nearest first."""
        centres, count = self._centres, min(count, self.store.num_cells)
        half = 0.5 * centres.square().sum(1)
        height = max(1, self._limit(CENTRE_ELEMENTS) // len(centres))
        found = torch.empty(len(x), count, dtype=torch.long, device=self.device)
        for rows in torch.arange(len(x), device=self.device).split(height):
            values = torch.addmm(half, self._scaled(x[rows]).float(), centres.mT, alpha=-1.0)
            found[rows] = values.topk(count, largest=False).indices
        return found

    def nearest(self, x: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m k"]:
        """The places of the `count` nearest rows in the cells near x, the nearest first.

        There are fewer than `count` where there are no more rows.
        """
        count = min(count, len(self))
        cells, x = self._cells_with(x, count), self._scaled(x).float()
        workers = torch.get_num_threads() if self.device.type == "cpu" else 1
        if workers == 1:
            return self._search(x, cells, count)
        found = torch.empty(len(x), count, dtype=torch.long)
        # Each has queries that are near each other: most cells are read by one of them alone.
        parts = cells[:, 0].argsort(stable=True).tensor_split(workers)
        with ThreadPoolExecutor(workers) as pool:
            searched = pool.map(lambda part: self._search(x[part], cells[part], count), parts)
            for part, near in zip(parts, searched, strict=True):
                found[part] = near
        return found

    def _search(
        self, x: Float[Tensor, "m d"], cells: Int[Tensor, "m p"], count: int
    ) -> Int[Tensor, "m k"]:
        """The nearest rows of these cells; x in the units of distances."""
        best = _Best(len(x), count, self.device)
        # The own cell first: after it few rows are near enough to be looked at.
        for part in (cells[:, :1], cells[:, 1:]):
            for cell, asking in _by_cell(part):
                first, last = self.store.starts[cell : cell + 2].tolist()
                centre = self._centres[cell]
                rows = self._cell(first, last) - centre
                at = x.index_select(0, asking) - centre
                # |x − z|² − |x|², from the centre of the cell, where float32 is fine.
                values = torch.addmm(rows.square().sum(1), at, rows.mT, alpha=-2.0)
                best.add(asking, values, at.square().sum(1), first)
        return best.places()

    def _cells_with(self, x: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m p"]:
        """The cells to be searched: more than `probes` where those have too few rows."""
        sizes, probes = self.store.starts.diff().to(self.device), self.probes
        while True:
            cells = self.nearest_cells(x, probes)
            if probes >= len(sizes) or bool((sizes[cells].sum(1) >= count).all()):
                return cells
            probes *= 2

    def _cell(self, first: int, last: int) -> Float[Tensor, "r d"]:
        rows = self._on_device
        rows = self.store.read(first, last) if rows is None else rows[first:last]
        return rows[:, : self.store.inputs] * self.scale.float()

    def _scaled(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        return x.to(self.device).double() * self.scale.double()

    def _limit(self, limits: dict[str, int]) -> int:
        return limits.get(self.device.type, limits["cpu"])


class _Best:
    """The nearest rows so far of every query, in any order, and the farthest of their distances."""

    def __init__(self, queries: int, count: int, device: torch.device):
        self.squares = torch.full((queries, count), torch.inf, device=device)
        self.found = torch.full((queries, count), -1, dtype=torch.long, device=device)
        self.limit = torch.full((queries,), torch.inf, device=device)

    def add(
        self,
        asking: Int[Tensor, " q"],
        values: Float[Tensor, "q r"],
        norm: Float[Tensor, " q"],
        first: int,
    ) -> None:
        """Rows from the place `first` on, whose squared distances are these values and the norm."""
        count = self.squares.shape[1]
        limit = self.limit.index_select(0, asking) - norm
        if values.device.type == "cpu" and bool(limit.amax() < torch.inf):
            # Most rows of a cell are farther than those known: only the others are sorted.
            packed = _below(values.numpy(), limit.numpy())
            if packed is None:
                return
            values, places = packed
        else:
            width = min(count, values.shape[1])
            values, places = values.topk(width, largest=False, sorted=False)
        squares = torch.cat([self.squares.index_select(0, asking), values + norm[:, None]], dim=1)
        places = torch.cat([self.found.index_select(0, asking), places + first], dim=1)
        order = _smallest(squares, count)
        squares, places = squares.gather(1, order), places.gather(1, order)
        self.squares.index_copy_(0, asking, squares)
        self.found.index_copy_(0, asking, places)
        self.limit.index_copy_(0, asking, squares.amax(1))

    def places(self) -> Int[Tensor, "m k"]:
        """Of every query, the nearest first; at one distance the first in the folder."""
        found, order = self.found.sort(1)
        order = self.squares.gather(1, order).argsort(dim=1, stable=True)
        return found.gather(1, order)


def _smallest(values: Float[Tensor, "q w"], count: int) -> Int[Tensor, "q k"]:
    """Where the `count` smallest of each row are."""
    if values.device.type != "cpu" or values.shape[1] == count:
        return values.topk(count, largest=False, sorted=False).indices
    # A third of the time of torch's on so few numbers.
    return torch.from_numpy(np.argpartition(values.numpy(), count - 1, axis=1)[:, :count])


def _below(
    values: NDArray[np.float32], limit: NDArray[np.float32]
) -> tuple[Float[Tensor, "q w"], Int[Tensor, "q w"]] | None:
    """The numbers of each row below its limit, at the left of a narrow matrix, and their columns.

    The matrix is filled up with infinity. None where there are none.
    """
    (queries, length), flat = values.shape, np.flatnonzero(values < limit[:, None])
    if not len(flat):
        return None
    query = flat // length
    number = np.bincount(query, minlength=queries)
    width = int(number.max())
    # Where each begins in the narrow matrix, less how many come before it.
    shift = np.arange(queries) * width - (np.cumsum(number) - number)
    target = np.arange(len(flat)) + shift[query]
    found = np.full(queries * width, np.inf, dtype=np.float32)
    columns = np.zeros(queries * width, dtype=np.int64)
    found[target], columns[target] = values.reshape(-1)[flat], flat - query * length
    shape = queries, width
    return torch.from_numpy(found.reshape(shape)), torch.from_numpy(columns.reshape(shape))


def _by_cell(cells: Int[Tensor, "m p"]) -> Iterator[tuple[int, Int[Tensor, " q"]]]:
    """Every cell, in their order, with the queries that ask for it."""
    if not cells.numel():
        return
    flat = cells.flatten()
    order = flat.argsort(stable=True)
    queries = order // cells.shape[1]
    found, counts = flat[order].unique_consecutive(return_counts=True)
    yield from zip(found.tolist(), queries.split(counts.tolist()), strict=True)


@dataclass(frozen=True)
class Recall:
    """The share of the nearest rows that a search in `probes` cells finds."""

    probes: int
    share: float


def measure_recall(
    cells: Cells, x: Float[Tensor, "m d"], count: int, wanted: float = WANTED_RECALL
) -> Recall:
    """The fewest probes that find the wanted share at these x, by an exact search of all cells."""
    store = cells.store
    exact = replace(cells, probes=store.num_cells).nearest(x, count)
    order = cells.nearest_cells(x, max(PROBES)).cpu().numpy()
    own = np.searchsorted(store.starts.numpy(), exact.cpu().numpy(), side="right") - 1
    # The first probe that sees the cell of each row; as many as there are where none does.
    seen = own[:, :, None] == order[:, None, :]
    rank = np.where(seen.any(2), seen.argmax(2), order.shape[1])
    shares = [(probes, float((rank < probes).mean())) for probes in PROBES]
    return Recall(*next((found for found in shares if found[1] >= wanted), shares[-1]))
