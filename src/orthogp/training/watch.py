"""The bounds and failures of steps, recorded on the device until the host reads them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from orthogp.model import Bound

# A bound this many times its first size, or nats a row, below its first value will not come back.
DIVERGED = 10.0
# A KL this many nats a row below zero, on average over the last steps, has been lost to rounding.
# One estimate alone may well be negative: with few columns its noise can be as large as the KL.
NEGATIVE_KL = 1.0
KL_MEMORY = 32
# What a step may find wrong, in the order of `Bound.failures`, and then what it sees beyond them.
CAUSES = (
    "the covariance of the inducing points could not be factorised",
    "the precision of q(f_β) left the positive-definite cone",
    "the bound is not finite",
    "the divergence from the prior came out negative",
    "a gradient is not finite",
)


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """All at once where torch has its private function for that."""
    together = getattr(torch, "_foreach_norm", None)
    return [t.norm() for t in tensors] if together is None else list(together(tensors))


class Watch:
    """The sum of the bounds, and the first thing that went wrong."""

    def __init__(self, num_rows: int, device: torch.device):
        self.num_rows = num_rows
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.mean_kl = torch.zeros_like(self.total)
        self.failed = torch.zeros(len(CAUSES), dtype=torch.bool, device=device)
        # What is maximised, at the first step ever and at the last, to tell a run that diverges.
        self.first = torch.full_like(self.total, math.nan)
        self.latest = torch.zeros_like(self.total)

    def note(self, bound: Bound, value: Tensor, prior: Tensor | None = None) -> None:
        """Records a step before its gradients are computed; `prior` is log p(θ)."""
        self.total += value
        objective = value if prior is None else value + prior.detach()
        self.latest.copy_(objective)
        self.first.copy_(torch.where(self.first.isnan(), objective, self.first))
        self.mean_kl.lerp_(bound.kl.detach(), 1.0 / KL_MEMORY)
        lost = self.mean_kl < -NEGATIVE_KL * self.num_rows
        found = torch.cat([bound.failures, lost.unsqueeze(0)])
        # The first to fail names the cause; what fails after it is its consequence.
        self.failed[:-1].logical_or_(found & ~self.failed.any())

    def note_gradients(self, grads: Sequence[Tensor]) -> None:
        if grads:
            sound = torch.stack(_norms(list(grads))).sum() < math.inf
            self.failed[-1].logical_or_(~(sound | self.failed.any()))

    def cause(self) -> str | None:
        """What went wrong first, None for nothing. Reads the device."""
        failed = self.failed.tolist()
        if any(failed):
            return CAUSES[failed.index(True)]
        first, latest = self.first.item(), self.latest.item()
        if latest < first - DIVERGED * (abs(first) + self.num_rows):
            return f"the bound fell from {first:.3g} to {latest:.3g}"
        return None if math.isfinite(self.total.item()) else CAUSES[2]

    def read(self) -> float:
        """The sum of the bounds since the last call; failures are cleared."""
        total = float(self.total)
        self.total.zero_()
        self.failed.zero_()
        return total

    def start_over(self) -> None:
        """Clears everything, for a run that was rewound."""
        for seen in (self.total, self.mean_kl, self.failed):
            seen.zero_()
