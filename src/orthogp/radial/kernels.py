"""The radial sums as machine code for a CPU, one function for each use.

A call works through a job, a record of addresses and sizes. Its rows are cut into tasks; whoever
takes part draws the next task until none is left, so any number of threads may run one job, and
what comes out does not depend on how many did. All of Σ_k s_k κ_k(q_k) happens in registers, over
strips of columns whose points stay in the first-level cache; no block is written unless the block
is what was asked for. Columns are padded with zeros to whole pieces of `UNROLLED` vectors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from orthogp.radial.emit import INDEX, VECTOR_BYTES, Number, Program
from orthogp.radial.families import FAMILIES

# Vectors that are worked on together: as many as keep the pipelines full.
UNROLLED = 4
# Up to so many inputs their loop is written out.
UNROLLED_INPUTS = 16
# Pieces of a strip.
STRIP = 8
# Addresses, then sizes. x is [groups, rows, dims], z is [groups, dims, width].
FIELDS = (
    "next", "x", "z", "a", "rho", "scale", "out", "P", "g",
    "grad_x", "grad_z", "grad_a", "sums",
    "rows", "columns", "width", "stride", "latents", "tasks",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a function is for.

    `ard` gives every summand distances of its own. `dense` is about K itself, else about K a. The
    flags that remain name the gradients that are wanted; a function without any gives values.
    """

    families: tuple[str, ...]
    dims: int
    double: bool
    ard: bool
    dense: bool
    backward: bool = False
    rows_needed: bool = False
    columns_needed: bool = False

    @property
    def groups(self) -> int:
        return len(self.families) if self.ard else 1


def piece(double: bool) -> int:
    """Columns that are worked on together."""
    return UNROLLED * VECTOR_BYTES // (8 if double else 4)


@cache
def function(kind: Kind) -> int:
    """The address of the function of this kind, compiled when it is first asked for."""
    return (_Backward if kind.backward else _Forward)(kind).compiled()


class _Loops(ABC):
    """What both directions share: tasks, strips, rows, pieces; distances, and the sum."""

    def __init__(self, kind: Kind):
        self.kind, self.p = kind, Program("radial", kind.double, FIELDS)
        self.f, self.step = self.p.fields, piece(kind.double)

    @abstractmethod
    def row(self, task: Any, i: Any, pieces: Callable[[], AbstractContextManager[Any]]) -> None:
        """Emits the work on row i in a strip; inside `pieces()` that on the columns from j on."""

    def compiled(self) -> int:
        p, f, b = self.p, self.f, self.p.builder
        strip = STRIP * self.step
        with p.tasks(f["next"], f["tasks"]) as task:
            start, stop = (
                b.sdiv(b.mul(t, f["rows"]), f["tasks"]) for t in (task, b.add(task, INDEX(1)))
            )
            with p.loop(INDEX(0), f["width"], strip) as left:
                right = p.smaller(b.add(left, INDEX(strip)), f["width"])
                with p.loop(start, stop) as i:
                    self.row(task, i, lambda: p.loop(left, right, self.step))
        return p.compiled()

    def vectors(self, address: Any, index: Any) -> list[Any]:
        """Pointers to the vectors of a piece that begins at an index of an array."""
        offsets = (INDEX(u * self.p.lanes) for u in range(UNROLLED))
        return [self.p.place(address, self.p.builder.add(index, offset)) for offset in offsets]

    def x_index(self, group: int, i: Any) -> Any:
        """Where the inputs of row i begin."""
        row = self.p.at(i, (INDEX(group), self.f["rows"]))
        return self.p.builder.mul(row, INDEX(self.kind.dims))

    def z_index(self, group: int, d: Any, j: Any) -> Any:
        return self.p.at(j, (self.p.at(d, (INDEX(group), INDEX(self.kind.dims))), self.f["width"]))

    def differences(self, group: int, i: Any, d: Any, j: Any) -> list[Number]:
        """x_id − z_jd of a piece."""
        p, f = self.p, self.f
        here = p.spread(p.scalar(p.place(f["x"], p.builder.add(self.x_index(group, i), d))))
        return [here - p.load(z) for z in self.vectors(f["z"], self.z_index(group, d, j))]

    def distances(self, group: int, i: Any, j: Any) -> list[Number]:
        """|x_i − z_j|² of a piece."""
        p = self.p
        totals = [p.variable() for _ in range(UNROLLED)]
        for total in totals:
            p.store(p.zeros(), total)
        for d in self.inputs():
            for total, t in zip(totals, self.differences(group, i, d, j), strict=True):
                p.add_to(total, t * t)
        return [p.load(total) for total in totals]

    def inputs(self) -> Iterator[Any]:
        """Emits what follows for every input, one after the other or as a loop."""
        if self.kind.dims <= UNROLLED_INPUTS:
            yield from (INDEX(d) for d in range(self.kind.dims))
        else:
            with self.p.loop(INDEX(0), INDEX(self.kind.dims)) as d:
                yield d

    def parameter(self, name: str, k: int) -> Number:
        return self.p.spread(self.p.scalar(self.p.place(self.f[name], INDEX(k))))

    def families(self, i: Any, j: Any):
        """Of each summand: its number, ρ, s, and d², κ, κ′ of the vectors of a piece."""
        d2 = []
        for k, name in enumerate(self.kind.families):
            if k < self.kind.groups:
                d2 = self.distances(k, i, j)
            rho = self.parameter("rho", k)
            found = [FAMILIES[name](rho * t) for t in d2]
            yield k, rho, self.parameter("scale", k), d2, found


class _Forward(_Loops):
    """K itself, or K a added to what is there."""

    def row(self, task: Any, i: Any, pieces: Callable[[], AbstractContextManager[Any]]) -> None:
        with pieces() as j:
            self.piece(i, j)

    def piece(self, i: Any, j: Any) -> None:
        p, f, b = self.p, self.f, self.p.builder
        value = [p.zeros()] * UNROLLED
        for _, _, scale, _, found in self.families(i, j):
            value = [v + scale * kappa for v, (kappa, _) in zip(value, found, strict=True)]
        if self.kind.dense:
            place = p.place(f["out"], p.at(j, (i, f["stride"])))
            p.store_part(value, place, b.sub(f["columns"], j))
            return
        with p.loop(INDEX(0), f["latents"]) as c:
            weights = self.vectors(f["a"], p.at(j, (c, f["width"])))
            product = p.zeros()
            for v, weight in zip(value, weights, strict=True):
                product = v * p.load(weight) + product
            p.add_to(p.place(f["out"], p.at(i, (c, f["rows"]))), product.total())


class _Backward(_Loops):
    """The gradients, from P = ∂ℓ/∂K as it is given or as gᵀ a.

    With Q = 2 P ∘ Σ_k s_k ρ_k κ′_k, ∂ℓ/∂x_i = Σ_j Q_ij (x_i − z_j); ∂ℓ/∂z_j is −Σ_i of the same.
    Those of rows are complete, the others are sums over the rows of a task.
    """

    def __init__(self, kind: Kind):
        super().__init__(kind)
        p = self.p
        self.sums = [[p.variable() for _ in range(2)] for _ in kind.families]
        dims = INDEX(kind.dims)
        self.pulls = [p.variable(dims) for _ in range(kind.groups)]
        self.squares = [p.variable(dims) for _ in range(kind.groups)]

    def row(self, task: Any, i: Any, pieces: Callable[[], AbstractContextManager[Any]]) -> None:
        self.clear()
        with pieces() as j:
            self.piece(task, i, j)
        self.flush(task, i)

    def clear(self) -> None:
        """Sets what a row sums up to zero."""
        p = self.p
        for pair in self.sums:
            for room in pair:
                p.store(p.zeros(), room)
        with p.loop(INDEX(0), INDEX(self.kind.dims)) as d:
            for room in (*self.pulls, *self.squares):
                p.store(p.zeros(), p.element(room, d))

    def piece(self, task: Any, i: Any, j: Any) -> None:
        p = self.p
        P = self.weights(i, j)
        value, Q = [p.zeros()] * UNROLLED, [p.zeros()] * UNROLLED
        for k, rho, scale, d2, found in self.families(i, j):
            factor = rho * scale * 2.0
            for u, (kappa, slope) in enumerate(found):
                value[u] = value[u] + scale * kappa
                pulled = P[u] * slope
                Q[u] = Q[u] + factor * pulled
                p.add_to(self.sums[k][0], P[u] * kappa)
                p.add_to(self.sums[k][1], pulled * d2[u])
            if self.kind.ard:
                self.points(task, k, i, j, Q)
                Q = [p.zeros()] * UNROLLED
        if not self.kind.ard:
            self.points(task, 0, i, j, Q)
        if not self.kind.dense:
            self.add_products(task, i, j, value)

    def weights(self, i: Any, j: Any) -> list[Number]:
        """P of a piece; zero beyond the last column."""
        p, f, b = self.p, self.f, self.p.builder
        if self.kind.dense:
            place = p.place(f["P"], p.at(j, (i, f["stride"])))
            return p.load_part(place, UNROLLED, b.sub(f["columns"], j))
        totals = [p.variable() for _ in range(UNROLLED)]
        for total in totals:
            p.store(p.zeros(), total)
        with p.loop(INDEX(0), f["latents"]) as c:
            g = p.spread(p.scalar(p.place(f["g"], p.at(i, (c, f["rows"])))))
            for total, a in zip(
                totals, self.vectors(f["a"], p.at(j, (c, f["width"]))), strict=True
            ):
                p.add_to(total, g * p.load(a))
        return [p.load(total) for total in totals]

    def points(self, task: Any, group: int, i: Any, j: Any, Q: list[Number]) -> None:
        kind, p, f = self.kind, self.p, self.f
        if not (kind.rows_needed or kind.columns_needed or kind.ard):
            return
        for d in self.inputs():
            pull, square = p.zeros(), p.zeros()
            row = p.at(d, (INDEX(group), INDEX(kind.dims)))
            places = self.vectors(f["grad_z"], self.part_index(row, task, j))
            for q, t, place in zip(Q, self.differences(group, i, d, j), places, strict=True):
                weighted = q * t
                pull, square = pull + weighted, weighted * t + square
                if kind.columns_needed:
                    p.store(p.load(place) - weighted, place)
            if kind.rows_needed:
                p.add_to(p.element(self.pulls[group], d), pull)
            if kind.ard:
                p.add_to(p.element(self.squares[group], d), square)

    def part_index(self, row: Any, task: Any, j: Any) -> Any:
        """Where a task keeps its part of a sum over rows."""
        return self.p.at(j, (self.p.at(task, (row, self.f["tasks"])), self.f["width"]))

    def add_products(self, task: Any, i: Any, j: Any, value: list[Number]) -> None:
        """g_ci K_ij to the gradient of a."""
        p, f = self.p, self.f
        with p.loop(INDEX(0), f["latents"]) as c:
            g = p.spread(p.scalar(p.place(f["g"], p.at(i, (c, f["rows"])))))
            places = self.vectors(f["grad_a"], self.part_index(c, task, j))
            for v, place in zip(value, places, strict=True):
                p.add_to(place, g * v)

    def flush(self, task: Any, i: Any) -> None:
        """Adds what a row summed up to the sums of its task and to its own gradient."""
        kind, p, f, b = self.kind, self.p, self.f, self.p.builder
        count = len(kind.families)
        # A task's numbers: Σ P κ_k, Σ P κ′_k d², and for every input of a summand Σ Q (x − z)².
        size = 2 * count + (kind.groups * kind.dims if kind.ard else 0)
        for k, pair in enumerate(self.sums):
            for which, room in enumerate(pair):
                index = p.at(INDEX(which * count + k), (task, INDEX(size)))
                p.add_double(f["sums"], index, p.load(room).total())
        with p.loop(INDEX(0), INDEX(kind.dims)) as d:
            for group in range(kind.groups):
                if kind.rows_needed:
                    place = p.place(f["grad_x"], b.add(self.x_index(group, i), d))
                    p.add_to(place, p.load(p.element(self.pulls[group], d)).total())
                if kind.ard:
                    total = p.load(p.element(self.squares[group], d)).total()
                    first = INDEX(2 * count + group * kind.dims)
                    p.add_double(f["sums"], p.at(b.add(first, d), (task, INDEX(size))), total)
