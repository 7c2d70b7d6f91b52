"""Numbers as a reader wants them, and the ticks of an axis. `page.js` has the same rules."""

import math

# Narrow and not breaking: 20 000 stays on one line.
THOUSANDS = "\u202f"


def number(value: float, digits: int = 6) -> str:
    """At most so many significant digits, a true minus, thousands apart."""
    if not math.isfinite(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace(",", THOUSANDS).replace("-", "−")


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within the range."""
    step = nice_step((high - low) / most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def nice_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= least * (1 - 1e-9))


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten within the range, or 1, 2 and 5 times those where they are few.

    A range that holds hardly any of these is ticked as a linear one.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**exponent for exponent in range(first, last + 1)]
    for multiples in ((1, 2, 5), (1,)):
        ticks = [m * power for power in powers for m in multiples if low <= m * power <= high]
        if len(ticks) <= most:
            break
    else:
        ticks = ticks[:: math.ceil(len(ticks) / most)]
    return ticks if len(ticks) > 1 else linear_ticks(low, high, most)
