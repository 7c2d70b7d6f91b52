"""A rough part for the default kernel.

Targets of tables jump, and are rough between rows that are near each other. A Matérn-5/2 says so
only by a short lengthscale, which forgets what is further away, or by noise, which nothing
predicts; a Matérn-1/2 says it beside a smooth part. Where the function is smooth it would only be
in the way: a search tries it last, and by rows that are left out.
"""

from copy import deepcopy

import torch
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel

# Of the variance of the kernel, where it begins.
SHARE = 0.1


def rough_part(kernel: Kernel) -> ScaleKernel:
    """A Matérn-1/2 that is otherwise the first part of a default kernel, with a share of its
    variance."""
    first, *_ = parts = _parts(kernel)
    found = deepcopy(first)
    assert isinstance(found.base_kernel, MaternKernel)
    found.base_kernel.nu = 0.5
    with torch.no_grad():
        found.outputscale = SHARE * sum(part.outputscale for part in parts)
    return found


def _parts(kernel: Kernel) -> list[ScaleKernel]:
    parts = list(kernel.kernels)  # pyright: ignore
    assert all(isinstance(part, ScaleKernel) for part in parts)
    return parts
