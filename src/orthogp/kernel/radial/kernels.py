"""The radial sums as machine code for a CPU, one function for each use.

A call works through a job, a record of addresses and sizes. Its rows are cut into tasks; whoever
takes part draws the next task until none is left, so any number of threads may run one job, and
what comes out does not depend on how many did. All of Σ_k s_k κ_k(q_k) happens in registers, over
strips of columns whose points stay in the first-level cache; no block is written unless the block
is what was asked for. Columns are padded with zeros to whole vectors of a program.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add

from orthogp.kernel.radial import native
from orthogp.kernel.radial.emit import VECTOR_BYTES, Index, Number, Program
from orthogp.kernel.radial.families import families_with

NAME = "radial"
# Vectors of a strip.
STRIP = 8
# Addresses, then sizes. x is [rows, dims], z is [dims, width], rho is [k] or [k, dims].
FIELDS = (
    "next", "x", "z", "a", "rho", "scale", "out", "P", "g",
    "grad_x", "grad_z", "grad_a", "sums",
    "rows", "columns", "dims", "width", "stride", "latents", "tasks",
)  # fmt: skip

Pieces = Callable[[], AbstractContextManager[Index]]
Summand = tuple[int, Number | None, Number, Number, Number, Number]


@dataclass(frozen=True)
class Kind:
    """What a function is for.

    `ard` gives every summand distances of its own, Σ_d ρ_kd (x_d − z_d)². `dense` is about K
    itself, else about K a. The flags that remain name the gradients that are wanted; a function
    without any gives values.
    """

    families: tuple[str, ...]
    double: bool
    ard: bool
    dense: bool
    backward: bool = False
    rows_needed: bool = False
    columns_needed: bool = False


def piece(double: bool) -> int:
    """Columns that are worked on together."""
    return VECTOR_BYTES // (8 if double else 4)


def compile_function(kind: Kind) -> bytes:
    """The function of this kind, `NAME`, compiled for this machine."""
    return native.compile_program(program(kind))


def program(kind: Kind) -> str:
    """The function of this kind in LLVM's language, the same for every machine."""
    return (_Backward if kind.backward else _Forward)(kind).program().text()


def _exp_minus(t: Number) -> Number:
    """e^−t for t ≥ 0 that `_limit` leaves as it is, within two units in the last place."""
    program = t.program
    # e^−t = 2ⁿ e^r with |r| ≤ ½ log 2; adding a number whose last bit is worth one rounds n.
    if program.double:
        magic, digits = 1.5 * 2**52, 52
        high, low = 6.93147180369123816490e-01, 1.90821492927058770002e-10
        coefficients = (
            2.510522981321569e-08, 2.76263877218691e-07, 2.7557255369427714e-06,
            2.4801504273761e-05, 0.00019841269874844894, 0.0013888888932546337,
            0.008333333333326129, 0.041666666666572975, 0.1666666666666667, 0.5, 1.0, 1.0,
        )  # fmt: skip
    else:
        magic, digits = 1.5 * 2**23, 23
        high, low = 0.693359375, -2.12194440054690583e-4
        coefficients = (
            0.0013933660796991896, 0.008369164314730674, 0.04166646482796766,
            0.16666505117847225, 0.5, 1.0, 1.0,
        )  # fmt: skip
    shifted = t * -1.4426950408889634 + magic
    n = shifted - magic
    r = (t * -1.0 - n * high) - n * low
    y = program.constant(coefficients[0], program.vector)
    for coefficient in coefficients[1:]:
        y = y * r + coefficient
    return y.times_power_of_two(shifted, digits)


def _limit(t: Number) -> Number:
    """t, or where it is larger the largest t whose `_exp_minus` is no subnormal number."""
    return t.at_most(708.0 if t.program.double else 87.0)


def _ratio(e: Number, r: Number) -> Number:
    return e / r.replaced(0.0, float("inf"))


FAMILIES = families_with(sqrt=Number.sqrt, exp_minus=_exp_minus, limit=_limit, ratio=_ratio)


class _Loops(ABC):
    """What both directions share: tasks, strips, rows, pieces; distances, and the sum."""

    def __init__(self, kind: Kind):
        self.kind, self.p = kind, Program(NAME, kind.double, FIELDS)
        self.f, self.step = self.p.fields, piece(kind.double)

    @abstractmethod
    def row(self, task: Index, i: Index, pieces: Pieces) -> None:
        """Emits the work on row i in a strip; inside `pieces()` that on the columns from j on."""

    def program(self) -> Program:
        p, f = self.p, self.f
        strip = STRIP * self.step
        with p.tasks(f["next"], f["tasks"]) as task:
            start, stop = (t * f["rows"] // f["tasks"] for t in (task, task + 1))
            with p.loop(0, f["width"], strip) as left:
                right = (left + strip).minimum(f["width"])
                with p.loop(start, stop) as i:
                    self.row(task, i, lambda: p.loop(left, right, self.step))
        return p

    def number(self, field: str, index: Index | int) -> Number:
        """One number of an array, in every lane of a vector."""
        return self.p.spread(self.p.scalar(self.p.place(self.f[field], index)))

    def x_index(self, i: Index, d: Index) -> Index:
        return i * self.f["dims"] + d

    def differences(self, i: Index, d: Index, j: Index) -> Number:
        """x_id − z_jd of a piece."""
        z = self.p.load(self.p.place(self.f["z"], d * self.f["width"] + j))
        return self.number("x", self.x_index(i, d)) - z

    def distances(self, i: Index, j: Index) -> list[Number]:
        """Of a piece |x_i − z_j|², or what every summand has in its place."""
        p = self.p
        totals = [p.variable() for _ in (self.kind.families if self.kind.ard else (None,))]
        for total in totals:
            p.store(p.zeros(), total)
        with self.inputs() as d:
            difference = self.differences(i, d, j)
            square = difference * difference
            for k, total in enumerate(totals):
                p.add_to(total, self.weight(k, d) * square if self.kind.ard else square)
        return [p.load(total) for total in totals]

    def weight(self, k: int, d: Index) -> Number:
        """ρ_kd."""
        return self.number("rho", self.f["dims"] * k + d)

    def inputs(self) -> AbstractContextManager[Index]:
        """Loops over the inputs."""
        return self.p.loop(0, self.f["dims"])

    def families(self, i: Index, j: Index) -> Iterator[Summand]:
        """Of each summand: its number, ρ or None, s, and d², κ, κ′ of a piece."""
        distances = self.distances(i, j)
        for k, name in enumerate(self.kind.families):
            d2 = distances[k if self.kind.ard else 0]
            rho = None if self.kind.ard else self.number("rho", k)
            found = FAMILIES[name](d2 if rho is None else rho * d2)
            yield k, rho, self.number("scale", k), d2, *found


class _Forward(_Loops):
    """Writes K itself, or adds K a to the output."""

    def row(self, task: Index, i: Index, pieces: Pieces) -> None:
        with pieces() as j:
            self.piece(i, j)

    def piece(self, i: Index, j: Index) -> None:
        p, f = self.p, self.f
        value = p.zeros()
        for _, _, scale, _, kappa, _ in self.families(i, j):
            value = value + scale * kappa
        if self.kind.dense:
            p.store_part(value, p.place(f["out"], i * f["stride"] + j), f["columns"] - j)
            return
        with p.loop(0, f["latents"]) as c:
            weights = p.load(p.place(f["a"], c * f["width"] + j))
            product = (value * weights).partial_sums().total()
            p.add_to(p.place(f["out"], c * f["rows"] + i), product)


class _Backward(_Loops):
    """The gradients, from P = ∂ℓ/∂K as it is given or as gᵀ a.

    With Q = 2 P ∘ Σ_k s_k ρ_k κ′_k, ∂ℓ/∂x_i = Σ_j Q_ij (x_i − z_j); ∂ℓ/∂z_j is −Σ_i of the same.
    Where every summand has a ρ for every input, so has Q, and Q_k is what it is without ρ. The
    gradients of rows are complete, the others are sums over the rows of a task.
    """

    def __init__(self, kind: Kind):
        super().__init__(kind)
        p = self.p
        self.sums = [[p.variable(p.sum) for _ in range(2)] for _ in kind.families]
        self.pulls = p.array_of_sums(self.f["dims"])
        squares = kind.families if kind.ard else ()
        self.squares = [p.array_of_sums(self.f["dims"]) for _ in squares]

    def row(self, task: Index, i: Index, pieces: Pieces) -> None:
        self.clear()
        with pieces() as j:
            self.piece(task, i, j)
        self.flush(task, i)

    def clear(self) -> None:
        """Sets what a row sums up to zero."""
        p = self.p
        for memory in chain(*self.sums):
            p.store(p.zeros(p.sum), memory)
        with self.inputs() as d:
            for memory in (self.pulls, *self.squares):
                p.store(p.zeros(p.sum), p.element_of_sums(memory, d))

    def piece(self, task: Index, i: Index, j: Index) -> None:
        p = self.p
        P = self.weights(i, j)
        value, Q = p.zeros(), []
        for k, rho, scale, d2, kappa, slope in self.families(i, j):
            factor = scale * 2.0 if rho is None else rho * scale * 2.0
            Q.append(factor * (P * slope))
            value = value + scale * kappa
            p.add_to(self.sums[k][0], (P * kappa).partial_sums())
            if rho is not None:
                p.add_to(self.sums[k][1], (Q[k] * d2).partial_sums())
        self.points(task, i, j, Q)
        if not self.kind.dense:
            self.add_products(task, i, j, value)

    def weights(self, i: Index, j: Index) -> Number:
        """P of a piece; zero beyond the last column."""
        p, f = self.p, self.f
        if self.kind.dense:
            return p.load_part(p.place(f["P"], i * f["stride"] + j), f["columns"] - j)
        total = p.variable()
        p.store(p.zeros(), total)
        with p.loop(0, f["latents"]) as c:
            a = p.load(p.place(f["a"], c * f["width"] + j))
            p.add_to(total, self.number("g", c * f["rows"] + i) * a)
        return p.load(total)

    def points(self, task: Index, i: Index, j: Index, Q: list[Number]) -> None:
        kind, p, f = self.kind, self.p, self.f
        needed = kind.rows_needed or kind.columns_needed
        if not (needed or kind.ard):
            return
        if not kind.ard:
            Q = [reduce(add, Q)]
        with self.inputs() as d:
            difference = self.differences(i, d, j)
            for own, memory in zip(Q, self.squares, strict=False):
                p.add_to(
                    p.element_of_sums(memory, d), (own * (difference * difference)).partial_sums()
                )
            if needed:
                parts = [self.weight(k, d) * own for k, own in enumerate(Q)] if kind.ard else Q
                pull = reduce(add, parts) * difference
            if kind.columns_needed:
                place = p.place(f["grad_z"], self.part_index(d, task, j))
                p.store(p.load(place) - pull, place)
            if kind.rows_needed:
                p.add_to(p.element_of_sums(self.pulls, d), pull.partial_sums())

    def part_index(self, row: Index, task: Index, j: Index) -> Index:
        """Index of a task's own part of a sum over rows."""
        return (row * self.f["tasks"] + task) * self.f["width"] + j

    def add_products(self, task: Index, i: Index, j: Index, value: Number) -> None:
        """g_ci K_ij to the gradient of a."""
        p, f = self.p, self.f
        with p.loop(0, f["latents"]) as c:
            place = p.place(f["grad_a"], self.part_index(c, task, j))
            p.add_to(place, self.number("g", c * f["rows"] + i) * value)

    def flush(self, task: Index, i: Index) -> None:
        """Adds what a row summed up to the sums of its task and to its own gradient."""
        kind, p, f = self.kind, self.p, self.f
        count = len(kind.families)
        # A task's numbers: Σ P κ_k, Σ Q_k d², and for every input of a summand Σ Q_k (x − z)².
        first = task * (f["dims"] * len(self.squares) + 2 * count)
        for k, pair in enumerate(self.sums):
            for which, memory in enumerate(pair):
                total = p.load(memory, p.sum).total()
                p.add_double(f["sums"], first + (which * count + k), total)
        with self.inputs() as d:
            if kind.rows_needed:
                place = p.place(f["grad_x"], self.x_index(i, d))
                p.add_to(place, p.load(p.element_of_sums(self.pulls, d), p.sum).total())
            for k, memory in enumerate(self.squares):
                total = p.load(p.element_of_sums(memory, d), p.sum).total()
                p.add_double(f["sums"], first + f["dims"] * k + d + 2 * count, total)
