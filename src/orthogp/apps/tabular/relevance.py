"""Which inputs a fitted kernel looks at: those along which it varies fast."""

from collections.abc import Iterator, Sequence

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel

Relevance = tuple[tuple[str, float], ...]


def relevance(kernel: Kernel, sources: Sequence[str]) -> Relevance:
    """Columns of a table with 1/lengthscale, in units of their standard deviation; largest first.

    Averaged over the parts of the kernel, weighted by their outputscales. A column with several
    encoded ones counts as the most relevant of them. Empty where the kernel has no lengthscale for
    every input.
    """
    parts = list(_parts(kernel, 1.0))
    total = sum(weight for weight, _ in parts)
    if not parts or total <= 0 or any(len(inverse) != len(sources) for _, inverse in parts):
        return ()
    mean = sum((weight / total * inverse for weight, inverse in parts), torch.zeros(len(sources)))
    found: dict[str, float] = {}
    for name, value in zip(sources, mean.tolist(), strict=True):
        found[name] = max(value, found.get(name, 0.0))
    return tuple(sorted(found.items(), key=lambda pair: -pair[1]))


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
