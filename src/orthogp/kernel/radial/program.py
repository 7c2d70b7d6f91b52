"""The radial sums in LLVM's language: one function for each `Kind`, the same for every processor.

A call works through a record of addresses and sizes. Its rows are cut into tasks; every thread that
takes part draws the next task until none is left, so what comes out does not depend on how many
threads did. All of Σ_k s_k κ_k(q_k) happens in registers, over strips of columns whose points stay
in the first-level cache; no block is written unless the block is what was asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

from orthogp.kernel.radial.families import families_with
from orthogp.kernel.radial.writer import Function, Value

# Bytes of a vector: longer than any register, so that LLVM has several to work on side by side.
VECTOR_BYTES = 256
# Vectors of a strip.
STRIP = 8
# x and grad_x are [rows, dims], z [dims, width], a [latents, width], rho [k, 1] or [k, dims]; out
# and upstream, its gradient, are [rows, stride] or [latents, rows]; grad_z [dims, tasks, width],
# grad_a [latents, tasks, width], sums [tasks, num_sums] of float64. The width is that of the
# columns padded with zeros to whole vectors.
ADDRESSES = (
    "x", "z", "a", "rho", "scale", "out", "upstream", "grad_x", "grad_z", "grad_a", "sums",
)  # fmt: skip
SIZES = ("rows", "columns", "dims", "width", "stride", "latents", "tasks", "num_sums")

Summand = tuple[int, "Value", "Value | None", "Value", "Value", "Value"]


@dataclass(frozen=True)
class Kind:
    """What a function is for.

    With `ard` every summand has distances of its own, Σ_d ρ_kd (x_d − z_d)². `dense` is about K
    itself, else it is about K a. A function gives values, or, with `backward`, the gradients of
    the parameters, of a, and of the points of rows and columns where they are needed. `symmetric`
    is about K of points with themselves: every pair is worked on once, its values are written
    twice, and its gradients are those of the entries up to the diagonal. Of K a the rows may then
    go on below the columns; what columns get from the entries up to the diagonal is in grad_a.
    """

    families: tuple[str, ...]
    double: bool
    ard: bool
    dense: bool
    backward: bool = False
    rows_needed: bool = False
    columns_needed: bool = False
    symmetric: bool = False

    @property
    def lanes(self) -> int:
        """Numbers of a vector: columns that are worked on together."""
        return VECTOR_BYTES // (8 if self.double else 4)


def _exp_minus(t: Value) -> Value:
    """e^−t for t ≥ 0 that `_limit` leaves as it is, within two units in the last place."""
    f = t.function
    # e^−t = 2ⁿ e^r with |r| ≤ ½ log 2; adding a number whose last bit is worth one rounds n.
    if f.double:
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
    y = f.constant(coefficients[0], f.vector)
    for coefficient in coefficients[1:]:
        y = y * r + coefficient
    # Times 2ⁿ: n is in the last bits of `shifted`, and the exponent of y begins after its digits.
    word, bits = f"i{8 * f.size}", f"<{f.lanes} x i{8 * f.size}>"
    exponent, own = (f.emit(f"bitcast {v} to {bits}") for v in (shifted, y))
    power = f.emit(f"shl {bits} {exponent}, splat ({word} {digits})")
    total = f.emit(f"add {bits} {own}, {power}")
    return f.value(f.vector, f"bitcast {bits} {total} to {f.vector}")


def _limit(t: Value) -> Value:
    """t, or where it is larger the largest t whose e^−t is no subnormal number."""
    return t.at_most(708.0 if t.function.double else 87.0)


def _ratio(e: Value, r: Value) -> Value:
    return e / r.replaced("eq", 0.0, float("inf"))


FAMILIES = families_with(sqrt=Value.sqrt, exp_minus=_exp_minus, limit=_limit, ratio=_ratio)


class RadialSum:
    """Writes what there is to a sum of radial kernels, on one vector of columns after another."""

    def __init__(self, kind: Kind, function: Function):
        self.f, self.kind, self.count = function, kind, len(kind.families)
        self.zero = function.constant(0.0, function.vector)

    def number(self, field: str, index: Value | int) -> Value:
        """One number of an array, in every lane of a vector."""
        return self.f.spread(self.f.at(self.f[field], index))

    def weight(self, k: int, d: Value) -> Value:
        """ρ_kd."""
        return self.number("rho", self.f["dims"] * k + d)

    def difference(self, i: Value, d: Value, j: Value) -> Value:
        """x_id − z_jd."""
        f = self.f
        z = f.load(f.at(f["z"], d * f["width"] + j))
        return self.number("x", i * f["dims"] + d) - z

    def distances(self, rows: list[Value], j: Value) -> list[list[Value]]:
        """Of each of these rows |x_i − z_j|², or what every summand has in its place."""
        f, ard = self.f, self.kind.ard
        number = self.count if ard else 1
        totals = [[f.variable(self.zero) for _ in range(number)] for _ in rows]
        with f.loop(0, f["dims"]) as d:
            for i, own in zip(rows, totals, strict=True):
                difference = self.difference(i, d, j)
                square = difference * difference
                for k, total in enumerate(own):
                    f.add_to(total, self.weight(k, d) * square if ard else square)
        return [[f.load(total) for total in own] for own in totals]

    def summands(self, distances: list[Value]) -> Iterator[Summand]:
        """Of each summand: its number, s, ρ or None, d², κ, κ′."""
        for k, name in enumerate(self.kind.families):
            d2 = distances[k if self.kind.ard else 0]
            rho = None if self.kind.ard else self.number("rho", k)
            found = FAMILIES[name](d2 if rho is None else rho * d2)
            yield k, self.number("scale", k), rho, d2, *found

    def covariances(self, rows: list[Value], j: Value) -> list[Value]:
        """Entries of K in each of these rows."""
        found = []
        for distances in self.distances(rows, j):
            K = self.zero
            for _, scale, _, _, kappa, _ in self.summands(distances):
                K = K + scale * kappa
            found.append(K)
        return found


class _Kernel(RadialSum):
    """Writes the function of one kind.

    The gradients come from P = ∂ℓ/∂K as it is given or as gᵀ a. With Q = 2 P ∘ Σ_k s_k ρ_k κ′_k,
    ∂ℓ/∂x_i = Σ_j Q_ij (x_i − z_j); ∂ℓ/∂z_j is −Σ_i of the same. Where every summand has a ρ for
    every input, so has Q, and Q_k is what it is without ρ. The gradients of rows are complete, the
    others are sums over the rows of a task. Values with an index j are vectors: of the columns from
    j on, as many as fill one.
    """

    def __init__(self, kind: Kind):
        f = Function(kind.double, kind.lanes, ADDRESSES, SIZES)
        super().__init__(kind, f)
        # Of a row: Σ P κ_k; Σ Q_k d², or Σ Q_k (x_d − z_d)² of every input; then ∂ℓ/∂x_id.
        self.num_accumulators = f["num_sums"] + f["dims"]
        self.accumulators = f.value("ptr", f"alloca {f.sum}, {self.num_accumulators}")

    def values(self, task: Value, i: Value, j: Value) -> None:
        """Writes K itself, or adds K a to the output, with `symmetric` also Kᵀ upstream."""
        f, (K,) = self.f, self.covariances([i], j)
        if self.kind.dense:
            row, place = f.variable(K), f.at(f["out"], i * f["stride"] + j)
            f.copy_part(row, place, self.stop(i) - j)
            if self.kind.symmetric:
                with f.loop(0, (i - j).at_most(f.lanes)) as lane:
                    above = f.at(f["out"], (j + lane) * f["stride"] + i)
                    f.store(f.load(f.at(row, lane), f.number), above)
            return
        if self.kind.symmetric:
            lower = f.variable(self.zero)
            f.copy_part(f.variable(K), lower, self.stop(i) - j)
            K = f.load(lower)
        with f.loop(0, f["latents"]) as c:
            a = f.load(f.at(f["a"], c * f["width"] + j))
            f.add_to(f.at(f["out"], c * f["rows"] + i), (K * a).partial_sums().total())
            if self.kind.symmetric:
                self.add_to_columns(task, i, j, c, K)

    def add_to_columns(self, task: Value, i: Value, j: Value, c: Value, K: Value) -> None:
        """What a row gives to Kᵀ upstream."""
        f = self.f
        place = f.at(f["grad_a"], (c * f["tasks"] + task) * f["width"] + j)
        f.add_to(place, self.number("upstream", c * f["rows"] + i) * K)

    def stop(self, i: Value) -> Value:
        """The first column that a row does not have."""
        return i + 1 if self.kind.symmetric else self.f["columns"]

    def upstream(self, i: Value, j: Value) -> Value:
        """P, with zeros beyond the last column."""
        f, P = self.f, self.f.variable(self.zero)
        if self.kind.dense:
            f.copy_part(f.at(f["upstream"], i * f["stride"] + j), P, self.stop(i) - j)
            return f.load(P)
        with f.loop(0, f["latents"]) as c:
            a = f.load(f.at(f["a"], c * f["width"] + j))
            f.add_to(P, self.number("upstream", c * f["rows"] + i) * a)
        return f.load(P)

    def gradients(self, task: Value, i: Value, j: Value) -> None:
        f, kind = self.f, self.kind
        P, K, Q = self.upstream(i, j), self.zero, []
        (distances,) = self.distances([i], j)
        for k, scale, rho, d2, kappa, slope in self.summands(distances):
            factor = scale * 2.0 if rho is None else rho * scale * 2.0
            Q.append(factor * (P * slope))
            K = K + scale * kappa
            self.accumulate(k, P * kappa)
            if rho is not None:
                self.accumulate(self.count + k, Q[k] * d2)
        if kind.ard or kind.rows_needed or kind.columns_needed:
            Q = Q if kind.ard else [reduce(add, Q)]
            with f.loop(0, f["dims"]) as d:
                self.input_gradients(task, i, j, d, Q)
        if not kind.dense:
            with f.loop(0, f["latents"]) as c:
                self.add_to_columns(task, i, j, c, K)

    def input_gradients(self, task: Value, i: Value, j: Value, d: Value, Q: list[Value]) -> None:
        """What input d gives to the gradients of the points and of its own lengthscales."""
        f, kind = self.f, self.kind
        difference = self.difference(i, d, j)
        if kind.ard:
            square = difference * difference
            for k, own in enumerate(Q):
                self.accumulate(f["dims"] * k + d + self.count, own * square)
            Q = [self.weight(k, d) * own for k, own in enumerate(Q)]
        pull = reduce(add, Q) * difference
        if kind.columns_needed:
            place = f.at(f["grad_z"], (d * f["tasks"] + task) * f["width"] + j)
            f.store(f.load(place) - pull, place)
        if kind.rows_needed:
            self.accumulate(f["num_sums"] + d, pull)

    def accumulator(self, index: Value | int) -> Value:
        return self.f.at(self.accumulators, index, self.f.sum)

    def accumulate(self, index: Value | int, terms: Value) -> None:
        self.f.add_to(self.accumulator(index), terms.partial_sums())

    def clear_accumulators(self) -> None:
        f = self.f
        with f.loop(0, self.num_accumulators) as n:
            f.store(f.constant(0.0, f.sum), self.accumulator(n))

    def add_accumulated(self, task: Value, i: Value) -> None:
        """Adds what a row accumulated to the sums of its task and to its own gradient."""
        f = self.f
        with f.loop(0, f["num_sums"]) as n:
            total = f.load(self.accumulator(n), f.sum).total()
            wide = total if f.double else f.value("double", f"fpext {total} to double")
            f.add_to(f.at(f["sums"], task * f["num_sums"] + n, "double"), wide)
        if self.kind.rows_needed:
            with f.loop(0, f["dims"]) as d:
                total = f.load(self.accumulator(f["num_sums"] + d), f.sum).total()
                f.add_to(f.at(f["grad_x"], i * f["dims"] + d), total)


def program(kind: Kind) -> str:
    """The function `void NAME(int64 *record)` of this kind."""
    kernel = _Kernel(kind)
    f, strip = kernel.f, STRIP * kind.lanes
    with f.tasks() as task:
        # The last rows first: where K is symmetric they take longest.
        part = f["tasks"] - task - 1
        start, stop = (t * f["rows"] // f["tasks"] for t in (part, part + 1))
        with f.loop(0, stop if kind.symmetric else f["width"], strip) as left:
            right = (left + strip).at_most(f["width"])
            with f.loop(start, stop) as i:
                if kind.backward:
                    kernel.clear_accumulators()
                with f.loop(left, right.at_most(kernel.stop(i)), kind.lanes) as j:
                    (kernel.gradients if kind.backward else kernel.values)(task, i, j)
                if kind.backward:
                    kernel.add_accumulated(task, i)
    return f.text()
