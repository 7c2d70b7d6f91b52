"""Priors on hyperparameters, as GPyTorch registers them on kernels, means and likelihoods.

Training maximises the bound plus log p(θ) of every prior. The bound itself, as it is reported, has
no part of them: it stays below the evidence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from gpytorch.priors import Prior
from jaxtyping import Float
from torch import Tensor, nn

from orthogp.errors import ConfigurationError, NumericalError


@dataclass(frozen=True)
class RegisteredPrior:
    """A prior on `value(owner)`; `name` is the path at which the prior is found."""

    name: str
    owner: nn.Module
    prior: Prior
    value: Callable[[Any], Tensor]

    def log_density(self) -> Float[Tensor, ""]:
        """log p at the present value, in nats."""
        try:
            found = self.prior.log_prob(self.value(self.owner))
        except ValueError as error:
            raise NumericalError(_outside(self)) from error
        return found.sum(dtype=torch.float64)

    def outline(self) -> dict[str, Any]:
        """The numbers of the prior by name, as JSON."""
        found = [*vars(self.prior).items(), *self.prior.named_buffers()]
        return {name: value.tolist() for name, value in found if isinstance(value, Tensor)}


def registered_priors(module: nn.Module) -> tuple[RegisteredPrior, ...]:
    """Every prior in a module; a part that is used twice counts once."""
    return tuple(
        RegisteredPrior(f"{path}.{name}".removeprefix("."), owner, prior, value)
        for path, owner in module.named_modules()
        if isinstance(owner, gpytorch.Module)
        for name, parent, prior, value, _ in owner.named_priors()
        if parent is owner
    )


def log_prior(priors: Sequence[RegisteredPrior]) -> Float[Tensor, ""]:
    """Σ log p(θ), in nats; a `NumericalError` where a prior says that it has no density there."""
    return torch.stack([prior.log_density() for prior in priors]).sum()


@torch.no_grad()
def require_densities(priors: Sequence[RegisteredPrior]) -> None:
    """Refuses priors that cannot be evaluated where their parameters are."""
    for prior in priors:
        try:
            finite = bool(prior.log_density().isfinite())
        except NumericalError as error:
            raise ConfigurationError(str(error)) from error
        except (RuntimeError, TypeError) as error:
            reason = str(error).strip().split("\n")[0].rstrip(".")
            raise ConfigurationError(
                f"the prior {prior.name} cannot be evaluated ({reason:.200}); give it the shape of "
                "its parameter, or one that broadcasts to it"
            ) from error
        if not finite:
            raise ConfigurationError(_outside(prior))


def _outside(prior: RegisteredPrior) -> str:
    return (
        f"the prior {prior.name} ({type(prior.prior).__name__}) has no density at the value of its "
        "parameter; start from a value inside, and keep it there by a constraint "
        "(gpytorch.constraints.Interval) or take a prior without edges (SmoothedBoxPrior)"
    )
