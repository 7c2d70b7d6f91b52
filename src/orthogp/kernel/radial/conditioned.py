"""f_⊥(x) given the rows near x, for many x at once, by machine code on a CPU.

With N the rows near x and K_⊥ = K − W Wᵀ of a sum of radial kernels, U is the lower part of

    [I    W_Nᵀ     ]   [I    0 ] [I  W_Nᵀ]
    [W_N  K_NN + D ] = [W_N  Uᵀ] [0  U   ],    l = U⁻ᵀ k_⊥Nx,    c = U⁻¹ l,    ŵ = w_x − W_Nᵀ c,

and the variance of f_⊥(x) is k_⊥xx − lᵀ l. So W Wᵀ is subtracted as earlier rows of a factor are,
by the same products. What a thread works on stays in its cache.
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
from orthogp.kernel.radial.program import Kind, RadialSum
from orthogp.kernel.radial.tiles import products, rows_in_registers
from orthogp.kernel.radial.writer import NAME, SUM_BYTES, Function, Value

# Tables are cut into this many tasks, each with memory for one matrix.
TASKS = 16
# Rows of W that are transposed together, rows of a matrix that are filled with kernel values
# together, and rows of Wᵀ whose products are summed before their sum is subtracted, which rounds
# less.
SQUARE, PAIR, CHUNK = 4, 2, 64
# The noise of what only fills up a vector: its part in c is zero but for rounding.
FILLING_NOISE = 1e30
# near is [tables, width], centres are the x of the tables, [tables, dims] of float64; rows [n,
# dims], noise [n] and W [n, num_features] are of all rows, w is [tables, num_features]; c [tables,
# width], zeros before; explained [tables] is lᵀ l, left [tables, num_features]. A task has points x
# [width + 1, dims], the last of them that of its table, and z [dims, width], a matrix [width /
# lanes, height, lanes], panels of columns one after the other, and vectors k_⊥xN, l and the inverse
# of U's diagonal.
ADDRESSES = (
    "near", "centres", "rows", "noise", "W", "w", "rho", "scale", "x", "z", "matrix", "k", "l",
    "inverse", "c", "explained", "left",
)  # fmt: skip
SIZES = ("tables", "count", "dims", "width", "num_features", "height", "tasks")


class Conditioned(NamedTuple):
    """c, the variance and ŵ of every x; numbers that are none where a matrix has no factor."""

    c: Float[Tensor, "m k"]
    variance: Float[Tensor, " m"]
    w: Float[Tensor, "m b"] | None


@dataclass(frozen=True)
class ConditionedKind(Kind):
    """Vectors are short, so that little is beyond the last row. The rows may be in float64."""

    wide_rows: bool = False

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
    rows: Float[Tensor, "n d"],
    x: Float[Tensor, "m d"],
    noise: Float[Tensor, " n"],
    kernel: terms.RadialSum,
    W: Float[Tensor, "n b"] | None = None,
    w: Float[Tensor, "m b"] | None = None,
) -> Conditioned:
    """What is known of f_⊥ at every x, in the dtype of the kernel; W is one that `aligned` gave."""
    (tables, count), dims, dtype = near.shape, x.shape[1], kernel.scale.dtype
    kind = ConditionedKind(
        kernel.families, dtype == torch.float64, kernel.inverse.shape[1] > 1, dense=True,
        wide_rows=rows.dtype == torch.float64,
    )  # fmt: skip
    width = -(-count // kind.lanes) * kind.lanes
    num_features = 0 if W is None or w is None else W.stride(0)
    height, tasks = num_features + width, min(TASKS, tables)
    buffers = {
        "near": pad(near, (0, width - count)).contiguous(),
        "centres": x.double().contiguous(),
        "rows": rows.contiguous(),
        "noise": noise.to(dtype).contiguous(),
        "rho": kernel.inverse.square().contiguous(),
        "scale": kernel.scale.contiguous(),
    }
    shapes = {
        "x": (tasks, width + 1, dims), "z": (tasks, dims, width), "matrix": (tasks, height, width),
        "k": (tasks, width), "l": (tasks, width), "inverse": (tasks, width),
        "explained": (tables,), "left": (tables, num_features),
    }  # fmt: skip
    buffers |= {name: x.new_empty(shape, dtype=dtype) for name, shape in shapes.items()}
    buffers["c"] = x.new_zeros(tables, width, dtype=dtype)
    prior = kernel.scale.sum().double()
    if W is not None and w is not None:
        prior = prior - w.double().square().sum(1)
        buffers |= {"W": _with_zeros(W), "w": _with_zeros(aligned(w, dtype))}
    _call(kind, buffers, (tables, count, dims, width, num_features, height, tasks))
    left = buffers["left"][:, : w.shape[1]] if w is not None and num_features else None
    return Conditioned(buffers["c"][:, :count], prior - buffers["explained"].double(), left)


def _with_zeros(table: Float[Tensor, "n b"]) -> Float[Tensor, "n c"]:
    """What `aligned` gave, with the zeros that follow its rows."""
    lanes = SUM_BYTES // table.itemsize
    whole = -(-table.shape[1] // lanes) * lanes
    assert table.stride() == (whole, 1)
    return table.as_strided((table.shape[0], whole), table.stride())


def _call(kind: ConditionedKind, buffers: dict[str, Tensor], sizes: tuple[int, ...]) -> None:
    """The only place where tensors of this module become addresses, each of them in one piece."""
    own = torch.float64 if kind.double else torch.float32
    others = {
        "near": torch.int64, "centres": torch.float64,
        "rows": torch.float64 if kind.wide_rows else torch.float32,
    }  # fmt: skip
    for name, tensor in buffers.items():
        assert tensor.is_cpu
        assert tensor.is_contiguous()
        assert tensor.dtype == others.get(name, own), name
    addresses = [buffers[name].data_ptr() if name in buffers else 0 for name in ADDRESSES]
    record = array("q", [0, *addresses, *sizes])
    native.run(_function(kind), record.buffer_info()[0], torch.get_num_threads())


@cache
def _function(kind: ConditionedKind) -> int:
    return native.load_function(program(kind), NAME)


def program(kind: ConditionedKind) -> str:
    """The function `void NAME(int64 *record)` of this kind."""
    f = Function(kind.double, kind.lanes, ADDRESSES, SIZES)
    whole = f.fields.copy()
    with f.tasks() as task:
        start, stop = (t * f["tables"] // f["tasks"] for t in (task, task + 1))
        of_task = {
            "x": (f["width"] + 1) * f["dims"], "z": f["dims"] * f["width"],
            "matrix": f["height"] * f["width"], "k": f["width"], "l": f["width"],
            "inverse": f["width"],
        }  # fmt: skip
        for name, size in of_task.items():
            f.fields[name] = f.at(whole[name], task * size)
        with f.loop(start, stop) as table:
            of_table = {
                "w": f["num_features"], "c": f["width"], "explained": f.constant(1, "i64"),
                "left": f["num_features"],
            }  # fmt: skip
            for name, size in of_table.items():
                f.fields[name] = f.at(whole[name], table * size)
            f.fields["near"] = f.at(whole["near"], table * f["width"], "i64")
            f.fields["centres"] = f.at(whole["centres"], table * f["dims"], "double")
            _Table(kind, f).write()
        f.fields.update(whole)
    return f.text()


class _Table(RadialSum):
    """Writes what happens to one table.

    The matrix is Wᵀ above K + D, which becomes U. Of row i of K, what is left of the diagonal is
    not used.
    """

    def __init__(self, kind: ConditionedKind, function: Function):
        super().__init__(kind, function)
        self.wide_rows = kind.wide_rows
        # Rows of a matrix that are worked on together.
        self.tile = rows_in_registers()

    def write(self) -> None:
        f, above, lanes = self.f, self.f["num_features"], self.f.lanes
        with f.loop(0, f["width"]) as i, f.loop(0, f["dims"]) as d:
            self.gather(i, d)
        with f.loop(0, f["dims"]) as d:
            place = f.at(f["x"], f["width"] * f["dims"] + d)
            f.store(f.constant(0.0, f.number), place)
        with f.loop(0, f["width"], PAIR) as i, f.loop(i // lanes * lanes, f["width"], lanes) as j:
            rows = [i + n for n in range(PAIR)]
            for row, K in zip(rows, self.covariances(rows, j), strict=True):
                f.store(K, self.entry(above + row, j))
        with f.loop(0, f["count"]) as i:
            noise = f.load(f.at(f["noise"], self.row_near(i)), f.number)
            f.add_to(self.entry(above + i, i), noise)
        with f.loop(f["count"], f["width"]) as i:
            f.store(f.constant(FILLING_NOISE, f.number), self.entry(above + i, i))
        with f.loop(0, f["width"], lanes) as j:
            f.store(self.covariances([f["width"]], j)[0], f.at(f["k"], j))
        with f.loop(0, f["width"] * above.at_most(1), lanes) as j:
            self.subtract_features(j)
        with f.loop(0, f["width"], self.tile) as i:
            self.factorise(i)
        with f.loop(0, f["width"]) as i:
            self.substitute(i)
        self.store_explained()
        with f.loop(0, f["width"]) as step:
            self.substitute_back(f["width"] - 1 - step)
        with f.loop(0, above, lanes) as b:
            self.store_left(b)

    def entry(self, i: Value, j: Value) -> Value:
        """Of the matrix."""
        f, lanes = self.f, self.f.lanes
        panel = j // lanes
        return f.at(f["matrix"], (panel * f["height"] + i - panel) * lanes + j)

    def row_near(self, i: Value) -> Value:
        """Which row the i-th near one is."""
        f = self.f
        return f.load(f.at(f["near"], i, "i64"), "i64")

    def feature_row(self, i: Value) -> Value:
        f = self.f
        return f.at(f["W"], self.row_near(i) * f["num_features"])

    def gather(self, i: Value, d: Value) -> None:
        """An input of a row, from x: what is close to x then has all of its digits in any dtype."""
        f, own = self.f, "double" if self.wide_rows else "float"
        value = f.load(f.at(f["rows"], self.row_near(i) * f["dims"] + d, own), own)
        if not self.wide_rows:
            value = f.value("double", f"fpext {value} to double")
        found = value - f.load(f.at(f["centres"], d, "double"), "double")
        if not f.double:
            found = f.value(f.number, f"fptrunc {found} to {f.number}")
        f.store(found, f.at(f["x"], i * f["dims"] + d))
        f.store(found, f.at(f["z"], d * f["width"] + i))

    def subtract_features(self, j: Value) -> None:
        """K − W Wᵀ and k_xN − w_xᵀ Wᵀ on a panel of columns, those before it being done."""
        f, above = self.f, self.f["num_features"]
        with f.loop(j, j + f.lanes, SQUARE) as row, f.loop(0, above, SQUARE) as b:
            self.transpose(row, b)
        with f.loop(0, above, CHUNK) as b:
            count = (above - b).at_most(CHUNK)
            panel = self.entry(b, j)
            with f.loop(0, j + f.lanes, self.tile) as i:
                totals = products(f, self.entry(b, i), self.tile, f.lanes, panel, count)
                for n, total in enumerate(totals):
                    place = self.entry(above + i + n, j)
                    f.store(f.load(place) - total, place)
            w = f.at(f["w"], b)
            (total,) = products(f, w, 1, 1, panel, count)
            place = f.at(f["k"], j)
            f.store(f.load(place) - total, place)

    def transpose(self, row: Value, b: Value) -> None:
        """Writes a square of W into Wᵀ."""
        f, short = self.f, f"<{SQUARE} x {self.f.number}>"

        def pairs(u: Value, v: Value, places: tuple[int, ...]) -> Value:
            chosen = ", ".join(f"i32 {place}" for place in places)
            return f.value(short, f"shufflevector {u}, {v}, <{SQUARE} x i32> <{chosen}>")

        rows = [f.load(f.at(self.feature_row(row + n), b), short) for n in range(SQUARE)]
        for half, places in enumerate(((0, 4, 1, 5), (2, 6, 3, 7))):
            u, v = (pairs(rows[n], rows[n + 1], places) for n in (0, 2))
            for n, chosen in enumerate(((0, 1, 4, 5), (2, 3, 6, 7))):
                f.store(pairs(u, v, chosen), self.entry(b + 2 * half + n, row))

    def factorise(self, i: Value) -> None:
        """Rows of U from those before them."""
        f, lanes = self.f, self.f.lanes
        first = i // lanes * lanes
        self.factorise_panel(i, first, diagonal=True)
        with f.loop(first + lanes, f["width"], lanes) as j:
            self.factorise_panel(i, j, diagonal=False)

    def factorise_panel(self, i: Value, j: Value, diagonal: bool) -> None:
        f, above = self.f, self.f["num_features"]
        start = self.entry(above, i)
        totals = products(f, start, self.tile, f.lanes, self.entry(above, j), i)
        found: list[Value] = []
        for n, total in enumerate(totals):
            place, row = self.entry(above + i + n, j), f.load(self.entry(above + i + n, j)) - total
            for m, before in enumerate(found):
                row = row - f.spread(self.entry(above + i + m, i + n)) * before
            inverse = f.at(f["inverse"], i + n)
            if diagonal:
                f.store(row, place)
                pivot = f.spread(self.entry(above + i + n, i + n))
                root = f.constant(1.0, f.vector) / pivot.sqrt()
                f.store(f.value(f.number, f"extractelement {root}, i64 0"), inverse)
            found.append(row * f.spread(inverse))
            f.store(found[n], place)

    def substitute(self, i: Value) -> None:
        """l_i, and k less its part in what comes after; what comes before has been used."""
        f = self.f
        k, inverse = (f.load(f.at(f[name], i), f.number) for name in ("k", "inverse"))
        f.store(k * inverse, f.at(f["l"], i))
        with f.loop(i // f.lanes * f.lanes, f["width"], f.lanes) as j:
            row, place = f.load(self.entry(f["num_features"] + i, j)), f.at(f["k"], j)
            f.store(f.load(place) - self.number("l", i) * row, place)

    def store_explained(self) -> None:
        f = self.f
        total = f.variable(self.zero)
        with f.loop(0, f["width"], f.lanes) as j:
            part = f.load(f.at(f["l"], j))
            f.add_to(total, part * part)
        f.store(f.load(total).total(), f["explained"])

    def substitute_back(self, i: Value) -> None:
        """c_i = (l_i − Σ_j>i U_ij c_j) / U_ii; c is zero where it is not yet known."""
        f = self.f
        total = f.variable(self.zero)
        with f.loop(i // f.lanes * f.lanes, f["width"], f.lanes) as j:
            row = f.load(self.entry(f["num_features"] + i, j))
            f.add_to(total, row * f.load(f.at(f["c"], j)))
        given, inverse = (f.load(f.at(f[name], i), f.number) for name in ("l", "inverse"))
        f.store((given - f.load(total).total()) * inverse, f.at(f["c"], i))

    def store_left(self, b: Value) -> None:
        """ŵ = w_x − Σ_i c_i W_i."""
        f = self.f
        total = f.variable(f.load(f.at(f["w"], b)))
        with f.loop(0, f["width"]) as i:
            row = f.load(f.at(self.feature_row(i), b))
            f.store(f.load(total) - self.number("c", i) * row, total)
        f.store(f.load(total), f.at(f["left"], b))
