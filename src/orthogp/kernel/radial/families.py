"""The radial families on vectors of a program under construction: q = ρ d² ↦ κ(q) and κ′(q)."""

from collections.abc import Callable

from orthogp.kernel.radial.emit import Number


def decay(t: Number) -> Number:
    """e^−t for t ≥ 0 that `clamped` leaves as it is, within two units in the last place."""
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


def clamped(t: Number) -> Number:
    """t, or where it is larger the largest t whose `decay` is no subnormal number."""
    return t.at_most(708.0 if t.program.double else 87.0)


def _rbf(q: Number) -> tuple[Number, Number]:
    value = decay(clamped(q * 0.5))
    return value, value * -0.5


def _matern12(q: Number) -> tuple[Number, Number]:
    r = clamped(q.sqrt())
    value = decay(r)
    # κ′ is infinite at r = 0, where x − z = 0 multiplies it: that product is 0.
    return value, value * -0.5 / r.replaced(0.0, float("inf"))


def _matern32(q: Number) -> tuple[Number, Number]:
    r = clamped((q * 3.0).sqrt())
    exponential = decay(r)
    return (r + 1.0) * exponential, exponential * -1.5


def _matern52(q: Number) -> tuple[Number, Number]:
    r = clamped((q * 5.0).sqrt())
    exponential = decay(r)
    linear = (r + 1.0) * exponential
    return r * r * exponential * (1.0 / 3.0) + linear, linear * (-5.0 / 6.0)


FAMILIES: dict[str, Callable[[Number], tuple[Number, Number]]] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
}
