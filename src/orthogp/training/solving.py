"""The end of a run with Gaussian noise: q at its optimum, hyperparameters as they are."""

import time

import torch

from orthogp.likelihoods import Gaussian
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP
from orthogp.posterior import Coupled, NaturalGaussian, Orthogonal
from orthogp.posterior.solve import solve_gaussian
from orthogp.training.batches import Rows
from orthogp.training.config import TrainingConfig

FEWEST_PRODUCTS, MOST_PRODUCTS = 10, 200
# A product is a pass over all rows forward and one back. Of what the steps before have evaluated of
# the kernel, all of them together may take this share.
SHARE_OF_STEPS = 0.2


def solvable(model: VariationalGP) -> bool:
    """Whether the best q is the solution of linear equations, and natural steps moved it so far."""
    basis = model.basis
    return (
        isinstance(model.likelihood, Gaussian)
        and isinstance(basis, Coupled | Orthogonal)
        and isinstance(basis.q, NaturalGaussian)
    )


@torch.no_grad()
def solve(
    model: VariationalGP, rows: Rows, config: TrainingConfig, max_time: float | None = None
) -> int:
    """Moves q(f_β) and a_γ to their optimum, after a run of `config` on these rows.

    Returns the number of products that it took.
    """
    deadline = None if max_time is None else time.monotonic() + max_time
    basis, device = model.basis, model.basis.beta.device
    x = rows.x.to(device)
    y = latents_first(rows.y.to(device)).double()
    y = y - model.prior_mean(x.double())
    assert isinstance(model.likelihood, Gaussian)
    noise = model.likelihood.likelihood.noise.double().reshape(-1, 1)
    weight = 1.0 if rows.weight is None else rows.weight.to(device)
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    return solve_gaussian(
        basis, model.covariance, factor, x, y, (weight / noise).expand_as(y),
        max_products(model, len(rows), config), deadline,
    )  # fmt: skip


def max_products(model: VariationalGP, num_rows: int, config: TrainingConfig) -> int:
    """A number of products, not of seconds, so that two runs end with the same bits."""
    points, count = len(model.basis.beta), len(model.basis.gamma)
    a_step = min(config.batch_size, num_rows) + points + (config.columns(count) or count)
    # The backward pass evaluates the kernel twice as often as the forward pass.
    budget = SHARE_OF_STEPS * config.max_steps * 3 * a_step
    affordable = int(budget / (2 * num_rows + count))
    return max(FEWEST_PRODUCTS, min(MOST_PRODUCTS, affordable))
