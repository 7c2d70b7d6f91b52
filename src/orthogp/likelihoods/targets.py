"""Checks of targets, and their layout."""

from jaxtyping import Float, Real, Shaped
from torch import Tensor

from orthogp.errors import DataError

# Shapes: n rows, c latents, which for numbers are the outputs, q nodes of a quadrature rule.
RowTargets = Real[Tensor, "n *outputs"]
Outputs = Real[Tensor, "c n"]
Latents = Float[Tensor, "c n"]
AtNodes = Float[Tensor, "q c n"]
PerRow = Float[Tensor, " n"]


def latents_first(y: RowTargets) -> Outputs:
    """Targets in the layout of the marginals: `[n]` becomes `[1, n]`, `[n, c]` becomes `[c, n]`."""
    return y.unsqueeze(0) if y.ndim == 1 else y.mT


def require_numbers(y: RowTargets, num_latents: int) -> None:
    """Refuse a wrong number of outputs, and targets that are missing or infinite."""
    outputs = 1 if y.ndim == 1 else y.shape[-1]
    if y.ndim > 2 or outputs != num_latents:
        raise DataError(
            f"y has shape {tuple(y.shape)} but the likelihood has {num_latents} output(s); "
            f"pass {'[n]' if num_latents == 1 else f'[n, {num_latents}]'}"
        )
    _refuse(~y.isfinite(), "missing or infinite; drop those rows or impute them before fit")


def require_not_negative(y: RowTargets, num_latents: int) -> None:
    require_numbers(y, num_latents)
    _refuse(y < 0, "negative; squares are expected")


def require_counts(y: RowTargets, num_latents: int) -> None:
    require_numbers(y, num_latents)
    _refuse((y < 0) | (y != y.round()), "negative or fractional; counts must be 0, 1, 2, …")


def require_open_unit(y: RowTargets, num_latents: int) -> None:
    require_numbers(y, num_latents)
    _refuse((y <= 0) | (y >= 1), "outside (0, 1); rescale them strictly inside before fit")


def require_labels(y: RowTargets, num_classes: int) -> None:
    if y.ndim != 1:
        raise DataError(f"labels have shape {tuple(y.shape)}; pass one label a row, [n]")
    _refuse(~y.isfinite(), "missing or infinite; drop those rows before fit")
    outside = (y < 0) | (y >= num_classes) | (y != y.round())
    _refuse(outside, f"not whole numbers from 0 to {num_classes - 1}; encode the labels so")


def _refuse(bad: Shaped[Tensor, "n *outputs"], reason: str) -> None:
    count = int(bad.sum())
    if count:
        raise DataError(f"y has {count} of {bad.numel()} values that are {reason}")
