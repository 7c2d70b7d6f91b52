"""Monotone transforms of a skewed target: the model sees g(y), every answer is in the units of y.

Quantiles are those of g(y), mapped back; densities have the Jacobian g′(y); mean and standard
deviation are those of the distribution of y, by quadrature.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from orthogp.errors import ConfigurationError, DataError, FileError, OrthogpError
from orthogp.estimators.scaling import Array

KINDS = ("log", "yeo-johnson")
# Below 0 or above 2 one tail of the inverse ends at a finite z, and moments of y are infinite.
LOWEST, HIGHEST = 0.0, 2.0
# "auto": how many rows candidates are fitted to and judged by, and how skewed y must be for any.
TRIED_ROWS, JUDGED_SHARE, LEAST_SKEW = 900, 1 / 3, 1.0
# Of Gauss–Hermite quadrature.
NODES = 32


@dataclass(frozen=True)
class TargetTransform:
    """g(y) = log y, or the Yeo–Johnson transform of y / unit with an exponent.

    `mean_log_slope` is the mean of log g′(y) over the rows of training.
    """

    kind: str
    unit: float
    exponent: float
    mean_log_slope: float = 0.0

    def forward(self, y: Array) -> Array:
        """g(y); of a y that cannot be, NaN or −∞."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.kind == "log":
                return np.log(y)
            x, low, high = y / self.unit, 2.0 - self.exponent, self.exponent
            right = _box_cox(np.maximum(x, 0.0), high)
            return np.where(x >= 0, right, -_box_cox(np.maximum(-x, 0.0), low))

    def inverse(self, z: Array) -> Array:
        """y of g(y) = z."""
        with np.errstate(over="ignore"):
            if self.kind == "log":
                return np.exp(z)
            low, high = 2.0 - self.exponent, self.exponent
            right = _inverse_box_cox(np.maximum(z, 0.0), high)
            x = np.where(z >= 0, right, -_inverse_box_cox(np.maximum(-z, 0.0), low))
            return x * self.unit

    def log_slope(self, y: Array) -> Array:
        """log g′(y); −∞ where y cannot be."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.kind == "log":
                return np.where(y > 0, -np.log(y), -np.inf)
            # g′ = (1 + |x|)^(±(λ − 1)) / unit
            x = y / self.unit
            return np.sign(x) * (self.exponent - 1.0) * np.log1p(np.abs(x)) - np.log(self.unit)

    def __str__(self) -> str:
        return "log" if self.kind == "log" else f"yeo-johnson with exponent {self.exponent:.2f}"

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @staticmethod
    def from_json(value: Any) -> "TargetTransform":
        """The reverse of `as_json`, for untrusted input."""
        names = ("kind", "unit", "exponent", "mean_log_slope")
        if not isinstance(value, dict) or set(value) != set(names) or value["kind"] not in KINDS:
            raise FileError("its transform of the target is not one")
        numbers = [value[name] for name in names[1:]]
        plain = all(type(number) in (int, float) and np.isfinite(number) for number in numbers)
        if not plain or numbers[0] <= 0 or not LOWEST <= numbers[1] <= HIGHEST:
            raise FileError("its transform of the target is not one")
        return TargetTransform(value["kind"], *map(float, numbers))


def _box_cox(x: Array, exponent: float) -> Array:
    """((1 + x)^p − 1) / p for x ≥ 0."""
    logarithm = np.log1p(x)
    return logarithm if exponent == 0 else np.expm1(exponent * logarithm) / exponent


def _inverse_box_cox(z: Array, exponent: float) -> Array:
    return np.expm1(z if exponent == 0 else np.log1p(exponent * z) / exponent)


def check_transform(kind: Any) -> None:
    if not (kind is None or (isinstance(kind, str) and kind in (*KINDS, "auto"))):
        raise ConfigurationError(
            f"target_transform is {kind!r}; expected None, 'auto', {', '.join(map(repr, KINDS))}"
        )


def learn_transform(kind: str, y: Array, weight: Array | None) -> TargetTransform:
    """The transform of this kind for targets `(n,)`."""
    if kind == "log":
        bad = int((y <= 0).sum())
        if bad:
            raise DataError(
                f"y has {bad} values that are not positive; target_transform='log' needs positive "
                "ones: use 'yeo-johnson' or 'auto'"
            )
        found = TargetTransform("log", 1.0, 0.0)
    else:
        unit = float(y.std()) or 1.0
        best = np.asarray(stats.yeojohnson_normmax(y / unit)) if np.ptp(y) else np.ones(())
        exponent = float(best)
        exponent = min(max(exponent, LOWEST), HIGHEST) if np.isfinite(exponent) else 1.0
        found = TargetTransform("yeo-johnson", unit, exponent)
    slope = float(np.average(found.log_slope(y), weights=weight))
    return TargetTransform(found.kind, found.unit, found.exponent, slope)


def choose_transform(estimator: type, settings: Mapping[str, Any], X: Any, y: Array) -> str | None:
    """The kind whose density in the units of y is best on rows that were left out; None for none.

    Each candidate is fitted to some hundred rows. A transform must gain more than the standard
    error of its gain.
    """
    if y.ndim != 1 or len(np.unique(y)) < 10 or stats.skew(y) < LEAST_SKEW:
        return None
    order = np.random.default_rng(0).permutation(len(y))[:TRIED_ROWS]
    judged, fitted = np.split(order, [round(JUDGED_SHARE * len(order))])
    rows = [X[part] if isinstance(X, np.ndarray) else X.take(part) for part in (fitted, judged)]
    quiet = {"callbacks": (), "verbose": False, "checkpoint_dir": None, "warm_start": False}
    quiet |= {"coverage_guarantee": False, "input_transform": None}
    best, base = None, None
    for kind in (None, "yeo-johnson", *(["log"] if (y > 0).all() else [])):
        candidate = estimator(**{**settings, **quiet, "target_transform": kind})
        try:
            candidate.fit(rows[0], y[fitted])
            density = candidate.log_density(rows[1], y[judged])
        except OrthogpError:
            if kind is None:
                return None
            continue
        if base is None:
            base = best = (density, None)
            continue
        assert best is not None
        gain = density - best[0]
        if gain.mean() > gain.std() / len(gain) ** 0.5:
            best = (density, kind)
    return None if best is None else best[1]


def moments(transform: TargetTransform, mean: NDArray, std: NDArray) -> tuple[NDArray, NDArray]:
    """Mean and standard deviation of y where z = g(y) is normal with these moments."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    y = transform.inverse(mean[..., None] + std[..., None] * nodes)
    first = y @ weights
    with np.errstate(over="ignore"):
        second = ((y - first[..., None]) ** 2) @ weights
    return first, np.sqrt(second)
