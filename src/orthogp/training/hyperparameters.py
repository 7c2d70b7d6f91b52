"""The kernel's parameters and the noise, moved uphill on any objective of theirs."""

import math
import time
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.model.priors import log_prior, registered_priors
from orthogp.training.adam import Adam
from orthogp.training.config import TrainingConfig

BETA2 = 0.95


class Hyperparameters:
    """Those of a kernel and of Gaussian noise that are to be learned."""

    def __init__(self, covariance: Covariance, likelihood: Gaussian):
        self.covariance, self.likelihood = covariance, likelihood
        parts = (*covariance.parameters(), *likelihood.parameters())
        self.parameters = [p for p in parts if p.requires_grad]
        self._priors = registered_priors(covariance) + registered_priors(likelihood)

    @property
    def noise(self) -> Float[Tensor, " c"]:
        """σ² of every output, or one for all."""
        return self.likelihood.likelihood.noise.double().reshape(-1)

    def log_prior(self) -> Float[Tensor, ""]:
        zero = torch.zeros((), dtype=torch.float64, device=self.noise.device)
        return log_prior(self._priors) if self._priors else zero

    def values(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def set(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def climb(
        self,
        objective: Callable[[int], Tensor],
        steps: int,
        learning_rate: float,
        deadline: float = math.inf,
    ) -> bool:
        """Steps of Adam uphill, the number of each given to the objective.

        False where a value or a parameter is no longer finite; they stay where that was then.
        `deadline` is a time of `time.monotonic()` after which no step begins.
        """
        config = TrainingConfig(
            max_steps=steps, learning_rate=learning_rate, schedule_warmup=steps // 10
        )
        rate = torch.zeros((), device=self.noise.device)
        adam = Adam(self.parameters, rate, BETA2)
        for step in range(steps):
            if time.monotonic() >= deadline:
                break
            try:
                value = objective(step)
            except NumericalError:
                return False
            if not value.isfinite():
                return False
            rate.fill_(config.learning_rate_at(step, step / steps))
            grads = torch.autograd.grad(-value, self.parameters)
            for parameter, grad in zip(self.parameters, grads, strict=True):
                parameter.grad = grad
            adam.step()
        for parameter in self.parameters:
            parameter.grad = None
        return all(bool(p.isfinite().all()) for p in self.parameters)
