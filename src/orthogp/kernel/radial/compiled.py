"""The radial sums on a CPU by the functions of `kernels`: values and all gradients.

Here every summand has lengthscales of its own, one for all inputs or one for each, so that a sum of
kernels with a lengthscale for each input is still a single pass. Distances are sums of squared
differences: nothing cancels.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.kernel.radial.checks import check_points
from orthogp.kernel.radial.job import TileJob
from orthogp.kernel.radial.kernels import Kind, piece

# Columns whose sums are held at a time: memory does not grow with them.
TILE_COLUMNS = 2**13
# Rows are cut into this many tasks, whatever the number of threads: so are the sums.
TASKS = 16


class Block(torch.autograd.Function):
    """K_xz of inverse lengthscales `[k, d]` or `[k, 1]` and scales `[k]`."""

    @staticmethod
    def forward(ctx, x, z, inverse, scale, families):
        terms = ctx.terms = _Terms(x, z, None, inverse, scale, families)
        out = x.new_empty(x.shape[0], z.shape[0])
        for job in terms.jobs():
            job.run(terms.kind, out=out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        P = grad_outputs[0].contiguous()
        needed = ctx.needs_input_grad
        found = _Gradients(ctx.terms, *needed[:2])
        for job in ctx.terms.jobs():
            found.add(job, P=P)
        return found.x(), found.z(), *found.hyper(), None


class Matvec(torch.autograd.Function):
    """K_xz a_c for every row a_c of a."""

    @staticmethod
    def forward(ctx, x, z, a, inverse, scale, families):
        terms = ctx.terms = _Terms(x, z, a, inverse, scale, families)
        out = a.new_zeros(a.shape[0], x.shape[0])
        for job in terms.jobs():
            job.run(terms.kind, out=out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        g = grad_outputs[0].contiguous()
        needed = ctx.needs_input_grad
        found = _Gradients(ctx.terms, *needed[:2])
        for job in ctx.terms.jobs():
            found.add(job, g=g)
        return found.x(), found.z(), found.a(), *found.hyper(), None


class _Terms:
    """The points, and the sum."""

    def __init__(self, x, z, a, inverse, scale, families: tuple[str, ...]):
        check_points(x, z, a)
        ard = inverse.shape[1] > 1
        self.kind = _kind(families, x.dtype == torch.float64, ard, a is None)
        self.inverse, self.scale, self.a = inverse.contiguous(), scale.contiguous(), a
        self.x, self.z, self.rho = x.contiguous(), z, inverse.square().contiguous()
        self.tasks = min(TASKS, x.shape[0])
        self._only: TileJob | None = None

    def jobs(self) -> Iterator[TileJob]:
        """Tile after tile, each with all rows and some columns of the block."""
        count = self.z.shape[0] if self.x.shape[0] else 0
        if 0 < count <= TILE_COLUMNS:
            # Packed once for both directions; of many tiles only one is held at a time.
            self._only = self._job(0, count) if self._only is None else self._only
            yield self._only
            return
        for left in range(0, count, TILE_COLUMNS):
            yield self._job(left, min(TILE_COLUMNS, count - left))

    def _job(self, left: int, columns: int) -> TileJob:
        step = piece(self.kind.double)
        right, width = left + columns, -(-columns // step) * step
        z = _padded(self.z[left:right].mT, width)
        a = None if self.a is None else _padded(self.a[:, left:right], width)
        return TileJob(
            self.kind, self.x, z, a, self.rho, self.scale, left=left, columns=columns,
            stride=self.z.shape[0], tasks=self.tasks,
        )  # fmt: skip


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
        self.wide = terms.scale.new_zeros(terms.tasks, size, dtype=torch.float64)

    def add(self, job: TileJob, **given: Tensor) -> None:
        x, kind = self.terms.x, self.kind
        tensors = given | {"sums": self.wide}
        if self.of_x is not None:
            tensors["grad_x"] = self.of_x
        # What every task adds to z, and to a.
        if kind.columns_needed:
            tensors["grad_z"] = x.new_zeros(x.shape[1], job.tasks, job.width)
        if not kind.dense:
            tensors["grad_a"] = x.new_zeros(len(self.terms.a), job.tasks, job.width)
        job.run(kind, **tensors)
        if kind.columns_needed:
            self.of_z.append(tensors["grad_z"].sum(1)[:, : job.columns].mT)
        if not kind.dense:
            self.of_a.append(tensors["grad_a"].sum(1)[:, : job.columns])

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
