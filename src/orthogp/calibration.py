"""Variance scales that make predictive intervals cover what they say, fitted on held-out rows.

A sparse posterior is too wide where β is thin: s(x) keeps the prior's variance there although γ has
long corrected the mean, and the noise absorbs what both miss. Two numbers, κ_s and κ_σ, maximise
the held-out density of N(m, κ_s s + κ_σ σ²). The bound and the latent posterior stay as they are.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# Fewer rows than this say too little about two numbers.
SMALLEST_SAMPLE = 100
LIMIT = 4.0
ITERATIONS = 50


@dataclass(frozen=True)
class VarianceScales:
    latent: float = 1.0
    noise: float = 1.0


def fit_variance_scales(
    residual: Float[Tensor, " n"], latent: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> VarianceScales:
    """The κ_s and κ_σ of the highest density, each within e^±4; (1, 1) for a small sample."""
    if residual.shape[0] < SMALLEST_SAMPLE:
        return VarianceScales()
    residual, latent, noise = residual.double(), latent.double(), noise.double()
    logs = torch.zeros(2, dtype=torch.float64, device=residual.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([logs], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        scales = logs.clamp(-LIMIT, LIMIT).exp()
        variance = scales[0] * latent + scales[1] * noise
        value = 0.5 * (variance.log() + residual.square() / variance).mean()
        # Keeps a scale that the sample says nothing about where it was.
        value = value + 1e-4 * logs.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    found = logs.detach().clamp(-LIMIT, LIMIT).exp().tolist()
    return VarianceScales(latent=found[0], noise=found[1])
