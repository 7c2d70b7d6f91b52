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
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

from orthogp.radial.emit import INDEX, VECTOR_BYTES, Number, Program
from orthogp.radial.families import FAMILIES

NAME = "radial"
# Vectors that are worked on together: as many as keep the pipelines full.
UNROLLED = 4
# Up to so many inputs their loop is written out.
UNROLLED_INPUTS = 16
# Pieces of a strip.
STRIP = 8
# Addresses, then sizes. x is [rows, dims], z is [dims, width], rho is [k] or [k, dims].
FIELDS = (
    "next", "x", "z", "a", "rho", "scale", "out", "P", "g",
    "grad_x", "grad_z", "grad_a", "sums",
    "rows", "columns", "width", "stride", "latents", "tasks",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a function is for.

    `ard` gives every summand distances of its own, Σ_d ρ_kd (x_d − z_d)². `dense` is about K
    itself, else about K a. The flags that remain name the gradients that are wanted; a function
    without any gives values.
    """

    families: tuple[str, ...]
    dims: int
    double: bool
    ard: bool
    dense: bool
    backward: bool = False
    rows_needed: bool = False
    columns_needed: bool = False


def piece(double: bool) -> int:
    """Columns that are worked on together."""
    return UNROLLED * VECTOR_BYTES // (8 if double else 4)


def object_code(kind: Kind) -> bytes:
    """The function of this kind, `NAME`, compiled for this machine."""
    return (_Backward if kind.backward else _Forward)(kind).object_code()


class _Loops(ABC):
    """What both directions share: tasks, strips, rows, pieces; distances, and the sum."""

    def __init__(self, kind: Kind):
        self.kind, self.p = kind, Program(NAME, kind.double, FIELDS)
        self.f, self.step = self.p.fields, piece(kind.double)

    @abstractmethod
    def row(self, task: Any, i: Any, pieces: Callable[[], AbstractContextManager[Any]]) -> None:
        """Emits the work on row i in a strip; inside `pieces()` that on the columns from j on."""

    def object_code(self) -> bytes:
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
        return p.object_code()

    def vectors(self, address: Any, index: Any) -> list[Any]:
        """Pointers to the vectors of a piece that begins at an index of an array."""
        offsets = (INDEX(u * self.p.lanes) for u in range(UNROLLED))
        return [self.p.place(address, self.p.builder.add(index, offset)) for offset in offsets]

    def x_index(self, i: Any, d: Any) -> Any:
        return self.p.at(d, (i, INDEX(self.kind.dims)))

    def differences(self, i: Any, d: Any, j: Any) -> list[Number]:
        """x_id − z_jd of a piece."""
        p, f = self.p, self.f
        here = p.spread(p.scalar(p.place(f["x"], self.x_index(i, d))))
        return [here - p.load(z) for z in self.vectors(f["z"], p.at(j, (d, f["width"])))]

    def distances(self, i: Any, j: Any) -> list[list[Number]]:
        """Of a piece |x_i − z_j|², or what every summand has in its place."""
        p, count = self.p, len(self.kind.families) if self.kind.ard else 1
        totals = [[p.variable() for _ in range(UNROLLED)] for _ in range(count)]
        for total in chain(*totals):
            p.store(p.zeros(), total)
        for d in self.inputs():
            squares = [t * t for t in self.differences(i, d, j)]
            for k, own in enumerate(totals):
                weight = self.weight(k, d) if self.kind.ard else None
                for total, square in zip(own, squares, strict=True):
                    p.add_to(total, square if weight is None else weight * square)
        return [[p.load(total) for total in own] for own in totals]

    def weight(self, k: int, d: Any) -> Number:
        """ρ_kd."""
        place = self.p.at(d, (INDEX(k), INDEX(self.kind.dims)))
        return self.p.spread(self.p.scalar(self.p.place(self.f["rho"], place)))

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
        """Of each summand: its number, ρ or None, s, and d², κ, κ′ of the vectors of a piece."""
        distances = self.distances(i, j)
        for k, name in enumerate(self.kind.families):
            d2 = distances[k if self.kind.ard else 0]
            rho = None if self.kind.ard else self.parameter("rho", k)
            found = [FAMILIES[name](t if rho is None else rho * t) for t in d2]
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
    Where every summand has a ρ for every input, so has Q, and Q_k is what it is without ρ. The
    gradients of rows are complete, the others are sums over the rows of a task.
    """

    def __init__(self, kind: Kind):
        super().__init__(kind)
        p = self.p
        self.sums = [[p.variable() for _ in range(2)] for _ in kind.families]
        dims = INDEX(kind.dims)
        self.pulls = p.variable(dims)
        self.squares = [p.variable(dims) for _ in kind.families] if kind.ard else []

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
            for room in (self.pulls, *self.squares):
                p.store(p.zeros(), p.element(room, d))

    def piece(self, task: Any, i: Any, j: Any) -> None:
        p = self.p
        P = self.weights(i, j)
        value, Q = [p.zeros()] * UNROLLED, []
        for k, rho, scale, d2, found in self.families(i, j):
            factor = scale * 2.0 if rho is None else rho * scale * 2.0
            Q.append([factor * (P[u] * slope) for u, (_, slope) in enumerate(found)])
            for u, (kappa, slope) in enumerate(found):
                value[u] = value[u] + scale * kappa
                p.add_to(self.sums[k][0], P[u] * kappa)
                if rho is not None:
                    p.add_to(self.sums[k][1], P[u] * slope * d2[u])
        self.points(task, i, j, Q)
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

    def points(self, task: Any, i: Any, j: Any, Q: list[list[Number]]) -> None:
        kind, p, f = self.kind, self.p, self.f
        needed = kind.rows_needed or kind.columns_needed
        if not (needed or kind.ard):
            return
        if not kind.ard:
            Q = [[reduce(add, summands) for summands in zip(*Q, strict=True)]]
        for d in self.inputs():
            differences = self.differences(i, d, j)
            for own, room in zip(Q, self.squares, strict=False):
                square = p.zeros()
                for q, t in zip(own, differences, strict=True):
                    square = q * (t * t) + square
                p.add_to(p.element(room, d), square)
            if not needed:
                continue
            weights = [self.weight(k, d) for k in range(len(Q))] if kind.ard else None
            pull = p.zeros()
            places = self.vectors(f["grad_z"], self.part_index(d, task, j))
            for u, (t, place) in enumerate(zip(differences, places, strict=True)):
                parts = [own[u] for own in Q]
                if weights is not None:
                    parts = [w * q for w, q in zip(weights, parts, strict=True)]
                weighted = reduce(add, parts) * t
                pull = pull + weighted
                if kind.columns_needed:
                    p.store(p.load(place) - weighted, place)
            if kind.rows_needed:
                p.add_to(p.element(self.pulls, d), pull)

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
        # A task's numbers: Σ P κ_k, Σ P κ′_k d², and for every input of a summand Σ Q_k (x − z)².
        size = 2 * count + len(self.squares) * kind.dims
        for k, pair in enumerate(self.sums):
            for which, room in enumerate(pair):
                index = p.at(INDEX(which * count + k), (task, INDEX(size)))
                p.add_double(f["sums"], index, p.load(room).total())
        with p.loop(INDEX(0), INDEX(kind.dims)) as d:
            if kind.rows_needed:
                place = p.place(f["grad_x"], self.x_index(i, d))
                p.add_to(place, p.load(p.element(self.pulls, d)).total())
            for k, room in enumerate(self.squares):
                total = p.load(p.element(room, d)).total()
                first = INDEX(2 * count + k * kind.dims)
                p.add_double(f["sums"], p.at(b.add(first, d), (task, INDEX(size))), total)
