"""Which columns a model uses, and what each of them contributes to a prediction."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from numpy.typing import NDArray

from orthogp.estimators.scaling import Array, Scaling, slopes_between_knots

# Predictions that are asked for at once.
CHUNK_ROWS = 2**14


@dataclass(frozen=True)
class Explanation:
    """Contributions of columns to predictions: `base` plus their sum is the prediction.

    `values` is `(n, d)`, or `(n, d, k)` for several targets or classes; `columns` are the d names;
    `base` is the mean prediction of the rows that stand for a column's absence.
    """

    values: NDArray[np.float64]
    base: NDArray[np.float64]
    columns: tuple[str, ...]


def shapley_values(
    predict: Callable[[Array], NDArray],
    X: Array,
    background: Array,
    parts: Sequence[NDArray[np.int64]],
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sampled Shapley values of parts of the inputs, `(n, parts, …)`, and their base.

    φ_j = E[f(x with the parts up to j) − f(x with those before j)] over random orders, where other
    parts are those of a row of the background. Every row of the background serves two orders, one
    the reverse of the other. Whatever the draws, base + Σ_j φ_j = f(x). Costs 2 (d + 1) predictions
    for each row and each row of the background.
    """
    total, base, count = None, None, 2 * len(background)
    for row in background:
        order = rng.permutation(len(parts))
        for ordered in (order, order[::-1]):
            found = _along(predict, X, row, [parts[j] for j in ordered])
            if total is None or base is None:
                total = np.zeros((len(parts), *found.shape[1:]))
                base = np.zeros(found.shape[2:])
            total[ordered] += np.diff(found, axis=0) / count
            base += found[0, 0] / count
    assert total is not None
    assert base is not None
    return np.moveaxis(total, 0, 1), base


def _along(
    predict: Callable[[Array], NDArray], X: Array, row: Array, parts: Sequence[NDArray[np.int64]]
) -> NDArray:
    """Predictions on the way from a row of the background to X, part by part, `(d + 1, n, …)`."""
    found, step = [], max(1, CHUNK_ROWS // (len(parts) + 1))
    for start in range(0, len(X), step):
        some = X[start : start + step]
        mixed = np.repeat(row[None], len(some), axis=0)
        stages = [mixed.copy()]
        for part in parts:
            mixed[:, part] = some[:, part]
            stages.append(mixed.copy())
        answer = predict(np.concatenate(stages))
        found.append(answer.reshape(len(parts) + 1, len(some), *answer.shape[1:]))
    return np.concatenate(found, axis=1)


def relevance(
    kernel: Kernel, sources: Sequence[str], inputs: Scaling | None = None
) -> tuple[tuple[str, float], ...]:
    """Columns of a table with 1/lengthscale, in units of their standard deviation; largest first.

    Averaged over the parts of the kernel, weighted by their outputscales. A column with several
    lengthscales counts by the shortest. With a linear map L of the inputs the lengthscale of one is
    the reach of the kernel along it, 1/√(Σ_k L_kj²/ℓ_k²). Where ramps bend it, L_kj is the slope
    between knots, and its square a mean over them. Empty where the kernel has no lengthscale for
    every input.
    """
    parts = list(_parts(kernel, 1.0))
    total = sum(weight for weight, _ in parts)
    slopes: list[torch.Tensor] = []
    if inputs is not None and inputs.linear_map is not None:
        slopes = [torch.from_numpy(s) for s in slopes_between_knots(inputs)]
    count = len(slopes[0]) if slopes else len(sources)
    if not parts or total <= 0 or any(len(inverse) != count for _, inverse in parts):
        return ()
    if slopes:
        parts = [
            (weight, torch.stack([_root_mean_square(inverse.unsqueeze(1) * s) for s in slopes]))
            for weight, inverse in parts
        ]
    mean = sum((weight / total * inverse for weight, inverse in parts), torch.zeros(len(sources)))
    found: dict[str, float] = {}
    for name, value in zip(sources, mean.tolist(), strict=True):
        found[name] = max(value, found.get(name, 0.0))
    return tuple(sorted(found.items(), key=lambda pair: -pair[1]))


def _root_mean_square(slopes: torch.Tensor) -> torch.Tensor:
    """The length of each column, and of these the root of the mean square."""
    return slopes.square().sum(0).mean().sqrt()


def _parts(kernel: Kernel, weight: float) -> Iterator[tuple[float, torch.Tensor]]:
    """The weight and the inverse lengthscales of every part; a part without any has none."""
    if isinstance(kernel, AdditiveKernel):
        for part in kernel.kernels:
            yield from _parts(part, weight)  # pyright: ignore
    elif isinstance(kernel, ScaleKernel):
        yield from _parts(kernel.base_kernel, weight * float(kernel.outputscale.detach()))
    elif kernel.has_lengthscale:
        lengthscale = kernel.lengthscale
        assert lengthscale is not None
        yield weight, 1 / lengthscale.detach().double().cpu().reshape(-1)
