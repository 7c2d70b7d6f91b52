"""Between the units of the user and those of the model, in which columns are standardised."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogp.errors import DataError

Array = NDArray[np.float64]
# A column whose spread is within the rounding of its values is constant.
ROUNDING = 10 * np.finfo(np.float64).eps
CHUNK_ELEMENTS = 2**22
# Powers of two: room is left above for predictions beyond the largest target.
LARGEST_EXPONENT = 1000
# In units of a column's spread. So far away radial kernels have long forgotten the data, and the
# squares of distances are still numbers in float32.
FARTHEST = 1e15
# Of the search for x that are mapped to given points, by halved steps, where there are ramps. In
# units of a column's spread no x is looked for farther away.
NEWTON_STEPS, NEWTON_RCOND, FARTHEST_PREIMAGE = 20, 1e-3, 10.0


@dataclass(frozen=True)
class Ramps:
    """Functions of one column of x each: zero up to `low`, one from `high` on, straight between.

    A curve through knots is a sum of ramps from each knot to the next, and a constant.
    """

    source: NDArray[np.int64]
    low: Array
    high: Array

    def curves(self, weights: Array) -> Iterator[tuple[int, Array, Array]]:
        """Columns, their knots in order, and there the sum of the column's ramps by these weights,
        `(r, z)`, which is straight between the knots."""
        for column in np.unique(self.source):
            own = self.source == column
            low, high = self.low[own], self.high[own]
            knots = np.unique([low, high])
            ramps = ((knots[:, None] - low) / (high - low)).clip(0.0, 1.0)
            yield int(column), knots, ramps @ weights[own]

    def slopes(self, x: Array) -> Array:
        """The derivative of every ramp at every row."""
        at = x[:, self.source]
        return ((at >= self.low) & (at < self.high)) / (self.high - self.low)


@dataclass(frozen=True)
class Scaling:
    """x = (X − shift) / scale of every column; with a linear map L the inputs are L x.

    L is in the dtype of the fit, to which x and L x are rounded: a copy of a training row is mapped
    to where that row is. With ramps it is a map of x and, after it, of their values at x.
    """

    shift: Array
    scale: Array
    linear_map: NDArray[np.floating] | None = None
    ramps: Ramps | None = None

    @staticmethod
    def none(columns: int) -> "Scaling":
        return Scaling(np.zeros(columns), np.ones(columns))

    def standardise(self, values: Array, dtype: torch.dtype = torch.float64) -> Tensor:
        """The inputs in `dtype`, chunk by chunk: no second copy in float64."""
        shape = values.shape if self.linear_map is None else (len(values), len(self.linear_map))
        out = torch.empty(shape, dtype=dtype, device="cpu")
        step = max(1, CHUNK_ELEMENTS // max(1, values.shape[-1]))
        for start in range(0, len(values), step):
            with np.errstate(over="ignore"):
                part = (values[start : start + step] - self.shift) / self.scale
            if self.linear_map is not None:
                part = mapped(part, self.linear_map, self.ramps)
            out[start : start + step] = torch.from_numpy(part)
        return out

    def in_units(self, points: Array) -> Array:
        """The reverse of `standardise`; with ramps x that are mapped near to these points."""
        if self.linear_map is not None:
            points = _preimages(points, self.linear_map.astype(np.float64), self.ramps)
        return points * self.scale + self.shift

    def derivatives(self, values: Array) -> Array:
        """∂/∂X, in the last axis, of what has these derivatives with respect to the inputs.

        Without ramps, whose derivatives depend on X.
        """
        assert self.ramps is None
        if self.linear_map is not None:
            values = values @ self.linear_map.astype(np.float64)
        return values / self.scale

    def followed_by(
        self, linear_map: NDArray[np.floating], ramps: Ramps | None = None
    ) -> "Scaling":
        """The same, and then a linear map of the inputs, with ramps if there is no map yet."""
        if self.linear_map is not None:
            assert ramps is None
            first = self.linear_map.astype(np.float64)
            linear_map = (linear_map @ first).astype(linear_map.dtype)
        return replace(self, linear_map=linear_map, ramps=self.ramps or ramps)


def mapped(x: Array, linear_map: NDArray[np.floating], ramps: Ramps | None = None) -> Array:
    """L x of every row, by sums of columns: a product of matrices may round a row differently when
    there are other rows. With ramps their values follow x."""
    rounded = x.clip(-FARTHEST, FARTHEST).astype(linear_map.dtype).astype(np.float64)
    out, weights = np.zeros((len(x), len(linear_map))), linear_map.T.astype(np.float64)
    for column, weight in zip(rounded.T, weights, strict=False):
        out += column[:, None] * weight
    if ramps is not None:
        for source, knots, values in ramps.curves(weights[x.shape[1] :]):
            column = rounded[:, source]
            before = np.searchsorted(knots, column, side="right") - 1
            before = before.clip(0, len(knots) - 2)
            share = (column - knots[before]) / np.diff(knots)[before]
            out += values[before] + share.clip(0.0, 1.0)[:, None] * np.diff(values, axis=0)[before]
    return out.astype(linear_map.dtype).astype(np.float64)


def slopes_between_knots(scaling: Scaling) -> list[Array]:
    """For every column of x the derivatives of the inputs with respect to it: `(d, k)`, one column
    for each of its k ramps, or the one that it has everywhere."""
    assert scaling.linear_map is not None
    count, found = len(scaling.scale), []
    linear, bends = np.split(scaling.linear_map.astype(np.float64), [count], axis=1)
    for column in range(count):
        slope, ramps = linear[:, [column]], scaling.ramps
        if ramps is not None and (own := ramps.source == column).any():
            slope = slope + bends[:, own] / (ramps.high - ramps.low)[own]
        found.append(slope)
    return found


def _preimages(points: Array, linear_map: Array, ramps: Ramps | None) -> Array:
    """x that are mapped to these points; with ramps the nearest that Newton's steps find."""
    d = linear_map.shape[1] - (0 if ramps is None else len(ramps.source))
    x = np.linalg.lstsq(linear_map[:, :d], points.T)[0].T.astype(np.float64)
    if ramps is None:
        return x
    best, least = x, np.full(len(x), np.inf)
    for _ in range(NEWTON_STEPS):
        missing = points - mapped(x, linear_map, ramps)
        distance = np.square(missing).sum(axis=1)
        best = np.where((distance < least)[:, None], x, best)
        least = np.minimum(distance, least)
        jacobian = np.broadcast_to(linear_map[:, :d], (len(x), *linear_map[:, :d].shape)).copy()
        slopes = linear_map[:, d:] * ramps.slopes(x)[:, None, :]
        for r, column in enumerate(ramps.source):
            jacobian[:, :, column] += slopes[:, :, r]
        step = np.linalg.pinv(jacobian, rcond=NEWTON_RCOND) @ missing[:, :, None]
        x = np.clip(x + 0.5 * step[:, :, 0], -FARTHEST_PREIMAGE, FARTHEST_PREIMAGE)
    return best


@dataclass(frozen=True)
class Moments:
    """Of the columns of weighted rows; those of two tables give those of both."""

    weight: float
    mean: Array
    std: Array
    largest: Array

    @staticmethod
    def of(values: Array, weight: Array | None, name: str) -> "Moments":
        largest = np.maximum(values.max(axis=0), -values.min(axis=0))
        _, exponent = np.frexp(largest)
        if (exponent > LARGEST_EXPONENT).any():
            raise DataError(f"{name} has values too large to standardise; rescale them before fit")
        # A power of two changes no digit, and squares then neither overflow nor vanish.
        unit = np.ldexp(values, -exponent)
        mean = np.average(unit, axis=0, weights=weight)
        std = np.sqrt(np.average((unit - mean) ** 2, axis=0, weights=weight))
        total = float(len(values) if weight is None else weight.sum())
        return Moments(total, np.ldexp(mean, exponent), np.ldexp(std, exponent), largest)

    def merged(self, other: "Moments") -> "Moments":
        total = self.weight + other.weight
        share, other_share = self.weight / total, other.weight / total
        difference = other.mean - self.mean
        within = np.hypot(share**0.5 * self.std, other_share**0.5 * other.std)
        std = np.hypot(within, (share * other_share) ** 0.5 * difference)
        largest = np.maximum(self.largest, other.largest)
        return Moments(total, self.mean + other_share * difference, std, largest)

    def scaling(self, groups: Sequence[int] | None = None) -> Scaling:
        """To mean zero and variance one; the columns of a group have a sum of variances of one."""
        std, largest = self.std, self.largest
        if groups is not None:
            members = np.asarray(groups)
            with np.errstate(over="ignore"):
                std = np.sqrt(np.bincount(members, weights=std**2))[members]
            largest = _group_maxima(largest, members)
        rounding = ROUNDING * largest
        # A constant column keeps its unit, unless the rounding of its values is larger.
        unit = np.maximum(1.0, rounding)
        return Scaling(self.mean, np.where(std <= rounding, unit, std))


def _group_maxima(values: Array, members: NDArray[np.int64]) -> Array:
    found = np.zeros(int(members.max()) + 1)
    np.maximum.at(found, members, values)
    return found[members]
