"""Adam by torch's own fused kernel, without `torch.optim`.

An optimizer of `torch.optim` imports a compiler when it is first made, which takes longer than many
steps, and looks for hooks and closures at every one. The kernel's name is a private one of torch's:
where a version of torch has another or none, the same step is taken by public operations.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BETA1, EPS = 0.9, 1e-8


class Adam:
    """Adam whose state is allocated at once, so that a CUDA graph and a file can refer to it."""

    def __init__(self, parameters: Sequence[Tensor], learning_rate: Tensor, beta2: float = 0.999):
        self.learning_rate, self.beta2 = learning_rate, beta2
        # One count for all: every step moves every parameter.
        self._count = torch.zeros((), dtype=torch.float32, device=learning_rate.device)
        self.state = {
            p: {
                "step": self._count,
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            for p in parameters
        }
        # The kernel takes one dtype at a time.
        dtypes = {p.dtype for p in parameters}
        self._alike = [
            [p for p in parameters if p.dtype == dtype] for dtype in sorted(dtypes, key=str)
        ]
        self._fused = getattr(torch, "_fused_adam_", None)

    @torch.no_grad()
    def step(self) -> None:
        self._count.add_(1.0)
        for parameters in self._alike:
            if self._fused is not None:
                try:
                    self._step_fused(self._fused, parameters)
                    continue
                except (TypeError, NotImplementedError):
                    # Other arguments than in the versions tried, or no support for this device.
                    self._fused = None
            self._step_plainly(parameters)

    def _step_fused(self, fused: Callable[..., None], parameters: Sequence[Tensor]) -> None:
        states = [self.state[p] for p in parameters]
        fused(
            parameters,
            [_gradient(p) for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            lr=self.learning_rate,
            beta1=BETA1,
            beta2=self.beta2,
            weight_decay=0.0,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )

    def _step_plainly(self, parameters: Sequence[Tensor]) -> None:
        first, second = (1.0 - beta ** self._count.double() for beta in (BETA1, self.beta2))
        for p in parameters:
            assert p.grad is not None
            state, rate = self.state[p], self.learning_rate.to(p.dtype)
            mean = state["exp_avg"].lerp_(p.grad, 1.0 - BETA1)
            square = state["exp_avg_sq"].lerp_(p.grad.square(), 1.0 - self.beta2)
            spread = (square / second.to(p.dtype)).sqrt_().add_(EPS)
            p.sub_(rate * mean / first.to(p.dtype) / spread)


def _gradient(parameter: Tensor) -> Tensor:
    """With the strides of the parameter, which the kernel for GPUs demands."""
    grad = parameter.grad
    assert grad is not None
    if grad.stride() == parameter.stride():
        return grad
    return torch.empty_like(parameter).copy_(grad)
