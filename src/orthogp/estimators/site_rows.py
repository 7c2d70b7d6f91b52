"""Near rows in a fit whose noise is not Gaussian: the sites of the rows correct the mean."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from jaxtyping import Float
from torch import Tensor

from orthogp.estimators.intake import FitData
from orthogp.estimators.start import own_kernel
from orthogp.execution.team import current_team
from orthogp.model import VariationalGP
from orthogp.posterior import SiteRows
from orthogp.training import Rows
from orthogp.training.left_out import left_out_latents
from orthogp.training.sites import ResidualProcess, learn_residual_process

NEIGHBORS = 64
# Rows that are left out to calibrate.
MOST_LEFT_OUT = 5000
# Of the default kernel where learning begins, times the root of the number of inputs.
LENGTHSCALE = 0.5
# The share of the time of a fit that the residual process may take to learn.
TIME_SHARE = 0.2


def uses_sites(settings: Mapping[str, Any], data: FitData, model: VariationalGP) -> bool:
    """Whether rows that are held out can tell what the sites of the others are worth."""
    in_memory = isinstance(data.train, Rows) and data.held_out is not None
    return settings["n_neighbors"] != 0 and in_memory and not model.likelihood.gaussian


def residual_process(
    settings: Mapping[str, Any],
    data: FitData,
    model: VariationalGP,
    variance: float,
    generator: torch.Generator,
) -> ResidualProcess | None:
    """Learned from the held-out rows; None where the model predicts them as well by itself.

    `variance` is that of the parts of the default kernel.
    """
    train, held_out, max_time = data.train, data.held_out, settings["max_time"]
    assert isinstance(train, Rows)
    assert held_out is not None
    deadline = math.inf if max_time is None else time.monotonic() + TIME_SHARE * max_time
    start = starting_kernel(settings, train.x, variance, data.units.groups)
    start = start.to(model.basis.beta.device)
    found = learn_residual_process(
        model, train, held_out, start, generator, deadline, settings["train_hyperparameters"]
    )
    return current_team().agree(found)


def starting_kernel(
    settings: Mapping[str, Any],
    x: Float[Tensor, "n d"],
    variance: float,
    groups: Sequence[int] | None = None,
) -> Kernel:
    """A copy of the kernel given, or the default one with lengthscales between its own two.

    Near rows say little of what is longer, and nothing of what is shorter than their distances.
    """
    kernel = own_kernel(settings, x, len(x), variance, groups)
    count = x.shape[1] if groups is None else max(groups) + 1
    if settings["kernel"] is None:
        for part in kernel.modules():
            if isinstance(part, MaternKernel | RBFKernel):
                part.lengthscale = LENGTHSCALE * count**0.5
    return kernel


def _number_near(settings: Mapping[str, Any]) -> int:
    asked = settings["n_neighbors"]
    return NEIGHBORS if asked in ("auto", 0) else int(asked)


def left_out_rows(
    settings: Mapping[str, Any], process: ResidualProcess | None, model: VariationalGP, rows: Rows
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets of some rows that a model was trained on, and means and variances of their latents,
    each without its own site and, with a residual process, given the sites of the others near it.
    """
    some = torch.arange(0, len(rows), math.ceil(len(rows) / MOST_LEFT_OUT))
    chosen = rows.map(lambda t: t[some])
    mean, variance = left_out_latents(model, chosen)
    if process is not None:
        mean = mean + process.left_out_corrections(model, rows, some, _number_near(settings))
    return chosen.y, mean, variance


def site_rows(
    settings: Mapping[str, Any],
    process: ResidualProcess,
    model: VariationalGP,
    rows: Rows,
    previous: SiteRows | None,
) -> SiteRows:
    """The rows with their sites in the posterior of a model, and those of the previous fit."""
    found = process.site_rows(model, rows, _number_near(settings))
    # In the bits of the first process.
    current_team().align([*found.parameters(), *found.buffers()])
    return found if previous is None else previous.joined(found)
