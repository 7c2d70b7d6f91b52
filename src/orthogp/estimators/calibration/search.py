"""A few positive numbers that a held-out sample likes best."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Fewer rows than this say too little about two numbers, or about a tail.
SMALLEST_SAMPLE = 100
LIMIT = 4.0
ITERATIONS = 50


@torch.enable_grad()
def minimised(loss: Callable[[Tensor], Tensor], start: list[float]) -> Tensor:
    """The logarithms, from `start`, at which the mean loss of a row is least."""
    # Not `torch.optim`: it imports a compiler when it is first used, which takes a second.
    from scipy.optimize import minimize

    first = torch.tensor(start, dtype=torch.float64)

    def penalised(values: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.from_numpy(values).requires_grad_()
        # Keeps a number that the sample says nothing about where it was.
        value = loss(logs) + 1e-4 * (logs - first).square().sum()
        (grad,) = torch.autograd.grad(value, [logs])
        return value.item(), grad.numpy()

    found = minimize(
        penalised, first.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}
    )
    return torch.from_numpy(found.x)


def scales(logs: Tensor) -> Tensor:
    return logs.clamp(-LIMIT, LIMIT).exp()


def pays(gain: Tensor, num_rows: int, parameters: int) -> bool:
    """Whether a gain of so much a row is worth its parameters, by Akaike; a NaN is not."""
    return bool(gain * num_rows > parameters)
