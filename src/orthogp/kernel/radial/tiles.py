"""Products of matrices in registers, some rows by one vector of columns at a time."""

from orthogp.kernel.radial import native
from orthogp.kernel.radial.writer import Function, Value

# Products in a pass of the loop over p.
UNROLLED = 4


def rows_in_registers() -> int:
    """How many rows have their sums in registers, each a vector of SUM_BYTES."""
    return 8 if native.has_long_registers() else 4


def products(
    f: Function, left: Value, height: int, stride: int, right: Value, count: Value
) -> list[Value]:
    """Σ_p left[p, n] right[p] for n below `height`.

    left[p] are `height` numbers, `stride` numbers after those of p − 1; right[p] is a vector, the
    next one of p − 1.
    """
    short = f"<{height} x {f.number}>"
    sums = [f.variable(f.constant(0.0, f.vector)) for _ in range(height)]

    def add_products(p: Value) -> None:
        # One load for all numbers: processors that multiply by a lane need no more.
        numbers, vector = f.load(f.at(left, p * stride), short), f.load(f.at(right, p * f.lanes))
        for n, total in enumerate(sums):
            everywhere = ", ".join([f"i32 {n}"] * f.lanes)
            spread = f"{numbers}, {short} poison, <{f.lanes} x i32> <{everywhere}>"
            f.add_to(total, f.value(f.vector, f"shufflevector {spread}") * vector)

    whole = count // UNROLLED * UNROLLED
    with f.loop(0, whole, UNROLLED) as p:
        for n in range(UNROLLED):
            add_products(p + n)
    with f.loop(whole, count) as p:
        add_products(p)
    return [f.load(total) for total in sums]
