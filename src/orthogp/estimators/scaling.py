"""Between the units of the user and those of the model, in which columns are standardised."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogp.errors import DataError

Array = NDArray[np.float64]
# A column whose spread is within the rounding of its values is constant.
ROUNDING = 10 * np.finfo(np.float64).eps
CHUNK_ELEMENTS = 2**22


@dataclass(frozen=True)
class Scaling:
    """x = (X − shift) / scale of every column."""

    shift: Array
    scale: Array

    @staticmethod
    def none(columns: int) -> "Scaling":
        return Scaling(np.zeros(columns), np.ones(columns))

    @staticmethod
    def of(values: Array, weight: Array | None, name: str) -> "Scaling":
        """To mean zero and variance one over weighted rows; a constant column keeps its unit."""
        with np.errstate(over="ignore", invalid="ignore"):
            shift = np.average(values, axis=0, weights=weight)
            scale = np.sqrt(np.average((values - shift) ** 2, axis=0, weights=weight))
        if not np.isfinite(scale).all():
            raise DataError(f"{name} has values too large to standardise; rescale them before fit")
        constant = scale <= ROUNDING * np.abs(values).max(axis=0)
        return Scaling(shift, np.where(constant, 1.0, scale))

    def standardise(self, values: Array, dtype: torch.dtype = torch.float64) -> Tensor:
        """In `dtype`, holding no more than a chunk in between."""
        out = torch.empty(values.shape, dtype=dtype)
        step = max(1, CHUNK_ELEMENTS // max(1, values.shape[-1]))
        for start in range(0, len(values), step):
            part = (values[start : start + step] - self.shift) / self.scale
            out[start : start + step] = torch.from_numpy(part)
        return out
