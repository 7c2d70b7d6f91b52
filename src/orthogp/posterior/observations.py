"""Rows with what was observed there; and rows at one input, taken together.

Observations y_i of f(x) at one x, with noise σ_i², say of the function what a single one says:

    y = σ² Σ_i y_i / σ_i²,    1/σ² = Σ_i 1/σ_i².

So among the rows near x a distinct input counts once, with all that its rows say, however many they
are. Without row i, 1/σ² is less by 1/σ_i² and y/σ² by y_i/σ_i².
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orthogp.posterior.neighbors import Neighbors, canonical_order

# Of the precision at an input, the least that counts as left once a row is without: beyond it are
# the digits that subtraction loses.
LEAST_LEFT = 1e-12
# The noise of an observation that is not there.
NO_OBSERVATION = 1e30


@dataclass(frozen=True)
class Observations:
    """Rows and what was observed there, less the mean that predictions are to be added to.

    `noise` is the variance of each observation; outputs that share it have one row of it.
    """

    x: Float[Tensor, "n d"]
    y: Float[Tensor, "c n"]
    noise: Float[Tensor, "s n"]

    def __len__(self) -> int:
        return self.x.shape[0]

    def __getitem__(self, part: Int[Tensor, " m"] | Bool[Tensor, " n"] | slice) -> "Observations":
        return Observations(self.x[part], self.y[:, part], self.noise[:, part])

    def followed_by(self, more: "Observations") -> "Observations":
        y, noise = torch.cat([self.y, more.y], 1), torch.cat([self.noise, more.noise], 1)
        return Observations(torch.cat([self.x, more.x]), y, noise)


@dataclass(frozen=True)
class Removed:
    """Rows that are left out, one at a time, and what is observed at their inputs with them.

    `alone` says where nothing is left.
    """

    rows: Observations
    merged: Observations
    alone: Bool[Tensor, " m"]

    def left(self) -> Observations:
        """What is observed there without them."""
        precision, removed = 1.0 / self.merged.noise, 1.0 / self.rows.noise
        left = torch.maximum(precision - removed, LEAST_LEFT * precision)
        y = self.merged.y + removed / left * (self.merged.y - self.rows.y)
        noise = torch.where(self.alone, NO_OBSERVATION, 1.0 / left)
        return Observations(self.rows.x, torch.where(self.alone, 0.0, y), noise)

    @property
    def inverse_growth(self) -> Float[Tensor, "s m"]:
        """1/δ, where δ is by how much the noise at the input grows."""
        precision, removed = 1.0 / self.merged.noise, 1.0 / self.rows.noise
        return torch.where(self.alone, 0.0, precision * (precision - removed) / removed)

    @property
    def relative_shift(self) -> Float[Tensor, "c m"]:
        """Δ/δ, where Δ is by how much the observation at the input moves."""
        return torch.where(self.alone, 0.0, (self.merged.y - self.rows.y) / self.merged.noise)


class OthersNear(NamedTuple):
    """What is near each of some rows but the row itself.

    `rows` are the observations at distinct inputs of a table, then what is left at the inputs of
    those rows; `source` says at which distinct input each is.
    """

    rows: Observations
    near: Int[Tensor, "m k"]
    source: Int[Tensor, " n"]


@dataclass(frozen=True)
class MergedRows:
    """Rows, one observation at each distinct input, and at which of these every row is.

    In `order` the rows at one input follow one another; `size` is how many there are at each.
    """

    rows: Observations
    distinct: Observations
    place: Int[Tensor, " n"]
    order: Int[Tensor, " n"]
    size: Int[Tensor, " r"]

    @staticmethod
    def of(rows: Observations) -> "MergedRows":
        return _merged(rows, canonical_order(rows.x, rows.y[:0]))

    @staticmethod
    def of_ordered(rows: Observations) -> "MergedRows":
        """Of rows that are in canonical order already."""
        return _merged(rows, torch.arange(len(rows), device=rows.x.device))

    @property
    def first(self) -> Int[Tensor, " r"]:
        """A row at each distinct input."""
        return self.order[self.size.cumsum(0) - self.size]

    def total(self, values: Float[Tensor, "a n"]) -> Float[Tensor, "a r"]:
        """The sum over the rows at each distinct input."""
        ordered = values[:, self.order].mT.contiguous()
        return torch.segment_reduce(ordered, "sum", lengths=self.size).mT

    def removed(self, chosen: Int[Tensor, " m"]) -> Removed:
        place = self.place[chosen]
        return Removed(self.rows[chosen], self.distinct[place], self.size[place] == 1)

    def others_near(
        self, neighbors: Neighbors, chosen: Int[Tensor, " m"], count: int
    ) -> OthersNear:
        """The `count` observations nearest to each of these rows, without the row itself.

        `neighbors` finds distinct inputs, whose points are in their order.
        """
        place, removed = self.place[chosen], self.removed(chosen)
        near = neighbors.nearest(neighbors.points[place], count + 1)
        own, needed = near == place.unsqueeze(1), ~removed.alone
        if near.shape[1] > count:
            # Its own input where nothing is left there, otherwise the last.
            drop = own & removed.alone.unsqueeze(1)
            drop[:, -1] |= ~drop.any(1)
            near, own = (part[~drop].reshape(len(near), count) for part in (near, own))
        else:
            needed = torch.ones_like(needed)
        needed = needed.nonzero().squeeze(1)
        every = torch.arange(len(self.distinct), device=near.device)
        if not len(needed):
            return OthersNear(self.distinct, near, every)
        left = removed.left()[needed]
        instead = place.new_full((len(place),), -1)
        instead[needed] = len(every) + torch.arange(len(needed), device=near.device)
        instead = instead.unsqueeze(1)
        near = torch.where(own & (instead >= 0), instead, near)
        rows = self.distinct.followed_by(left)
        return OthersNear(rows, near, torch.cat([every, place[needed]]))

    def without(self, chosen: Int[Tensor, " m"]) -> tuple[Observations, Int[Tensor, " e"]]:
        """What is observed at the distinct inputs without these rows, and where nothing is left.

        There y and noise are as they were.
        """
        present = torch.ones(len(self.rows), dtype=torch.bool, device=chosen.device)
        present[chosen] = False
        others = self.order[present[self.order]]
        rest = MergedRows.of_ordered(self.rows[others])
        there = self.place[others[rest.first]]
        d = self.distinct
        y, noise = d.y.clone(), d.noise.clone()
        y[:, there], noise[:, there] = rest.distinct.y.to(y), rest.distinct.noise.to(noise)
        empty = torch.ones(len(d), dtype=torch.bool, device=chosen.device)
        empty[there] = False
        return Observations(d.x, y, noise), empty.nonzero().squeeze(1)


def _merged(rows: Observations, order: Int[Tensor, " n"]) -> MergedRows:
    x = rows.x[order]
    begins = torch.ones(len(rows), dtype=torch.bool, device=x.device)
    begins[1:] = (x[1:] != x[:-1]).any(1)
    place = torch.empty_like(order).scatter_(0, order, begins.cumsum(0) - 1)
    first = begins.nonzero().squeeze(1)
    size = torch.diff(first, append=first.new_tensor([len(rows)]))
    if len(first) == len(rows):
        every = torch.arange(len(rows), device=x.device)
        return MergedRows(rows, rows, every, every, size)
    found = MergedRows(rows, rows, place, order, size)
    precision = 1.0 / rows.noise.double()
    noise = 1.0 / found.total(precision)
    y = noise * found.total(precision * rows.y.double())
    return replace(found, distinct=Observations(x[first], y, noise))
