"""How a GPyTorch likelihood's own parameters line up with latents first, `[c, n]`."""

import torch
from gpytorch.likelihoods import Likelihood

from orthogp.errors import ConfigurationError


def batch_shape(num_latents: int) -> torch.Size:
    """The GPyTorch batch shape that gives each output parameters of its own."""
    return torch.Size([]) if num_latents == 1 else torch.Size([num_latents])


def require_broadcast(likelihood: Likelihood, num_latents: int) -> None:
    """Refuse parameters that are neither shared, `[1]`, nor one an output, `[c, 1]`."""
    for name, parameter in likelihood.named_parameters():
        if tuple(parameter.shape) not in {(), (1,), (1, 1), (num_latents, 1)}:
            raise ConfigurationError(
                f"{type(likelihood).__name__}.{name} has shape {tuple(parameter.shape)} but there "
                f"are {num_latents} output(s); build it with batch_shape [] or [{num_latents}]"
            )
