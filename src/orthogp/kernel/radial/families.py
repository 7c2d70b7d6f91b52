"""The radial families, each written once: q = ρ |x − z|² ↦ κ(q) and κ′(q).

A formula consists of sums, products and four operations that its caller gives it:

- `sqrt(t)`: √t
- `exp_minus(t)`: e^−t, for t ≥ 0
- `limit(t)`: t, or some t with e^−t ≈ 0 where it is larger, for an `exp_minus` that takes no more
- `ratio(e, r)`: e / r, and 0 at r = 0

The same lines so run on torch tensors (`tiled`), write LLVM vectors (`program`), are translated by
Triton (`fused`), and become ONNX nodes (`orthogp.storage.onnx`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any


def _rbf(q, sqrt, exp_minus, limit, ratio):
    e = exp_minus(limit(0.5 * q))
    return e, -0.5 * e


def _matern12(q, sqrt, exp_minus, limit, ratio):
    r = limit(sqrt(q))
    e = exp_minus(r)
    # κ′ is infinite at r = 0, where it multiplies x − z = 0: that product is 0.
    return e, -0.5 * ratio(e, r)


def _matern32(q, sqrt, exp_minus, limit, ratio):
    r = limit(sqrt(3.0 * q))
    e = exp_minus(r)
    return (1.0 + r) * e, -1.5 * e


def _matern52(q, sqrt, exp_minus, limit, ratio):
    r = limit(sqrt(5.0 * q))
    e = exp_minus(r)
    linear = (1.0 + r) * e
    return r * r * e * (1.0 / 3.0) + linear, (-5.0 / 6.0) * linear


FORMULAS = {"rbf": _rbf, "matern12": _matern12, "matern32": _matern32, "matern52": _matern52}


def families_with(**operations: Callable) -> dict[str, Callable[[Any], tuple[Any, Any]]]:
    """Every family as a function q ↦ (κ, κ′), with these operations."""
    return {name: partial(formula, **operations) for name, formula in FORMULAS.items()}
