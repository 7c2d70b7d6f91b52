"""Monotone transforms of skewed numbers: their logarithm, or the normal scores of their quantiles.

A kernel with one lengthscale for a column sees its values at one resolution. Of a column that spans
decades most values then lie within a lengthscale of each other, and a few far from all others.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from orthogp.tables.arrow import Matrix

KINDS = ("log", "quantile")
# How skewed a column must be, or how heavy its tails, and how many values it must have.
LEAST_SKEW, LEAST_KURTOSIS, FEWEST_VALUES = 1.5, 6.0, 20
KNOTS = 64


@dataclass(frozen=True)
class Monotone:
    """g(x) = log(max(x, `x`) + `z`), or the line through the knots (`x`, `z`), which goes on beyond
    the first and the last as steeply as between them and their neighbours."""

    kind: str
    x: tuple[float, ...]
    z: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(bool((np.diff(part) > 0).all()) for part in (self.x, self.z))
        count = len(self.x)
        enough = count == 1 and sum(self.x + self.z) > 0 if self.kind == "log" else count > 1
        if self.kind not in KINDS or not rising or not enough or count != len(self.z):
            raise ValueError("no monotone transform")

    def __call__(self, values: Matrix) -> Matrix:
        x, z = np.array(self.x), np.array(self.z)
        if self.kind == "log":
            return np.log(np.maximum(values, x) + z)
        slope = np.diff(z) / np.diff(x)
        below, above = np.minimum(values - x[0], 0.0), np.maximum(values - x[-1], 0.0)
        return np.interp(values, x, z) + slope[0] * below + slope[-1] * above

    def inverse(self, transformed: Matrix) -> Matrix:
        """The x of g(x), within those that g was learned from on either side where it has knots."""
        x, z = np.array(self.x), np.array(self.z)
        if self.kind == "log":
            return np.maximum(np.exp(transformed) - z, x)
        return np.interp(transformed, z, x)

    def __str__(self) -> str:
        if self.kind == "quantile":
            return "normal scores of its quantiles"
        return f"log(x + {self.z[0]:.4g})" if self.z[0] else "log"


def suitable_transform(values: Matrix) -> Monotone | None:
    """The transform that may suit these numbers, NaN among them; None where they are not skewed."""
    present = values[~np.isnan(values)]
    if len(np.unique(present)) < FEWEST_VALUES:
        return None
    unit = np.abs(present).max()
    skew, kurtosis = float(stats.skew(present / unit)), float(stats.kurtosis(present / unit))
    if abs(skew) < LEAST_SKEW and kurtosis < LEAST_KURTOSIS:
        return None
    lowest = float(present.min())
    if lowest < 0 or skew <= 0:
        return normal_scores(present)
    # Zeros move by the median of the others.
    shift = 0.0 if lowest > 0 else float(np.median(present[present > 0]))
    return Monotone("log", (lowest,), (shift,))


def normal_scores(values: Matrix) -> Monotone:
    """Quantiles to those of a normal distribution; values that are equal have their middle rank."""
    distinct, counts = np.unique(values, return_counts=True)
    z = stats.norm.ppf((np.cumsum(counts) - counts / 2) / len(values))
    chosen = np.searchsorted(z, np.linspace(z[0], z[-1], KNOTS)).clip(0, len(z) - 1)
    # What rounding has made equal is one knot.
    chosen = [i for i in np.unique(chosen) if i == 0 or z[i] > z[i - 1]]
    return Monotone("quantile", tuple(distinct[chosen].tolist()), tuple(z[chosen].tolist()))
