"""The rows nearest to a point, exactly: by a tree, or by the distances to all of them."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from orthogp.execution.memory import chunk_elements
from orthogp.kernel.radial import compiled_backend

# A tree is for a CPU, and there for few columns or many rows: it seldom answers within the time
# that the distances to some hundred thousand points take, and with more columns it visits most
# leaves.
FEW_COLUMNS, MOST_COLUMNS, MANY_ROWS = 4, 16, 2**19
LEAF_ROWS = 32
# Fewer x at a time would not be worth a look at all points.
FEWEST_TOGETHER = 16
# The smallest of many numbers are looked for in groups of these.
GROUP = 8
# Candidates beyond those that are asked for, to tell whether float32 has missed one.
MARGIN = 8
# Machine code lists all candidates that there are, in room for so many times those asked for.
ROOM = 2
# Distances beyond are not for float32.
FARTHEST = 1e18
# Odd numbers of 64 bits without a pattern.
SCRAMBLING = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)


class Neighbors:
    """Finds the nearest of some points, which are seldom equal, by the Euclidean distance."""

    def __init__(self, points: Float[Tensor, "n d"]):
        self.points = points = points.double()
        self.centre = points.mean(0)
        self.tree = self.compiled = None
        count, columns = points.shape
        worth_a_tree = columns <= FEW_COLUMNS or (count > MANY_ROWS and columns <= MOST_COLUMNS)
        if points.device.type == "cpu" and worth_a_tree:
            # Imported here: SciPy's geometry takes a while, and changes the filters of warnings.
            from scipy.spatial import KDTree

            # Splits in the middle of a box are as good as those at medians, and sooner found.
            self.tree = KDTree(points.numpy(), LEAF_ROWS, balanced_tree=False)
        elif compiled_backend(points, widest=columns) is not None:
            from orthogp.kernel.radial.candidates import PointTable

            self.compiled = PointTable(points, self.centre)

    @cached_property
    def _radius(self) -> Float[Tensor, ""]:
        return (self.points - self.centre).norm(dim=1).max()

    @cached_property
    def _table(self) -> Float[Tensor, "e p"]:
        return _distance_table(self.points - self.centre)

    @cached_property
    def _narrow_table(self) -> Float[Tensor, "e p"]:
        return self._table.float()

    def __len__(self) -> int:
        return self.points.shape[0]

    def nearest(self, x: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m k"]:
        """Which of the points are the `count` nearest to each x, the nearest first.

        There are fewer than `count` where there are no more points.
        """
        x, count = x.to(self.points), min(count, len(self))
        if self.tree is not None:
            _, found = self.tree.query(x.numpy(), count, workers=-1)
            return torch.from_numpy(found).reshape(len(x), count).long()
        if not len(x):
            return torch.empty(0, count, dtype=torch.long, device=x.device)
        if self.compiled is not None and count + MARGIN < len(self):
            return self._search_compiled(x, count, room=ROOM * count + MARGIN)
        # One piece of memory for all blocks: a new one each time would not be in the cache.
        block = self._narrow_table.new_empty(min(self._height, len(x)), self._table.shape[1])
        parts = x.split(self._height)
        return torch.cat([self._search_block(part, count, block[: len(part)]) for part in parts])

    @property
    def _height(self) -> int:
        """How many x have their distances to all points in memory at a time."""
        return max(FEWEST_TOGETHER, chunk_elements(self.points.device) // max(1, len(self)))

    def _search_compiled(
        self, x: Float[Tensor, "m d"], count: int, room: int
    ) -> Int[Tensor, "m k"]:
        height = max(1, chunk_elements(x.device) // room)
        return torch.cat([self._search_part(part, count, room) for part in x.split(height)])

    def _search_part(self, x: Float[Tensor, "m d"], count: int, room: int) -> Int[Tensor, "m k"]:
        """All candidates that float32 leaves; those that may have missed one by float64."""
        assert self.compiled is not None
        listed = self.compiled.candidates(x, count, room)
        width = int(listed.number.clamp(count, room).max())
        squares, order = listed.squares[:, :width].sort(stable=True)
        found = listed.found.gather(1, order[:, :count])
        near_enough = (x - self.centre).norm(dim=1) + self._radius < FARTHEST
        sure = listed.beyond.double() > self._bound(x, squares[:, count - 1])
        sure &= near_enough & (listed.number >= count)
        too_many = near_enough & (listed.number > room)
        if bool(too_many.any()):
            # Most of them are at one distance.
            room = int(listed.number[too_many].max())
            found[too_many] = self._search_compiled(x[too_many], count, room)
        return self._repaired(found, sure | too_many, x)

    def _search_block(
        self, x: Float[Tensor, "m d"], count: int, block: Float[Tensor, "m n"]
    ) -> Int[Tensor, "m k"]:
        """Candidates by float32; those that may have missed one are found again by float64."""
        if count + MARGIN >= len(self):
            every = torch.arange(len(self), device=x.device).expand(len(x), -1)
            return self._ranked(x, every, count)[0]
        found, beyond = self._candidates(x, self._narrow_table, count + MARGIN, block)
        found, farthest = self._ranked(x, found, count)
        bound = self._bound(x, farthest) - 0.5 * (x - self.centre).square().sum(1)
        # What is too large for float32 is not sure either.
        return self._repaired(found, beyond.isfinite() & (beyond.double() > bound), x)

    def _repaired(
        self, found: Int[Tensor, "m k"], sure: Bool[Tensor, " m"], x: Float[Tensor, "m d"]
    ) -> Int[Tensor, "m k"]:
        """The nearest by float64 where those found are not sure."""
        count = found.shape[1]
        for missed in (~sure).nonzero().squeeze(1).split(self._height):
            again, _ = self._candidates(x[missed], self._table, count + MARGIN)
            found[missed], _ = self._ranked(x[missed], again, count)
        return found

    def _candidates(
        self,
        x: Float[Tensor, "m d"],
        table: Float[Tensor, "e n"],
        count: int,
        block: Float[Tensor, "m n"] | None = None,
    ) -> tuple[Int[Tensor, "m k"], Float[Tensor, " m"]]:
        """Points with the smallest ½|z|² − xᵀz, and the largest of these; x, z from the centre."""
        left = pad(self.centre - x, (0, 1), value=1.0).to(table)
        values = torch.mm(left, table, out=block)
        # Of numbers that are none, the smallest may be beyond the last point.
        found = smallest(values, count).clamp_max(len(self) - 1)
        return found, values.gather(1, found).amax(1)

    def _ranked(
        self, x: Float[Tensor, "m d"], found: Int[Tensor, "m l"], count: int
    ) -> tuple[Int[Tensor, "m k"], Float[Tensor, " m"]]:
        """The nearest of these, at one distance the first of them, and |x − z|² of the last."""
        found = found.sort(1).values
        squares = (self.points[found] - x.unsqueeze(1)).square().sum(2)
        squares, order = squares.sort(stable=True)
        return found.gather(1, order[:, :count]), squares[:, count - 1]

    def _bound(self, x: Float[Tensor, "m d"], square: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """What ½|x − z|² in float32 exceeds only for z that are farther than `square`.

        A nearer z has |z| < |x| + |x − z|: that bounds the rounding of its products and their sum.
        """
        norm = (x - self.centre).square().sum(1).sqrt()
        unit = torch.finfo(torch.float32).eps
        rounding = (self.points.shape[1] + 5) * unit * (2.0 * norm + square.sqrt()).square()
        return 0.5 * square + rounding


def _distance_table(points: Float[Tensor, "n d"]) -> Float[Tensor, "e p"]:
    """[z; ½|z|²], of which the product with [−x, 1] orders points z as their distances to x do.

    Points infinitely far away fill it up to whole groups of groups.
    """
    table = torch.cat([points.mT, 0.5 * points.square().sum(1).unsqueeze(0)])
    table = pad(table, (0, -len(points) % GROUP**2))
    table[-1, len(points) :] = torch.inf
    return table


def smallest(values: Float[Tensor, "m n"], count: int) -> Int[Tensor, "m k"]:
    """Where the `count` smallest numbers of each row are, in any order.

    They are in those groups of numbers whose own smallest are the smallest.
    """
    number = values.shape[1]
    size = -(-number // GROUP)
    if size < 4 * count:
        return values.topk(count, largest=False, sorted=False).indices
    whole = size * GROUP
    # Columns apart from one another make a group: the minimum is then one of whole vectors.
    grouped = values if whole == number else pad(values, (0, whole - number), value=torch.inf)
    groups = smallest(grouped.view(-1, GROUP, size).amin(1), count)
    places = torch.arange(0, whole, size, device=values.device).view(1, GROUP, 1)
    candidates = (groups.unsqueeze(1) + places).flatten(1)
    chosen = grouped.gather(1, candidates).topk(count, largest=False, sorted=False).indices
    return candidates.gather(1, chosen)


def canonical_order(x: Float[Tensor, "n d"], y: Float[Tensor, "c n"]) -> Int[Tensor, " n"]:
    """The order of rows by their values: the same for the same rows in any order.

    Which of several rows at one distance are the nearest then depends on nothing else. Rows at one
    x are in a scrambled order of their y, so that the first of them are not the smallest.
    """
    order = torch.arange(x.shape[0], device=x.device)
    for key in (*y.flip(0), *x.mT.flip(0)):
        order = order[key[order].argsort(stable=True)]
    new = torch.ones_like(order, dtype=torch.bool)
    new[1:] = (x[order][1:] != x[order][:-1]).any(1)
    return order if bool(new.all()) else order[_ties_scrambled(new, y[:, order])]


def _ties_scrambled(new: Bool[Tensor, " n"], y: Float[Tensor, "c n"]) -> Int[Tensor, " n"]:
    """An order within runs of rows, which begin where they are `new`, by digests of their y.

    Rows of one run and one y, which follow one another, are told apart by counting them.
    """
    every, distinct = torch.arange(len(new), device=new.device), new.clone()
    distinct[1:] |= (y[:, 1:] != y[:, :-1]).any(0)
    first = every[distinct]
    digest = every - first.repeat_interleave(torch.diff(first, append=every.new_tensor([len(new)])))
    for bits in (y.double() + 0.0).view(torch.int64):
        digest = scrambled(digest ^ bits)
    by_digest = scrambled(digest).argsort(stable=True)
    return by_digest[new.cumsum(0)[by_digest].argsort(stable=True)]


def scrambled(number: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Numbers of 64 bits each of which depends on all those of the given one."""
    for factor in SCRAMBLING:
        number = (number ^ (number >> 32)) * factor
    return number ^ (number >> 32)


def leaf_order(points: Float[Tensor, "n d"], leaf: int) -> Int[Tensor, " n"]:
    """An order of which each run of `leaf` points are neighbours: the leaves of a balanced tree."""
    values, leaves = points.double().cpu().numpy(), []
    waiting = [np.arange(len(values))]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= leaf:
            leaves.append(rows)
            continue
        part = values[rows]
        column = part[:, np.ptp(part, axis=0).argmax()]
        middle = -(-len(rows) // leaf) // 2 * leaf
        halves = rows[np.argpartition(column, middle)]
        waiting += [halves[middle:], halves[:middle]]
    return torch.from_numpy(np.concatenate(leaves)).to(points.device)
