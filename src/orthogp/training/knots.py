"""Curves of single inputs, each straight between knots and constant beyond them."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Knots of a curve, and of all curves together.
MOST_KNOTS, MOST_KNOTS_IN_ALL = 32, 1024
# Of what lies between two knots that have moved: the share that rows count for, rises the rest.
ROWS_SHARE = 0.3
# Stands for the length of an interval, or of a curve, that has none.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Knots:
    """Where the curves of the inputs have their corners: at levels, or at quantiles of many values.

    An input with fewer knots than others repeats its last one.
    """

    at: Float[Tensor, "d k"]
    # Of which inputs every level is a knot.
    levels: Bool[Tensor, " d"]

    @staticmethod
    def of(x: Float[Tensor, "n d"]) -> "Knots":
        most = max(2, min(MOST_KNOTS, MOST_KNOTS_IN_ALL // x.shape[1]))
        found, levels = [], []
        for column in x.mT:
            values = column.unique()
            levels.append(len(values) <= most)
            if len(values) > most:
                ranks = torch.linspace(0, len(column) - 1, most, device=x.device).round().long()
                values = column.sort().values[ranks].unique()
            found.append(_padded(values, most))
        at = torch.stack(found)
        longest = int(_count(at).max())
        at = at[:, : max(2, longest)].contiguous()
        return Knots(at, torch.tensor(levels, device=x.device))

    @property
    def few_levels(self) -> Bool[Tensor, " d"]:
        """Which inputs have a knot at each of their levels, and more than two of them."""
        return self.levels & (_count(self.at) > 2)

    @property
    def number_of_rises(self) -> int:
        """From knot to knot, of all inputs."""
        return int((_count(self.at) - 1).sum())

    def waves(self) -> Float[Tensor, "d k"]:
        """At the knots of every input one period of a cosine, from its first knot to its last."""
        number = torch.arange(self.at.shape[1]).to(self.at)
        last = (_count(self.at) - 1).clamp_min(1).to(self.at).unsqueeze(1)
        return torch.cos(2.0 * math.pi * number.minimum(last) / last)

    def hat_functions(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m dk"]:
        """The functions that are one at a knot, zero at the others and straight between, of all
        knots of the first input and of those that follow."""
        width, count = self.at.shape
        inputs = x.mT.clamp(self.at[:, :1], self.at[:, -1:])
        # At a knot the one before it counts, so that copies of the last one are never reached.
        before = torch.searchsorted(self.at, inputs.contiguous()) - 1
        before = before.clamp(0, count - 2)
        low, high = self.at.gather(1, before), self.at.gather(1, before + 1)
        share = ((inputs - low) / (high - low).clamp_min(SMALLEST)).mT
        before = (before + count * torch.arange(width, device=x.device).unsqueeze(1)).mT
        hats = x.new_zeros(len(x), width * count)
        return hats.scatter_(1, before, 1.0 - share).scatter_(1, before + 1, share)

    def where_curves_rise(self, x: Float[Tensor, "n d"], curves: Float[Tensor, "d k z"]) -> "Knots":
        """As many knots, with as much between any two that follow each other: of the rows of x, and
        of the rise of the curves. Inputs of which every level is a knot keep theirs."""
        count, found = self.at.shape[1], []
        rises = curves.diff(dim=1).norm(dim=2)
        for at, all_levels, column, rise in zip(self.at, self.levels, x.mT, rises, strict=True):
            if not all_levels:
                column = column.sort().values
                between = (torch.searchsorted(at, column) - 1).clamp(0, count - 2)
                rows = between.bincount(minlength=count - 1).clamp_min(1).to(rise)
                share = ROWS_SHARE * rows / len(column)
                share += (1.0 - ROWS_SHARE) * rise / rise.sum().clamp_min(SMALLEST)
                total = (share / rows)[between].cumsum(0)
                wanted = torch.linspace(0.0, 1.0, count, device=x.device).to(total) * total[-1]
                chosen = torch.searchsorted(total, wanted).clamp(max=len(column) - 1)
                at = column[chosen[1:-1]]
                at = _padded(torch.cat([column[:1], at, column[-1:]]).unique(), count)
            found.append(at)
        return Knots(torch.stack(found), self.levels)

    def values(self, at: Float[Tensor, "d q"], curves: Float[Tensor, "d k z"]) -> Tensor:
        """The curves at some values of every input."""
        hats = [self.hat_functions(row.unsqueeze(0)).view(self.at.shape) for row in at.mT]
        return torch.einsum("qdk,dkz->dqz", torch.stack(hats), curves)


def _count(at: Float[Tensor, "d k"]) -> Int[Tensor, " d"]:
    """Of every input the knots that are not repeated."""
    return (at[:, 1:] > at[:, :-1]).sum(1) + 1


def _padded(values: Float[Tensor, " m"], count: int) -> Float[Tensor, " k"]:
    return torch.cat([values, values[-1:].expand(count - len(values))])
