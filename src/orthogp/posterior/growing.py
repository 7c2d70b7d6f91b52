"""Rows that more rows join one by one: tables with room at their end, and the search among them.

Appending to a table costs what the new rows cost, on average: the table before and the one after
share their memory. Only where two continue the same one does the second copy it. New points are
searched by all their distances, until there are so many of them that a new index of all points is
worth its time.
"""

import threading
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.execution.memory import chunk_elements
from orthogp.posterior.neighbors import Neighbors, canonical_order

# Points that are searched one by one: so many, or this share of all of them if that is more.
MOST_LOOSE, LOOSE_SHARE = 1024, 8
LEAST_ROOM = 64


class Uncopied:
    """What a copy and a file do without, as it can be computed again."""

    def __deepcopy__(self, memo: Any) -> "Uncopied":
        return type(self)()

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), ()


class _Storage:
    """A tensor with more rows than those in use."""

    def __init__(self, rows: Tensor, room: int, width: int):
        self.tensor = rows.new_zeros(rows.shape[0] + room, width)
        self.tensor[: len(rows), : rows.shape[1]] = rows
        self.used, self.lock = len(rows), threading.Lock()

    def append(self, start: int, more: Tensor) -> bool:
        """Whether `more` is now behind the first `start` rows."""
        with self.lock:
            stop = start + len(more)
            if start != self.used or stop > len(self.tensor):
                return False
            # By `data`, because what is shared has not changed for those who look at it.
            self.tensor.data[start:stop, : more.shape[1]] = more
            self.used = stop
            return True


class GrowingTable:
    """A table, `[n, k]`, that more rows can be appended to; it never changes itself.

    In memory its rows are of `width` numbers, those beyond k zeros, where that is given.
    """

    def __init__(
        self,
        rows: Float[Tensor, "n k"],
        width: int | None = None,
        storage: _Storage | None = None,
    ):
        self.rows, self.width, self._storage = rows, width or rows.shape[1], storage

    def __len__(self) -> int:
        return self.rows.shape[0]

    def appended(self, more: Float[Tensor, "m k"]) -> "GrowingTable":
        count, more = len(self), more.to(self.rows)
        storage = self._storage
        if storage is None or not storage.append(count, more):
            room = len(more) + max(LEAST_ROOM, count // 2)
            storage = _Storage(self.rows, room, self.width)
            storage.append(count, more)
        whole = storage.tensor[: count + len(more), : more.shape[1]]
        return GrowingTable(whole, self.width, storage)


@dataclass(frozen=True)
class GrowingNeighbors:
    """The nearest among points of which the last few have joined since the index was made.

    `points` are all of them, in the order in which they came; the index has those at the places
    `indexed`, in the order of their values. `loose` are the places of the others, in that order
    too, so that which of several rows at one distance are the nearest does not depend on the order
    in which they came. `x` and `y` are the rows whose values decide.
    """

    points: GrowingTable
    index: Neighbors | None
    indexed: Int[Tensor, " i"]
    loose: Int[Tensor, " t"]
    x: Float[Tensor, "n d"]
    y: Float[Tensor, "c n"]

    @staticmethod
    def of(
        neighbors: Neighbors, x: Float[Tensor, "n d"], y: Float[Tensor, "c n"]
    ) -> "GrowingNeighbors":
        """From an index of rows that are in the order of their values."""
        places = torch.arange(len(neighbors), device=x.device)
        return GrowingNeighbors(GrowingTable(neighbors.points), neighbors, places, places[:0], x, y)

    @staticmethod
    def none(x: Float[Tensor, "0 d"], y: Float[Tensor, "c 0"]) -> "GrowingNeighbors":
        places = torch.arange(0, device=x.device)
        return GrowingNeighbors(GrowingTable(x.double()), None, places, places, x, y)

    def __len__(self) -> int:
        return len(self.points)

    def with_points(
        self, more: Float[Tensor, "m d"], x: Float[Tensor, "n d"], y: Float[Tensor, "c n"]
    ) -> "GrowingNeighbors":
        """With more points; x and y are those of all rows."""
        points, before = self.points.appended(more), len(self)
        new = torch.arange(before, len(points), device=x.device)
        loose = torch.cat([self.loose, new])
        if len(loose) > max(MOST_LOOSE, len(points) // LOOSE_SHARE):
            order = canonical_order(x, y)
            index = Neighbors(points.rows[order])
            return GrowingNeighbors(points, index, order, loose[:0], x, y)
        loose = loose[canonical_order(x[loose], y[:, loose])]
        return replace(self, points=points, loose=loose, x=x, y=y)

    def nearest(self, x: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m k"]:
        """Which of the points are the `count` nearest to each x, the nearest first."""
        x = x.to(self.points.rows)
        height = max(1, chunk_elements(x.device) // max(1, x.shape[1] * (len(self.loose) + count)))
        parts = [self._nearest(part, min(count, len(self))) for part in x.split(height)]
        return torch.cat(parts) if parts else self.indexed.new_empty(0, min(count, len(self)))

    def _nearest(self, x: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m k"]:
        found = self.loose.expand(len(x), -1)
        squares = self._squares(x, found)
        if squares.shape[1] > count:
            squares, order = squares.sort(stable=True)
            squares, found = squares[:, :count], found.gather(1, order[:, :count])
        if self.index is not None:
            indexed = self.indexed[self.index.nearest(x, count)]
            found = torch.cat([indexed, found], 1)
            squares = torch.cat([self._squares(x, indexed), squares], 1)
        squares, order = squares.sort(stable=True)
        found = found.gather(1, order)
        if found.shape[1] > count > 0:
            tied = squares[:, count - 1] == squares[:, count]
            for i in tied.nonzero().squeeze(1).tolist():
                found[i] = self._in_order_of_values(found[i], squares[i])
        return found[:, :count]

    def _squares(self, x: Float[Tensor, "m d"], places: Int[Tensor, "m l"]) -> Float[Tensor, "m l"]:
        return (self.points.rows[places] - x.unsqueeze(1)).square().sum(2)

    def _in_order_of_values(
        self, places: Int[Tensor, " l"], squares: Float[Tensor, " l"]
    ) -> Int[Tensor, " l"]:
        order = canonical_order(self.x[places], self.y[:, places])
        return places[order[squares[order].argsort(stable=True)]]
