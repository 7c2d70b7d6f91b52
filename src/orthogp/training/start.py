"""Hyperparameters to start from: those that the exact evidence of a few rows asks for.

A step here costs a fraction of a training step, and nothing else has to follow: values that are
far away are reached before points and q(f_β) are there to be dragged along.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.likelihoods.targets import latents_first
from orthogp.linalg import factorise
from orthogp.training.batches import Rows
from orthogp.training.evidence import log_evidence
from orthogp.training.hyperparameters import Hyperparameters

ROWS = 300
LEARNING_RATE = 0.15


@torch.no_grad()
def log_density_of_others(
    covariance: Covariance, noise: Float[Tensor, ""], few: Rows, others: Rows
) -> float:
    """Mean log density of other rows, given these, weights left aside."""
    with covariance.parameters_read_once(few.x):
        K = covariance.block(few.x, few.x) + noise * torch.eye(len(few), dtype=few.x.dtype)
        factor = factorise(K, jitter=0.0)
        w = factor.R @ covariance.block(few.x, others.x)
        variance = covariance.diagonal(others.x) + noise - w.square().sum(0)
    mean = (factor.R @ latents_first(few.y).mT).mT @ w
    errors = (latents_first(others.y) - mean).square() / variance
    return -0.5 * (errors + variance.log() + math.log(2 * math.pi)).mean().item()


def start_hyperparameters(
    covariance: Covariance,
    likelihood: Gaussian,
    rows: Rows,
    generator: torch.Generator,
    steps: int,
) -> bool:
    """Moves the kernel's parameters and the noise, and says whether it did.

    They stay where they are if that fails, or if the other rows speak against it, as they do where
    a few have no part in what is rare.
    """
    order = torch.randperm(len(rows), generator=generator)
    few, others = (
        rows.map(lambda t, part=part: t[part].double()) if len(part) else None
        for part in (order[:ROWS].sort().values, order[ROWS:])
    )
    assert few is not None

    def noise() -> Tensor:
        # One for all outputs, so that one factorisation serves them.
        return likelihood.likelihood.noise.double().mean()

    found = Hyperparameters(covariance, likelihood)
    start = found.values()

    def density() -> float:
        return 0.0 if others is None else log_density_of_others(covariance, noise(), few, others)

    def evidence(_: int) -> Tensor:
        y = latents_first(few.y)
        return log_evidence(covariance, noise(), few.x, y, few.weight) + found.log_prior()

    before = density()
    # A NaN is above nothing.
    sound = found.climb(evidence, steps, LEARNING_RATE) and density() >= before
    if not sound:
        found.set(start)
    return sound
