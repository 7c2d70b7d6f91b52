"""Between the units of the user and those of the model, in which columns are standardised."""

from collections.abc import Sequence
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


@dataclass(frozen=True)
class Scaling:
    """x = (X − shift) / scale of every column; with a linear map L the inputs are L x.

    L is in the dtype of the fit, to which x and L x are rounded: a copy of a training row is mapped
    to where that row is.
    """

    shift: Array
    scale: Array
    linear_map: NDArray[np.floating] | None = None

    @staticmethod
    def none(columns: int) -> "Scaling":
        return Scaling(np.zeros(columns), np.ones(columns))

    def standardise(self, values: Array, dtype: torch.dtype = torch.float64) -> Tensor:
        """The inputs in `dtype`, chunk by chunk: no second copy in float64."""
        out = torch.empty(values.shape, dtype=dtype, device="cpu")
        step = max(1, CHUNK_ELEMENTS // max(1, values.shape[-1]))
        for start in range(0, len(values), step):
            with np.errstate(over="ignore"):
                part = (values[start : start + step] - self.shift) / self.scale
            if self.linear_map is not None:
                part = mapped(part, self.linear_map)
            out[start : start + step] = torch.from_numpy(part)
        return out

    def in_units(self, points: Array) -> Array:
        """The reverse of `standardise`."""
        if self.linear_map is not None:
            found = np.linalg.lstsq(self.linear_map.astype(np.float64), points.T)[0]
            points = found.T.astype(np.float64)
        return points * self.scale + self.shift

    def derivatives(self, values: Array) -> Array:
        """∂/∂X, in the last axis, of what has these derivatives with respect to the inputs."""
        if self.linear_map is not None:
            values = values @ self.linear_map.astype(np.float64)
        return values / self.scale

    def followed_by(self, linear_map: NDArray[np.floating]) -> "Scaling":
        """The same, and then a linear map of the inputs."""
        if self.linear_map is not None:
            first = self.linear_map.astype(np.float64)
            linear_map = (linear_map @ first).astype(linear_map.dtype)
        return replace(self, linear_map=linear_map)


def mapped(x: Array, linear_map: NDArray[np.floating]) -> Array:
    """L x of every row, by sums of columns: a product of matrices may round a row differently when
    there are other rows."""
    rounded = x.clip(-FARTHEST, FARTHEST).astype(linear_map.dtype).astype(np.float64)
    out = np.zeros((len(x), len(linear_map)))
    for column, weights in zip(rounded.T, linear_map.T.astype(np.float64), strict=True):
        out += column[:, None] * weights
    return out.astype(linear_map.dtype).astype(np.float64)


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
