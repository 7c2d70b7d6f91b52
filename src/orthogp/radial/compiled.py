"""The radial sums on a CPU by the functions of `kernels`: values and all gradients.

Here every summand has lengthscales of its own, one for all inputs or one for each, so that a sum of
kernels with a lengthscale for each input is still a single pass. Distances are sums of squared
differences: nothing cancels.
"""

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.radial import threads
from orthogp.radial.functions import function
from orthogp.radial.kernels import FIELDS, Kind, piece

# Columns whose sums are held at a time: memory does not grow with them.
TILE_COLUMNS = 2**13
# Rows are cut into this many tasks, whatever the number of threads: so are the sums.
TASKS = 16
# Fewer entries than this are done before a second thread has begun.
SMALLEST_SHARED = 2**13


class Block(torch.autograd.Function):
    """K_xz of inverse lengthscales `[k, d]` or `[k, 1]` and scales `[k]`."""

    @staticmethod
    def forward(ctx, x, z, inverse, scale, families):
        terms = ctx.terms = _Terms(x, z, None, inverse, scale, families)
        out = x.new_empty(x.shape[0], z.shape[0])
        for tile in terms.tiles():
            tile.run(terms.kind, out=_at(out, tile.left))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        P = grad_outputs[0].contiguous()
        needed = ctx.needs_input_grad
        found = _Gradients(ctx.terms, *needed[:2])
        for tile in ctx.terms.tiles():
            found.add(tile, P=_at(P, tile.left))
        return found.x(), found.z(), *found.hyper(), None


class Matvec(torch.autograd.Function):
    """K_xz a_c for every row a_c of a."""

    @staticmethod
    def forward(ctx, x, z, a, inverse, scale, families):
        terms = ctx.terms = _Terms(x, z, a, inverse, scale, families)
        out = a.new_zeros(a.shape[0], x.shape[0])
        for tile in terms.tiles():
            tile.run(terms.kind, out=out.data_ptr())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        g = grad_outputs[0].contiguous()
        needed = ctx.needs_input_grad
        found = _Gradients(ctx.terms, *needed[:2])
        for tile in ctx.terms.tiles():
            found.add(tile, g=g.data_ptr())
        return found.x(), found.z(), found.a(), *found.hyper(), None


class _Job(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in FIELDS]


class _Terms:
    """The points, and the sum."""

    def __init__(self, x, z, a, inverse, scale, families: tuple[str, ...]):
        ard = inverse.shape[1] > 1
        self.kind = _kind(families, x.dtype == torch.float64, ard, a is None)
        self.inverse, self.scale, self.a = inverse.contiguous(), scale.contiguous(), a
        self.x, self.z, self.rho = x.contiguous(), z, inverse.square().contiguous()
        self._only: _Tile | None = None

    def tiles(self) -> Iterator["_Tile"]:
        count = self.z.shape[0] if self.x.shape[0] else 0
        if 0 < count <= TILE_COLUMNS:
            # Packed once for both directions; of many tiles only one is held at a time.
            self._only = _Tile(self, 0, count) if self._only is None else self._only
            yield self._only
            return
        for left in range(0, count, TILE_COLUMNS):
            yield _Tile(self, left, min(TILE_COLUMNS, count - left))


class _Tile:
    """All rows and some columns of a block."""

    def __init__(self, terms: _Terms, left: int, columns: int):
        rows = terms.x.shape[0]
        step = piece(terms.kind.double)
        self.left, self.columns, self.width = left, columns, -(-columns // step) * step
        self.tasks = min(TASKS, rows)
        self.counter = ctypes.c_int64(0)
        self.threads = torch.get_num_threads() if rows * columns >= SMALLEST_SHARED else 1
        z = _padded(terms.z[left : left + columns].mT, self.width)
        a = None if terms.a is None else _padded(terms.a[:, left : left + columns], self.width)
        self.held = z, a
        self.job = _Job(
            next=ctypes.addressof(self.counter), x=terms.x.data_ptr(), z=z.data_ptr(),
            a=0 if a is None else a.data_ptr(), rho=terms.rho.data_ptr(),
            scale=terms.scale.data_ptr(), rows=rows, columns=columns, dims=terms.x.shape[1],
            width=self.width, stride=terms.z.shape[0], latents=0 if a is None else a.shape[0],
            tasks=self.tasks,
        )  # fmt: skip

    def run(self, kind: Kind, **addresses: int) -> None:
        for name, address in addresses.items():
            setattr(self.job, name, address)
        self.counter.value = 0
        threads.run(function(kind), ctypes.addressof(self.job), self.threads)


class _Gradients:
    """Those of x, z, a, the inverse lengthscales and the scales, summed over tiles."""

    def __init__(self, terms: _Terms, rows_needed: bool, columns_needed: bool):
        self.terms, kind = terms, terms.kind
        self.kind = _kind(
            kind.families, kind.double, kind.ard, kind.dense, True, rows_needed, columns_needed
        )
        self.of_x = torch.zeros_like(terms.x) if rows_needed else None
        self.of_z: list[Tensor] = []
        self.of_a: list[Tensor] = []
        # One number sums millions of terms: in double, whatever the blocks are in.
        size = len(kind.families) * (2 + (terms.x.shape[1] if kind.ard else 0))
        self.wide = terms.scale.new_zeros(TASKS, size, dtype=torch.float64)

    def add(self, tile: _Tile, **addresses: int) -> None:
        x, kind = self.terms.x, self.kind
        inputs = x.shape[1] if kind.columns_needed else 0
        latents = 0 if kind.dense else len(self.terms.a)
        # What every task adds to z, then what it adds to a.
        parts = x.new_zeros(inputs + latents, tile.tasks, tile.width)
        tile.run(
            kind, grad_x=0 if self.of_x is None else self.of_x.data_ptr(), grad_z=parts.data_ptr(),
            grad_a=_at(parts, inputs * tile.tasks * tile.width), sums=self.wide.data_ptr(),
            **addresses,
        )  # fmt: skip
        total = parts.sum(1)[:, : tile.columns]
        if inputs:
            self.of_z.append(total[:inputs].mT)
        if latents:
            self.of_a.append(total[inputs:])

    def x(self) -> Tensor | None:
        return self.of_x

    def z(self) -> Tensor | None:
        if not self.kind.columns_needed:
            return None
        return torch.cat(self.of_z) if self.of_z else torch.zeros_like(self.terms.z)

    def a(self) -> Tensor:
        return torch.cat(self.of_a, 1) if self.of_a else torch.zeros_like(self.terms.a)

    def hyper(self) -> tuple[Tensor, Tensor]:
        """The gradients of the inverse lengthscales and of the scales."""
        inverse, scale = self.terms.inverse, self.terms.scale
        count = len(scale)
        sums = self.wide.sum(0).to(scale.dtype)
        totals, moments, squares = sums[:count], sums[count : 2 * count], sums[2 * count :]
        if self.kind.ard:
            # q = Σ_d ρ_d (x_d − z_d)² with ρ = inverse²
            return squares.view_as(inverse) * inverse, totals
        # q = ρ d², and Q has ρ in it
        return moments.view_as(inverse) / inverse, totals


@cache
def _kind(*description: Any) -> Kind:
    return Kind(*description)


def _padded(rows: Tensor, width: int) -> Tensor:
    """In one piece, the last axis filled up with zeros."""
    out = rows.new_zeros(rows.shape[0], width)
    out[:, : rows.shape[1]] = rows
    return out


def _at(tensor: Tensor, index: int) -> int:
    """The address of a number."""
    return tensor.data_ptr() + index * tensor.element_size()
