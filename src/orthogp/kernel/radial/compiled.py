"""The radial sums on a CPU by machine code: values and all gradients.

Every summand has lengthscales of its own, one for all inputs or one for each, so that a sum of
kernels with a lengthscale for each input is still a single pass. Distances are sums of squared
differences: nothing cancels.
"""

from array import array
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.errors import DataError
from orthogp.kernel.radial import native, program
from orthogp.kernel.radial.program import ADDRESSES, Kind
from orthogp.kernel.radial.terms import check_points
from orthogp.kernel.radial.writer import NAME

# Columns of a tile: the memory for the gradients of points does not grow beyond it.
TILE_COLUMNS = 2**13
# Rows are cut into this many tasks, whatever the number of threads: so are the sums.
TASKS = 16
# Fewer entries than this are done before a second thread has begun.
SMALLEST_SHARED = 2**13


class CompiledBlock(torch.autograd.Function):
    """K_xz of inverse lengthscales `[k, d]` or `[k, 1]` and scales `[k]`."""

    @staticmethod
    def forward(ctx, x, z, inverse, scale, families):
        ctx.sum = _RadialSum(x, z, None, inverse, scale, families)
        return ctx.sum.values()

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        x, z, _, inverse, scale = ctx.sum.gradients(*grad_outputs, *ctx.needs_input_grad[:2])
        return x, z, inverse, scale, None


class CompiledSymmetricBlock(torch.autograd.Function):
    """K_xx, for a loss whose gradient with respect to it is symmetric."""

    @staticmethod
    def forward(ctx, x, inverse, scale, families):
        symmetric = x.shape[0] <= TILE_COLUMNS
        ctx.sum = _RadialSum(x, x, None, inverse, scale, families, symmetric)
        return ctx.sum.values()

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (upstream,), needed = grad_outputs, ctx.needs_input_grad[0]
        x, z, _, inverse, scale = ctx.sum.gradients(upstream, needed, needed)
        if ctx.sum.kind.symmetric:
            # Those of the entries up to the diagonal, on which every κ is one.
            inverse, scale = 2.0 * inverse, 2.0 * scale - upstream.trace()
        x = None if x is None else (x + z) * (2.0 if ctx.sum.kind.symmetric else 1.0)
        return x, inverse, scale, None


class CompiledMatvec(torch.autograd.Function):
    """K_xz a_c for every row a_c of a."""

    @staticmethod
    def forward(ctx, x, z, a, inverse, scale, families):
        ctx.sum = _RadialSum(x, z, a, inverse, scale, families)
        return ctx.sum.values()

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        return *ctx.sum.gradients(*grad_outputs, *ctx.needs_input_grad[:2]), None


def symmetric_matvec(
    x: Float[Tensor, "n d"],
    a: Float[Tensor, "c n"],
    inverse: Float[Tensor, "k l"],
    scale: Float[Tensor, " k"],
    families: tuple[str, ...],
) -> Float[Tensor, "c n"]:
    """K_xx a_c for every row a_c of a, every pair of points worked on once; it has no gradient."""
    out = torch.zeros_like(a)
    for left in range(0, x.shape[0], TILE_COLUMNS):
        tile, below = slice(left, left + TILE_COLUMNS), slice(left, None)
        part = _RadialSum(x[below], x[tile], a[:, tile], inverse, scale, families, symmetric=True)
        of_rows, of_columns = part.both_products(a[:, below])
        out[:, below] += of_rows
        # Both have the diagonal, on which every κ is one.
        out[:, tile] += of_columns - scale.sum() * a[:, tile]
    return out


block, matvec = CompiledBlock.apply, CompiledMatvec.apply
symmetric_block = CompiledSymmetricBlock.apply


class _Tile(NamedTuple):
    """Columns of the block; z `[d, width]` and a `[c, width]` there, padded to whole vectors."""

    columns: slice
    z: Tensor
    a: Tensor | None


class _RadialSum:
    """K_xz where a is None, else K_xz a, and the gradients of what it depends on.

    With `symmetric` x and z are the same points, of one tile, and the gradients are those of the
    entries up to the diagonal; for K a the x may go on after those of z.
    """

    def __init__(self, x, z, a, inverse, scale, families: tuple[str, ...], symmetric=False):
        check_points(x, z, a)
        self.x, self.z, self.a, self.inverse = x.contiguous(), z, a, inverse
        self.rho, self.scale = inverse.square().contiguous(), scale.contiguous()
        double, ard = x.dtype == torch.float64, inverse.shape[1] > 1
        self.kind = Kind(families, double, ard, dense=a is None, symmetric=symmetric)
        self.tasks = min(TASKS, x.shape[0])
        self._tile: _Tile | None = None

    def values(self) -> Tensor:
        if self.a is None:
            out = self.x.new_empty(self.x.shape[0], self.z.shape[0])
        else:
            out = self.x.new_zeros(self.a.shape[0], self.x.shape[0])
        for tile in self._tiles():
            self._call(self.kind, tile, out=out)
        return out

    def both_products(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """K a and Kᵀ b of one tile, of its entries up to the diagonal."""
        assert self.a is not None
        (tile,) = self._tiles()
        out = self.x.new_zeros(self.a.shape[0], self.x.shape[0])
        of_columns = self.x.new_zeros(self.a.shape[0], self.tasks, tile.z.shape[1])
        self._call(self.kind, tile, out=out, upstream=b.contiguous(), grad_a=of_columns)
        return out, of_columns.sum(1)[:, : self.a.shape[1]]

    def gradients(
        self, upstream: Tensor, x_needed: bool, z_needed: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor]:
        """Those of x, z, a, the inverse lengthscales and the scales."""
        x, z, a = self.x, self.z, self.a
        kind = replace(self.kind, backward=True, rows_needed=x_needed, columns_needed=z_needed)
        # One number sums millions of terms: in double, whatever the blocks are in.
        num_sums = len(self.scale) + self.inverse.numel()
        sums = x.new_zeros(self.tasks, num_sums, dtype=torch.float64)
        given = {"upstream": upstream.contiguous(), "sums": sums}
        if x_needed:
            given["grad_x"] = torch.zeros_like(x)
        of_z, of_a = [], []
        for tile in self._tiles():
            count, width = tile.columns.stop - tile.columns.start, tile.z.shape[1]
            # Of z and a every task has a part of its own.
            if z_needed:
                given["grad_z"] = x.new_zeros(x.shape[1], self.tasks, width)
            if a is not None:
                given["grad_a"] = x.new_zeros(a.shape[0], self.tasks, width)
            self._call(kind, tile, **given)
            if z_needed:
                of_z.append(given["grad_z"].sum(1)[:, :count].mT)
            if a is not None:
                of_a.append(given["grad_a"].sum(1)[:, :count])
        grad_z = (torch.cat(of_z) if of_z else torch.zeros_like(z)) if z_needed else None
        grad_a = None
        if a is not None:
            grad_a = torch.cat(of_a, 1) if of_a else torch.zeros_like(a)
        totals = sums.sum(0).to(self.scale.dtype)
        moments = totals[len(self.scale) :].view_as(self.inverse)
        # q = Σ_d ρ_d (x_d − z_d)² with ρ = inverse²; a single ρ is in the moments already.
        grad_inverse = moments * self.inverse if kind.ard else moments / self.inverse
        return given.get("grad_x"), grad_z, grad_a, grad_inverse, totals[: len(self.scale)]

    def _tiles(self) -> Iterator[_Tile]:
        """Tile after tile of the columns; a single one is packed once for both directions."""
        count = self.z.shape[0] if self.x.shape[0] else 0
        for left in range(0, count, TILE_COLUMNS):
            columns = slice(left, min(left + TILE_COLUMNS, count))
            if self._tile is None or self._tile.columns != columns:
                width = -(-(columns.stop - left) // self.kind.lanes) * self.kind.lanes
                a = None if self.a is None else _padded(self.a[:, columns], width)
                self._tile = _Tile(columns, _padded(self.z[columns].mT, width), a)
            yield self._tile

    def _call(self, kind: Kind, tile: _Tile, **tensors: Tensor) -> None:
        """Calls the function of this kind on a tile: the only place where tensors become addresses.

        Machine code knows neither dtypes nor shapes. A tensor of another kind than the one it was
        made for gives wrong numbers or ends the process, so every one is checked here.
        """
        (rows, dims), width, tasks = self.x.shape, tile.z.shape[-1], self.tasks
        count, columns, stride = len(kind.families), tile.columns, self.z.shape[0]
        latents = 0 if tile.a is None else tile.a.shape[0]
        lengthscales = dims if kind.ard else 1
        num_sums = count * (1 + lengthscales)
        result = (rows, stride) if kind.dense else (latents, rows)
        shapes = {
            "x": (rows, dims), "z": (dims, width), "a": (latents, width),
            "rho": (count, lengthscales), "scale": (count,), "out": result, "upstream": result,
            "grad_x": (rows, dims), "grad_z": (dims, tasks, width),
            "grad_a": (latents, tasks, width), "sums": (tasks, num_sums),
        }  # fmt: skip
        tensors |= {"x": self.x, "z": tile.z, "rho": self.rho, "scale": self.scale}
        if tile.a is not None:
            tensors["a"] = tile.a
        own = torch.float64 if kind.double else torch.float32
        addresses: dict[str, int] = dict.fromkeys(ADDRESSES, 0)
        for name, tensor in tensors.items():
            dtype, shape = torch.float64 if name == "sums" else own, shapes[name]
            fits = tensor.dtype == dtype and tensor.shape == shape and tensor.is_cpu
            if not (fits and tensor.is_contiguous()):
                raise DataError(
                    f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}; "
                    f"expected {dtype} of shape {shape} on the CPU, in one piece: the points, the "
                    "weights, the kernel and the gradients must agree"
                )
            addresses[name] = tensor.data_ptr()
        if kind.dense:
            # In a block the tile begins somewhere in the first row.
            addresses["out"] += columns.start * own.itemsize
            addresses["upstream"] += columns.start * own.itemsize
        num_columns = columns.stop - columns.start
        # In the order of `program.SIZES`.
        sizes = (rows, num_columns, dims, width, stride, latents, tasks, num_sums)
        # The first number counts the tasks that threads have drawn.
        record = array("q", [0, *addresses.values(), *sizes])
        threads = torch.get_num_threads() if rows * num_columns >= SMALLEST_SHARED else 1
        native.run(_function(kind), record.buffer_info()[0], threads)


def _padded(rows: Tensor, width: int) -> Tensor:
    """In one piece, the last axis filled up with zeros."""
    out = rows.new_zeros(rows.shape[0], width)
    out[:, : rows.shape[1]] = rows
    return out


@cache
def _function(kind: Kind) -> int:
    """The address of the machine code of this kind."""
    return native.load_function(program.program(kind), NAME)
