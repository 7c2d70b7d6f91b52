"""Noise that is learned as a function of x, where that predicts left-out rows better.

A fit with constant noise predicts rows that it has left out; from their errors comes the model of
the noise's logarithm, and from that the noise of every row, with which the fit is made once more.
It is taken unless the first, with changing noise in its predictions alone, gives the same left-out
rows a higher calibrated density, and either only where it gains over constant noise beyond chance.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.estimators.calibration import SMALLEST_SAMPLE, Calibration
from orthogp.estimators.near_fit import Calibrate, NearFit, calibration_of, densities_of
from orthogp.execution.team import current_team
from orthogp.likelihoods import Gaussian
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP
from orthogp.posterior import NearPredictor
from orthogp.training import Rows
from orthogp.training.every_row import LeftOut
from orthogp.training.log_noise import (
    Errors,
    LogNoiseFit,
    expected_noise,
    learn_log_noise,
    mean_noise,
    with_noise_scale,
)

# Rows whose errors the noise is learned from.
MOST_ROWS = {"cpu": 10_000, "cuda": 50_000}
# The standard errors by which a gain must exceed zero: to fit once more, and to be taken.
ERRORS_TO_REFIT, ERRORS_TO_TAKE = 1.0, 2.0
# The share of what is left of the time of a fit that learning the noise may take.
TIME_SHARE = 0.3

# A fit of rows with known noise, in which the rows given are left out.
Refit = Callable[[Rows, NearFit], NearFit]


@dataclass(frozen=True)
class _Candidate:
    """A fit with changing noise, and the log densities of its left-out rows."""

    fit: NearFit
    density: Float[Tensor, " n"]


def with_learned_noise(
    first: NearFit,
    rows: Rows,
    refit: Refit,
    calibrate: Calibrate,
    deadline: float,
    generator: torch.Generator,
) -> NearFit:
    """The fit with the noise that predicts left-out rows best; `first` has constant noise.

    `deadline` is a time of `time.monotonic()`.
    """
    seconds = TIME_SHARE * (deadline - time.monotonic())
    if first.left_out.mean.shape[1] < SMALLEST_SAMPLE or _agreed(seconds <= 0):
        return first
    max_time, constant = None if seconds == math.inf else seconds, densities_of(first)
    try:
        # All of an error counts as noise: where noise is taken for constant, the function has to
        # explain what it cannot, and would go on to.
        errors = errors_of(first, rows, generator)
        errors = replace(errors, variance=torch.zeros_like(errors.variance))
        learned = learn_log_noise(errors, generator, max_time)
    except NumericalError:
        return first
    best = _candidate(first, learned, calibrate)
    if learned.interrupted or not _gains(best.density, constant, ERRORS_TO_REFIT):
        return first
    if _agreed(time.monotonic() + first.seconds < deadline):
        with suppress(NumericalError):
            other = _second(first, learned.model, rows, refit, calibrate, generator)
            # It knows the variance of its function; the first takes the noise for constant there.
            if not _gains(best.density, other.density, ERRORS_TO_REFIT):
                best = other
    return best.fit if _gains(best.density, constant, ERRORS_TO_TAKE) else first


def _second(
    first: NearFit,
    log_noise: VariationalGP,
    rows: Rows,
    refit: Refit,
    calibrate: Calibrate,
    generator: torch.Generator,
) -> _Candidate:
    """The fit with the noise of every row, and the noise from the errors of that fit."""
    scale = expected_noise(log_noise, rows.x.to(first.model.basis.beta.device))
    found = refit(with_noise_scale(rows, scale.to(rows.x.device)), first)
    # The first fit keeps its own.
    start = deepcopy(log_noise)
    learned = learn_log_noise(errors_of(found, rows, generator), generator, start=start)
    return _candidate(found, learned, calibrate)


def errors_of(found: NearFit, rows: Rows, generator: torch.Generator) -> Errors:
    """The errors of many left-out rows, those by which the fit is calibrated first."""
    likelihood, calibration = found.model.likelihood, found.calibration
    assert isinstance(likelihood, Gaussian)
    assert isinstance(calibration, Calibration)
    left_out = found.left_out
    mean, variance, chosen = left_out.mean, left_out.variance, left_out.rows
    more = _other_rows(found, len(rows), generator)
    if len(more):
        assert isinstance(found.predictor, NearPredictor)
        more_mean, more_variance = found.predictor.leave_one_out(more)
        with torch.no_grad():
            more_mean = more_mean + found.model.prior_mean(rows.x.to(mean.device)[more].double())
        mean, variance = torch.cat([mean, more_mean], 1), torch.cat([variance, more_variance], 1)
        chosen = torch.cat([chosen, more])
    part = rows.map(lambda t: t.to(chosen.device)[chosen])
    noise = likelihood.likelihood.noise.detach().to(mean).reshape(-1, 1)
    latent_scale, noise_scale = calibration.scales.to(mean).unsqueeze(-1).unbind(1)
    weight = None if part.weight is None else part.weight.to(mean)
    return Errors(
        part.x, (latents_first(part.y) - mean) / noise.sqrt(), latent_scale * variance / noise,
        weight, noise_scale.expand(len(mean), 1),
    )  # fmt: skip


def _other_rows(found: NearFit, count: int, generator: torch.Generator) -> Int[Tensor, " m"]:
    """Rows that were not left out so far and can be one by one: no others have them in the mean."""
    chosen, near = found.left_out.rows, found.predictor
    if not isinstance(near, NearPredictor) or near.base is not None:
        return chosen[:0]
    most = MOST_ROWS.get(chosen.device.type, MOST_ROWS["cpu"])
    every = torch.randperm(count, generator=generator).to(chosen.device)
    return every[~torch.isin(every, chosen)][: max(0, most - len(chosen))]


def _candidate(found: NearFit, learned: LogNoiseFit, calibrate: Calibrate) -> _Candidate:
    count = found.left_out.mean.shape[1]
    scale = mean_noise(learned.mean[:, :count], learned.variance[:, :count])
    left_out: LeftOut = replace(found.left_out, noise_scale=scale)
    m = found.model
    model = VariationalGP(
        m.covariance.kernel, m.likelihood, m.basis, m.mean, m.jitter, m.near, learned.model
    )
    calibration = calibration_of(model, left_out, calibrate)
    fit = replace(found, model=model, left_out=left_out, calibration=calibration)
    return _Candidate(fit, densities_of(fit))


def _gains(density: Tensor, other: Tensor, errors: float) -> bool:
    """Whether the same rows are more likely than by another fit, by so many standard errors."""
    both = min(len(density), len(other))
    gain = density[:both] - other[:both]
    return _agreed(bool(gain.mean() > errors * gain.std() / both**0.5))


def _agreed(decision: bool) -> bool:
    """As the first of several processes decides."""
    return bool(current_team().agree(decision))
