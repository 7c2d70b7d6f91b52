"""Hyperparameters to start from: those that the exact evidence of a few rows asks for.

A step here costs a fraction of a training step, and nothing else has to follow: values that are
far away are reached before points and q(f_β) are there to be dragged along.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.likelihoods.targets import latents_first
from orthogp.linalg import factorise, log_diagonal
from orthogp.training.adam import Adam
from orthogp.training.batches import Rows
from orthogp.training.config import TrainingConfig

ROWS = 300
LEARNING_RATE, BETA2 = 0.15, 0.95


def log_evidence(
    covariance: Covariance,
    noise: Float[Tensor, ""],
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "c n"],
    weight: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, ""]:
    """log ∫ p(f) Π N(y_n; f_n, σ²)^w_n df, summed over the outputs; NaN where K has no factor."""
    weight = torch.ones_like(x[:, 0]) if weight is None else weight
    with covariance.held(x):
        factor = factorise(covariance.own_block(x) + (noise / weight).diag(), jitter=0.0)
    whitened, _ = factor.solve(y.mT)
    # d log|R| = tr Ω
    log_det = log_diagonal(factor.R.detach()) + factor.omega.diagonal().sum()
    # N(y; f, σ²)^w is N(y; f, σ² / w) but for its normaliser.
    normaliser = ((weight - 1.0) * noise.log() + weight.log()).sum()
    normaliser = normaliser + weight.sum() * math.log(2 * math.pi)
    value = len(y) * (log_det - 0.5 * normaliser) - 0.5 * whitened.square().sum()
    return torch.where(factor.info == 0, value, torch.nan)


def start_hyperparameters(
    covariance: Covariance,
    likelihood: Gaussian,
    rows: Rows,
    generator: torch.Generator,
    steps: int,
) -> None:
    """Moves the kernel's parameters and the noise; leaves them where they are if it fails."""
    config = TrainingConfig(
        max_steps=steps, learning_rate=LEARNING_RATE, schedule_warmup=steps // 10
    )
    chosen = torch.randperm(len(rows), generator=generator)[:ROWS]
    few = rows.map(lambda t: (t[chosen] if len(rows) > ROWS else t).double())
    y = latents_first(few.y)
    parameters = [
        p for p in (*covariance.parameters(), *likelihood.parameters()) if p.requires_grad
    ]
    start = [p.detach().clone() for p in parameters]
    rate = torch.zeros(())
    adam, going = Adam(parameters, rate, BETA2), True
    for step in range(steps):
        # One for all outputs, so that one factorisation serves them.
        noise = likelihood.likelihood.noise.double().mean()
        value = log_evidence(covariance, noise, few.x, y, few.weight)
        going = going and bool(value.isfinite())
        if not going:
            break
        rate.fill_(config.learning_rate_at(step, step / steps))
        for parameter, grad in zip(
            parameters, torch.autograd.grad(-value, parameters), strict=True
        ):
            parameter.grad = grad
        adam.step()
    going = going and all(bool(p.isfinite().all()) for p in parameters)
    with torch.no_grad():
        for parameter, old in zip(parameters, start, strict=True):
            parameter.grad = None
            if not going:
                parameter.copy_(old)
