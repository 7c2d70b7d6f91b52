"""The covariances within each of many small tables, by machine code on a CPU.

With P = ∂ℓ/∂K and κ, κ′ at q_k = Σ_d ρ_kd (x_id − x_jd)², of every summand

    ∂ℓ/∂s_k = Σ_ij P_ij κ_k,    ∂ℓ/∂ρ_kd = s_k Σ_ij P_ij κ′_k (x_id − x_jd)²,

    ∂ℓ/∂x_id = 2 Σ_j (P_ij + P_ji) Σ_k s_k ρ_kd κ′_k (x_id − x_jd).

K is symmetric, and so may P be taken to be: every pair of points is worked on once, and what it
gives to the gradient of one of them is taken from that of the other.
"""

from array import array
from dataclasses import dataclass, replace
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from orthogp.kernel.radial import native
from orthogp.kernel.radial.program import Kind, RadialSum
from orthogp.kernel.radial.writer import NAME, SUM_BYTES, Function, Value

# Tables are cut into this many tasks, whatever the number of threads: so are the sums.
TASKS = 16
# Fewer entries than this are done before a second thread has begun.
SMALLEST_SHARED = 2**13
# x is [tables, rows, dims] and z [tables, dims, width], the same; matrix, which is K or P, is
# [tables, rows, width], and sums [tasks, num_sums, lanes]. The gradient of x is that of rows,
# grad_x, and that of columns, grad_z, of their shapes; pulls [tasks, dims, lanes] are of one row.
ADDRESSES = ("x", "z", "rho", "scale", "matrix", "sums", "grad_x", "grad_z", "pulls")
SIZES = ("tables", "rows", "dims", "width", "num_sums", "tasks")


@dataclass(frozen=True)
class TablesKind(Kind):
    """Vectors are short, so that little is beyond the last row."""

    @property
    def lanes(self) -> int:
        return SUM_BYTES // (8 if self.double else 4)


class TableBlocks(torch.autograd.Function):
    """K_xx of every table of x `[m, n, d]`, of inverse lengthscales `[k, d]` or `[k, 1]` and scales
    `[k]`."""

    @staticmethod
    def forward(ctx, x, inverse, scale, families):
        ctx.tables = _Tables(x, inverse, scale, families)
        return ctx.tables.values()

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        return *ctx.tables.gradients(*grad_outputs, ctx.needs_input_grad[0]), None


table_blocks = TableBlocks.apply


class _Tables:
    def __init__(self, x, inverse, scale, families: tuple[str, ...]):
        dtype, ard = x.dtype, inverse.shape[1] > 1
        self.kind = TablesKind(families, dtype == torch.float64, ard, dense=True)
        self.inverse, self.scale, self.shape = inverse, scale, x.shape
        self.width = -(-x.shape[1] // self.kind.lanes) * self.kind.lanes
        self.inputs = {
            "x": x.contiguous(),
            "z": pad(x.mT, (0, self.width - x.shape[1])).contiguous(),
            "rho": inverse.square().contiguous(),
            "scale": scale.contiguous(),
        }

    def values(self) -> Float[Tensor, "m n n"]:
        tables, rows, _ = self.shape
        K = self.scale.new_empty(tables, rows, self.width)
        self._call(matrix=K)
        return K[..., :rows]

    def gradients(
        self, P: Float[Tensor, "m n n"], x_needed: bool
    ) -> tuple[Float[Tensor, "m n d"] | None, Float[Tensor, "k l"], Float[Tensor, " k"]]:
        """Those of x, of the inverse lengthscales and of the scales."""
        (_, rows, dims), (count, lengthscales) = self.shape, self.inverse.shape
        # Of a pair of points the sum of both, to the right of the diagonal; on it κ is one.
        both = pad((P + P.mT).triu(1), (0, self.width - P.shape[-1]))
        sums = P.new_zeros(TASKS, count * (1 + lengthscales), self.kind.lanes)
        of_points, of_x = {}, None
        if x_needed:
            of_points = {
                "grad_x": torch.empty_like(self.inputs["x"]),
                "grad_z": torch.zeros_like(self.inputs["z"]),
                "pulls": P.new_zeros(TASKS, dims, self.kind.lanes),
            }
        self._call(matrix=both.contiguous(), sums=sums, **of_points)
        if x_needed:
            of_x = 2.0 * (of_points["grad_x"] + of_points["grad_z"].mT[:, :rows])
        values, moments = sums.sum((0, 2)).split([count, count * lengthscales])
        trace = P.diagonal(dim1=-2, dim2=-1).sum()
        return of_x, 2.0 * self.inverse * moments.view_as(self.inverse), values + trace

    def _call(self, **tensors: Tensor) -> None:
        """The only place where tensors of this module become addresses, each of them in one piece:
        machine code knows neither dtypes nor shapes."""
        (tables, rows, dims), (count, lengthscales) = self.shape, self.inverse.shape
        num_sums = count * (1 + lengthscales)
        shapes = {
            "x": (tables, rows, dims), "z": (tables, dims, self.width),
            "rho": (count, lengthscales), "scale": (count,), "matrix": (tables, rows, self.width),
            "sums": (TASKS, num_sums, self.kind.lanes), "grad_x": (tables, rows, dims),
            "grad_z": (tables, dims, self.width), "pulls": (TASKS, dims, self.kind.lanes),
        }  # fmt: skip
        buffers = {**self.inputs, **tensors}
        assert count == len(self.kind.families)
        assert lengthscales in (1, dims)
        for name, tensor in buffers.items():
            assert tensor.is_cpu
            assert tensor.is_contiguous(), name
            assert tensor.shape == shapes[name], name
            assert tensor.dtype == (torch.float64 if self.kind.double else torch.float32), name
        addresses = [buffers[name].data_ptr() if name in buffers else 0 for name in ADDRESSES]
        record = array("q", [0, *addresses, tables, rows, dims, self.width, num_sums, TASKS])
        threads = torch.get_num_threads() if tables * rows**2 >= SMALLEST_SHARED else 1
        kind = replace(self.kind, backward="sums" in tensors, rows_needed="grad_x" in tensors)
        native.run(_function(kind), record.buffer_info()[0], threads)


@cache
def _function(kind: TablesKind) -> int:
    return native.load_function(program(kind), NAME)


def program(kind: TablesKind) -> str:
    """The function `void NAME(int64 *record)` that writes K, or `backward` adds up the sums."""
    f = Function(kind.double, kind.lanes, ADDRESSES, SIZES)
    whole = f.fields.copy()
    with f.tasks() as task:
        start, stop = (t * f["tables"] // f["tasks"] for t in (task, task + 1))
        with f.loop(start, stop) as table:
            each = {
                "x": f["rows"] * f["dims"], "z": f["dims"] * f["width"],
                "matrix": f["rows"] * f["width"], "grad_x": f["rows"] * f["dims"],
                "grad_z": f["dims"] * f["width"],
            }  # fmt: skip
            for name, size in each.items():
                f.fields[name] = f.at(whole[name], table * size)
            for name, size in {"sums": f["num_sums"], "pulls": f["dims"]}.items():
                f.fields[name] = f.at(whole[name], task * size * f.lanes)
            written = _Table(kind, f)
            with f.loop(0, f["rows"]) as i:
                with f.loop(i // f.lanes * f.lanes, f["width"], f.lanes) as j:
                    (written.add_gradients if kind.backward else written.store_values)(i, j)
                if kind.rows_needed:
                    with f.loop(0, f["dims"]) as d:
                        written.store_pull(i, d)
            if not kind.backward:
                with f.loop(0, f["rows"]) as i, f.loop(0, i) as j:
                    written.mirror(i, j)
            f.fields.update(whole)
    return f.text()


class _Table(RadialSum):
    """Writes what happens to one table, vector by vector from the diagonal on."""

    def entry(self, i: Value, j: Value) -> Value:
        return self.f.at(self.f["matrix"], i * self.f["width"] + j)

    def store_values(self, i: Value, j: Value) -> None:
        self.f.store(self.covariances([i], j)[0], self.entry(i, j))

    def mirror(self, i: Value, j: Value) -> None:
        f = self.f
        f.store(f.load(self.entry(j, i), f.number), self.entry(i, j))

    def add_gradients(self, i: Value, j: Value) -> None:
        f, P, slopes = self.f, self.f.load(self.entry(i, j)), []
        for k, scale, rho, d2, kappa, slope in self.summands(self.distances([i], j)[0]):
            self.add(k, P * kappa)
            slopes.append(scale * (P * slope))
            if rho is not None:
                self.add(self.count + k, slopes[k] * d2)
        if self.kind.ard or self.kind.rows_needed:
            with f.loop(0, f["dims"]) as d:
                self.add_input(d, self.difference(i, d, j), slopes, j)

    def add_input(self, d: Value, difference: Value, slopes: list[Value], j: Value) -> None:
        """What input d gives to the gradients of its lengthscales and of the points."""
        f, ard, pull = self.f, self.kind.ard, self.zero
        for k, slope in enumerate(slopes):
            along = slope * difference
            if ard:
                self.add(f["dims"] * k + d + self.count, along * difference)
            pull = pull + (self.weight(k, d) if ard else self.number("rho", k)) * along
        if self.kind.rows_needed:
            f.add_to(f.at(f["pulls"], d * f.lanes), pull)
            place = f.at(f["grad_z"], d * f["width"] + j)
            f.store(f.load(place) - pull, place)

    def store_pull(self, i: Value, d: Value) -> None:
        """The gradient of a row by an input, whose vector begins anew."""
        f, place = self.f, self.f.at(self.f["pulls"], d * self.f.lanes)
        f.store(f.load(place).total(), f.at(f["grad_x"], i * f["dims"] + d))
        f.store(self.zero, place)

    def add(self, index: Value | int, terms: Value) -> None:
        f = self.f
        f.add_to(f.at(f["sums"], f.constant(index, "i64") * f.lanes), terms)
