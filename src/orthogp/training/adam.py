"""Adam by torch's own fused kernel, without `torch.optim`.

An optimizer of `torch.optim` imports a compiler when it is first made, which takes longer than many
steps, and looks for hooks and closures at every one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

BETA1, EPS = 0.9, 1e-8


class Adam:
    """The state has its memory from the start, so that a graph can hold it and a file fill it."""

    def __init__(self, parameters: Sequence[Tensor], learning_rate: Tensor, beta2: float = 0.999):
        self.learning_rate, self.beta2 = learning_rate, beta2
        self.state = {
            p: {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
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

    @torch.no_grad()
    def step(self) -> None:
        for parameters in self._alike:
            states = [self.state[p] for p in parameters]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1.0)  # pyright: ignore
            torch._fused_adam_(  # pyright: ignore
                parameters,
                [p.grad for p in parameters],  # pyright: ignore
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=self.learning_rate,
                beta1=BETA1,
                beta2=self.beta2,
                weight_decay=0.0,
                eps=EPS,
                amsgrad=False,
                maximize=False,
            )
