"""f_⊥(x) given the rows near x, for many x at once, by machine code on a CPU.

With N the rows near x and K_⊥ = K − W Wᵀ of a sum of radial kernels, a table is N and, last, x:

    [K_⊥NN + D  k_⊥Nx]   [L   0] [Lᵀ  l]
    [k_⊥xN      k_⊥xx] = [lᵀ  1] [0   s],    c = L⁻ᵀ l,    ŵ = w_x − W_Nᵀ c.

So one factor gives the variance s and, by c, the mean. What a thread works on stays in its cache,
and of W it reads the rows where they are.
"""

from array import array
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from orthogp.kernel.radial import native, terms
from orthogp.kernel.radial.program import NAME, SUM_BYTES, Function, Kind, RadialSum, Value

# Tables are cut into this many tasks, each with memory for one matrix.
TASKS = 16
# Rows of W by rows of W whose products are summed in registers.
TILE = 4
# points are [tables, rows, dims] and columns [tables, dims, width], the same; noise is [tables,
# rows], features [tables, rows] the addresses of rows of W; matrix is [tasks, rows, width]; c
# [tables, width], zeros before; variance [tables], left [tables, num_features].
ADDRESSES = (
    "x", "columns", "rho", "scale", "noise", "features", "matrix", "c", "variance", "left",
)  # fmt: skip
SIZES = ("tables", "near", "rows", "dims", "width", "num_features", "tasks")


class Conditioned(NamedTuple):
    """c, s and ŵ of every x; numbers that are none where a matrix has no factor."""

    c: Float[Tensor, "m k"]
    variance: Float[Tensor, " m"]
    w: Float[Tensor, "m b"] | None


@dataclass(frozen=True)
class ConditionedKind(Kind):
    """Vectors are short, so that little is beyond the last row."""

    @property
    def lanes(self) -> int:
        return SUM_BYTES // (8 if self.double else 4)


def aligned(W: Float[Tensor, "n b"], dtype: torch.dtype) -> Float[Tensor, "n b"]:
    """W in this dtype, each of its rows followed by zeros up to whole vectors."""
    count, lanes = W.shape[1], SUM_BYTES // dtype.itemsize
    table = W.new_zeros(W.shape[0], -(-count // lanes) * lanes, dtype=dtype)
    table[:, :count] = W
    return table[:, :count]


def conditioned(
    near: Int[Tensor, "m k"],
    x_near: Float[Tensor, "m k d"],
    x: Float[Tensor, "m d"],
    noise: Float[Tensor, "m k"],
    kernel: terms.RadialSum,
    W: Float[Tensor, "n b"] | None = None,
    w: Float[Tensor, "m b"] | None = None,
) -> Conditioned:
    """What is known of f_⊥ at every x, in the dtype of the kernel; W is one that `aligned` gave."""
    (tables, count), dtype = near.shape, kernel.scale.dtype
    kind = ConditionedKind(
        kernel.families, dtype == torch.float64, kernel.inverse.shape[1] > 1, dense=True
    )
    rows = -(-(count + 1) // TILE) * TILE
    width = -(-rows // kind.lanes) * kind.lanes
    # Distances from x: what is close to it then has all of its digits in any dtype.
    points = x_near.new_zeros(tables, rows, x.shape[1], dtype=dtype)
    points[:, :count] = x_near - x.unsqueeze(1)
    held = {
        "x": points,
        "columns": pad(points.mT, (0, width - rows)).contiguous(),
        "rho": kernel.inverse.square().contiguous(),
        "scale": kernel.scale.contiguous(),
        "noise": pad(noise.to(dtype), (0, rows - count)).contiguous(),
        "matrix": points.new_empty(TASKS, rows, width),
        "c": points.new_zeros(tables, width),
        "variance": points.new_empty(tables),
    }
    num_features = 0
    if W is not None and w is not None:
        w = aligned(w, dtype)
        num_features = W.stride(0)
        held["features"] = pad(_addresses(W, near), (0, rows - count))
        held["features"][:, count:] = _addresses(w, torch.arange(tables)).unsqueeze(1)
        held["left"] = points.new_empty(tables, num_features)
    sizes = (tables, count, rows, x.shape[1], width, num_features, min(TASKS, tables))
    _call(kind, held, sizes)
    left = held["left"][:, : w.shape[1]] if w is not None and num_features else None
    return Conditioned(held["c"][:, :count], held["variance"], left)


def _addresses(table: Float[Tensor, "n b"], rows: Int[Tensor, "*m"]) -> Int[Tensor, "*m"]:
    """Where these rows begin in memory."""
    assert table.is_cpu
    assert table.stride() == (
        -(-table.shape[1] * table.itemsize // SUM_BYTES) * SUM_BYTES // table.itemsize,
        1,
    )
    return table.data_ptr() + rows * (table.stride(0) * table.itemsize)


def _call(kind: ConditionedKind, held: dict[str, Tensor], sizes: tuple[int, ...]) -> None:
    """The only place where tensors of this module become addresses, each of them in one piece."""
    own = torch.float64 if kind.double else torch.float32
    for name, tensor in held.items():
        assert tensor.is_cpu
        assert tensor.is_contiguous()
        assert tensor.dtype == (torch.int64 if name == "features" else own), name
    addresses = [held[name].data_ptr() if name in held else 0 for name in ADDRESSES]
    record = array("q", [0, *addresses, *sizes])
    native.run(_function(kind), record.buffer_info()[0], torch.get_num_threads())


@cache
def _function(kind: ConditionedKind) -> int:
    return native.load_function(program(kind), NAME)


def program(kind: ConditionedKind) -> str:
    """The function `void NAME(int64 *record)` of this kind."""
    f = Function(kind, ADDRESSES, SIZES)
    whole = f.fields.copy()
    with f.tasks() as task:
        start, stop = (t * f["tables"] // f["tasks"] for t in (task, task + 1))
        with f.loop(start, stop) as table:
            each = {
                "x": f["rows"] * f["dims"], "z": f["dims"] * f["width"], "noise": f["rows"],
                "c": f["width"], "variance": f.constant(1, "i64"), "left": f["num_features"],
            }  # fmt: skip
            for name, size in each.items():
                array_ = whole["columns" if name == "z" else name]
                f.fields[name] = f.at(array_, table * size)
            f.fields["features"] = f.at(whole["features"], table * f["rows"], "i64")
            f.fields["matrix"] = f.at(whole["matrix"], task * f["rows"] * f["width"])
            _Table(kind, f).write()
            f.fields.update(whole)
    return f.text()


class _Table(RadialSum):
    """Writes what happens to one table. The matrix is symmetric: of row i, what is left of the
    diagonal is not used, and L is found as its transpose."""

    def write(self) -> None:
        f = self.f
        with f.loop(0, f["near"] + 1) as i, self.vectors_from(i) as j:
            f.store(self.covariances(i, j), self.entry(i, j))
        blocks = f["rows"] * f["num_features"].at_most(1)
        with f.loop(0, blocks, TILE) as i, f.loop(i, f["rows"], TILE) as j:
            self.subtract_products(i, j)
        with f.loop(0, f["near"]) as i:
            noise = f.load(f.at(f["noise"], i), f.number)
            f.add_to(self.entry(i, i), noise)
        with f.loop(0, f["near"]) as i:
            self.factorise(i)
        self.store_variance()
        with f.loop(0, f["near"]) as step:
            self.substitute(f["near"] - 1 - step)
        with f.loop(0, f["num_features"], f.lanes) as j:
            self.store_left(j)

    def vectors_from(self, i: Value):
        """Loops over the columns from i on, and those that share a vector with it."""
        f = self.f
        return f.loop(i // f.lanes * f.lanes, f["width"], f.lanes)

    def entry(self, i: Value, j: Value) -> Value:
        return self.f.at(self.f["matrix"], i * self.f["width"] + j)

    def feature_row(self, i: Value) -> Value:
        f = self.f
        return f.load(f.at(f["features"], i, "i64"), "ptr")

    def subtract_products(self, i: Value, j: Value) -> None:
        """K − W Wᵀ on a tile."""
        f, places = self.f, range(TILE)
        left, right = ([self.feature_row(start + n) for n in places] for start in (i, j))
        sums = [[f.variable(self.zero) for _ in places] for _ in places]
        with f.loop(0, f["num_features"], f.lanes) as b:
            u, v = ([f.load(f.at(row, b)) for row in rows] for rows in (left, right))
            for p in places:
                for q in places:
                    f.add_to(sums[p][q], u[p] * v[q])
        for p in places:
            for q in places:
                place = self.entry(i + p, j + q)
                total = f.load(sums[p][q]).total()
                f.store(f.load(place, f.number) - total, place)

    def factorise(self, i: Value) -> None:
        """Row i of Lᵀ and of l, from the rows before it."""
        f = self.f
        with self.vectors_from(i) as j:
            self.subtract_rows_before(i, j)
        pivot = self.spread(self.entry(i, i)).sqrt()
        with self.vectors_from(i) as j:
            f.store(f.load(self.entry(i, j)) / pivot, self.entry(i, j))

    def subtract_rows_before(self, i: Value, j: Value) -> None:
        f = self.f
        total = f.variable(f.load(self.entry(i, j)))
        with f.loop(0, i) as p:
            f.store(f.load(total) - self.spread(self.entry(p, i)) * f.load(self.entry(p, j)), total)
        f.store(f.load(total), self.entry(i, j))

    def store_variance(self) -> None:
        f = self.f
        with f.loop(f["near"] // f.lanes * f.lanes, f["near"] + 1, f.lanes) as j:
            self.subtract_rows_before(f["near"], j)
        last = f.load(self.entry(f["near"], f["near"]), f.number)
        f.store(last, f["variance"])

    def substitute(self, i: Value) -> None:
        """c_i = (l_i − Σ_j>i L_ji c_j) / L_ii; c is zero where it is not yet known."""
        f = self.f
        total = f.variable(self.zero)
        with self.vectors_from(i) as j:
            f.add_to(total, f.load(self.entry(i, j)) * f.load(f.at(f["c"], j)))
        given, diagonal = (f.load(self.entry(i, j), f.number) for j in (f["near"], i))
        f.store((given - f.load(total).total()) / diagonal, f.at(f["c"], i))

    def store_left(self, j: Value) -> None:
        """ŵ = w_x − Σ_i c_i W_i."""
        f = self.f
        total = f.variable(f.load(f.at(self.feature_row(f["near"]), j)))
        with f.loop(0, f["near"]) as i:
            row = f.at(self.feature_row(i), j)
            f.store(f.load(total) - self.spread(f.at(f["c"], i)) * f.load(row), total)
        f.store(f.load(total), f.at(f["left"], j))
