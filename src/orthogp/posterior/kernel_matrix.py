"""K of rows with themselves, for many products with it: stored where memory allows.

K is symmetric, so that tiles up to the diagonal are all there is to store, and each of them takes
part in a product twice.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.execution.memory import affordable_bytes
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial import compiled_backend

# Rows of a tile, and rows that are evaluated at a time: a kernel may need several temporaries.
TILE_ROWS: Mapping[str, int] = {"cpu": 2048, "cuda": 16384}
BLOCK_ROWS = 1024


@runtime_checkable
class Tile(Protocol):
    """A part of K."""

    @property
    def dtype(self) -> torch.dtype: ...

    def products(
        self, a: Float[Tensor, "c m"], b: Float[Tensor, "c n"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c m"]]:
        """K a and Kᵀ b for every row of a and b."""
        ...


class DenseTile:
    """A tile where there is no machine code for its products."""

    def __init__(self, K: Float[Tensor, "n m"]):
        self.K, self.dtype = K, K.dtype

    def products(
        self, a: Float[Tensor, "c m"], b: Float[Tensor, "c n"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c m"]]:
        return a @ self.K.mT, b @ self.K


class KernelMatrix:
    """K_xx, stored in one dtype at most."""

    def __init__(self, covariance: Covariance, x: Float[Tensor, "n d"]):
        self.covariance, self.x = covariance, x
        self.tiles: list[tuple[slice, slice, Tile]] = []

    @torch.no_grad()
    def store(self, dtype: torch.dtype) -> None:
        """Evaluates K once for many products in `dtype`, where memory allows."""
        if self._is_stored(dtype):
            return
        self.tiles, x = [], self.x.to(dtype)
        if fits_in_memory(x):
            with self.covariance.parameters_read_once(x):
                self.tiles = [(i, j, self._tile(x[i], x[j])) for i, j in _tile_slices(x)]

    @torch.no_grad()
    def product(self, a: Float[Tensor, "c n"], dtype: torch.dtype) -> Float[Tensor, "c n"]:
        """K a, evaluated in `dtype`; the sum over the tiles is in float64."""
        a = a.to(dtype)
        if not self._is_stored(dtype):
            return self.covariance.symmetric_matvec(self.x.to(dtype), a).double()
        out = torch.zeros_like(a, dtype=torch.float64)
        for i, j, tile in self.tiles:
            of_rows, of_columns = tile.products(a[:, j], a[:, i])
            out[:, i] += of_rows
            if i != j:
                out[:, j] += of_columns
        return out

    def _is_stored(self, dtype: torch.dtype) -> bool:
        return bool(self.tiles) and self.tiles[0][2].dtype == dtype

    def _tile(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"]) -> Tile:
        K = x.new_empty(len(x), len(z))
        for rows, out in zip(x.split(BLOCK_ROWS), K.split(BLOCK_ROWS), strict=True):
            out.copy_(self.covariance.block(rows, z))
        # Of any width: the products know nothing of x.
        if compiled_backend(x[:, :0]) is None:
            return DenseTile(K)
        from orthogp.kernel.radial.tile_products import CompiledTile

        return CompiledTile(K)


def fits_in_memory(x: Float[Tensor, "n d"]) -> bool:
    """Whether K_xx may be stored, so that it is evaluated once for all products."""
    stored = sum((i.stop - i.start) * (j.stop - j.start) for i, j in _tile_slices(x))
    return stored * x.dtype.itemsize <= affordable_bytes(x.device)


def _tile_slices(x: Float[Tensor, "n d"]) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles up to the diagonal."""
    height = TILE_ROWS.get(x.device.type, TILE_ROWS["cpu"])
    parts = [slice(start, min(start + height, len(x))) for start in range(0, len(x), height)]
    for count, rows in enumerate(parts, start=1):
        for columns in parts[:count]:
            yield rows, columns
