"""A fit in which every row counts, for Gaussian noise.

A table of a few thousand rows gets the exact Gaussian process, as β that are all of its rows. A
larger one gets β and, for every prediction, the rows near it; where that predicts better also the
mean of all rows. Calibration is by rows that were left out of their own prediction, so that none is
held out.
"""

import math
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orthogp.estimators.intake import FitData
from orthogp.estimators.learned_noise import with_learned_noise
from orthogp.estimators.near_fit import (
    Calibrate,
    NearFit,
    calibration_of,
    log_densities,
    with_mapped_inputs,
)
from orthogp.estimators.near_settings import NearSettings, checked_config
from orthogp.estimators.scaling import Scaling
from orthogp.estimators.start import given_points, own_kernel
from orthogp.estimators.targets import NumberTargets
from orthogp.execution.team import current_team
from orthogp.execution.urls import locate
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP, build_basis, require_evaluable
from orthogp.posterior import NearRows
from orthogp.posterior.neighbors import canonical_order
from orthogp.posterior.points import choose_beta
from orthogp.posterior.rows_in_memory import SMALLEST_WEIGHT
from orthogp.training import ProgressBar, Report, Rows
from orthogp.training.every_row import (
    Conditioned,
    LeftOut,
    condition_exactly,
    condition_on_rows,
)
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.linear_trend import learn_trend
from orthogp.training.log_noise import expected_noise, with_noise_scale
from orthogp.training.objectives import MOST_EXACT
from orthogp.training.predictive import TYPICAL_STEPS, learn_to_predict
from orthogp.training.search_run import SearchRun, search_checkpoints

# Numbers in W, which holds w of every row: larger tables have fewer β and rely on near rows.
MOST_FEATURES = 2**26
# Inputs of which a linear map is learned: a step takes the square of their number.
MOST_MAPPED = 64
# Rows of which a linear map is learned; and how many rows for each of its weights make it as good
# for new rows as for those. Rows that can tell what a rough part of the kernel is worth.
FEWEST_MAPPED, ROWS_A_WEIGHT, FEWEST_ROUGH = 1001, 10, 1001
# GPyTorch allows no noise below 1e-4 of the target's variance; tables without noise want less.
SMALLEST_NOISE = 1e-6
JITTER = 1e-8
# The share of the time of a fit that hyperparameters may take, and that of the fit with constant
# noise where noise is learned.
LEARNING_SHARE, FIRST_SHARE = 0.5, 0.4


def fit_near(
    settings: Mapping[str, Any],
    data: FitData,
    prior: tuple[Likelihood, Mean | None, float],
    near: NearSettings,
    calibrate: Calibrate,
    device: torch.device,
    generator: torch.Generator,
) -> NearFit:
    """A model of all rows given, with hyperparameters that predict rows left out."""
    config = checked_config(settings, data)
    started = time.monotonic()
    deadline = started + (math.inf if config.max_time is None else config.max_time)
    rows, mean = in_canonical_order(data.bound_rows), prior[1]
    found = starting_hyperparameters(settings, data, prior, rows, device)
    if learns_map(settings, rows):
        found.linear_map = torch.eye(rows.x.shape[1], dtype=torch.float64, device=device)
    most = None if settings["max_steps"] is None else config.max_steps
    run = search_run(settings, found, rows, most, generator)
    problem = _Problem(settings, data.units.inputs, mean, near, calibrate, most, generator)
    if settings["noise"] == "constant":
        return problem.solve(rows, found, run, deadline)
    first = problem.solve(rows, found, run, started + FIRST_SHARE * (deadline - started))
    if run.reason == "interrupt":
        return first
    rows = with_mapped_inputs(rows, first.linear_map)

    def refit(rows: Rows, first: NearFit) -> NearFit:
        """The fit of rows with known noise, from the hyperparameters of the first.

        The rows are mapped as those of the first are.
        """
        kernel, likelihood = deepcopy((first.model.covariance.kernel, first.model.likelihood))
        assert isinstance(likelihood, Gaussian)
        trained = [p for p in likelihood.parameters() if p.requires_grad]
        # The scales of the rows are relative to it.
        likelihood.requires_grad_(False)
        found = Hyperparameters(Covariance(kernel), likelihood)
        # Callbacks have heard of the end of the search.
        folder = settings["checkpoint_dir"]
        folder = None if folder is None else locate(folder) / "noise"
        seed = generator.initial_seed()
        run = SearchRun((), search_checkpoints(folder, found, rows, most, seed))
        again = problem.solve(rows, found, run, deadline, first.left_out.rows)
        history = tuple(replace(r, step=r.step + first.steps) for r in again.history)
        for parameter in trained:
            parameter.requires_grad_(True)
        history, steps = (*first.history, *history), first.steps + again.steps
        return replace(again, history=history, steps=steps, linear_map=first.linear_map)

    return with_learned_noise(first, rows, refit, calibrate, deadline, generator)


@dataclass(frozen=True)
class _Problem:
    """All that a fit has beside its rows and the hyperparameters that it starts from."""

    settings: Mapping[str, Any]
    inputs: Scaling
    mean: Mean | None
    near: NearSettings
    calibrate: Calibrate
    max_steps: int | None
    generator: torch.Generator

    def solve(
        self,
        rows: Rows,
        found: Hyperparameters,
        run: SearchRun,
        deadline: float,
        chosen: Int[Tensor, " m"] | None = None,
    ) -> NearFit:
        """Hyperparameters that predict, and a model of the rows with them.

        The rows `chosen` are left out to calibrate, random ones by default.
        """
        settings, generator, device = self.settings, self.generator, found.noise.device
        steps, learned = 0, None
        if settings["train_hyperparameters"] and found.parameters:
            now = time.monotonic()
            limit = now + LEARNING_SHARE * (deadline - now)
            with run.reported():
                learned = learn_to_predict(
                    found, rows, generator, limit, self.max_steps, run.report, checkpoint=run
                )
                steps, run.reason = learned.steps, "interrupt" if learned.interrupted else "steps"
        began = time.monotonic()
        # Among several processes all have the inputs of the first.
        linear_map = current_team().agree(_learned_map(found, rows.x.dtype))
        rows = with_mapped_inputs(rows, linear_map)
        if chosen is None and linear_map is not None:
            # Of few rows, those that the map was learned from are predicted better than new ones.
            few = len(rows) < ROWS_A_WEIGHT * linear_map.size
            chosen = learned.judged if few and learned is not None else None
        exact = _is_exact(len(rows), device) and settings["inducing_points"] is None
        beta = given_points(settings, "inducing_points", self.inputs)
        if exact:
            beta = rows.x.unique(dim=0)
        elif beta is None:
            most = max(1, MOST_FEATURES // len(rows))
            beta = choose_inducing_points(settings, rows, found.covariance, most, generator)
        mean = self.mean
        if mean is None and settings["linear_trend"] == "auto" and settings["kernel"] is None:
            mean = _linear_trend(found, rows)
        model = near_model(settings, found.covariance.kernel, found.likelihood, mean, beta)
        if exact:
            conditioned = condition_exactly(model, rows, chosen)
        else:
            conditioned = _conditioned(
                model, rows, self.near, self.calibrate, deadline, generator, chosen
            )
        ended = _ended(conditioned, self.calibrate, tuple(run.history), steps)
        return replace(ended, seconds=time.monotonic() - began, linear_map=linear_map)


def starting_hyperparameters(
    settings: Mapping[str, Any],
    data: FitData,
    prior: tuple[Likelihood, Mean | None, float],
    rows: Rows,
    device: torch.device,
) -> Hyperparameters:
    """Where a search for those that predict these rows begins."""
    likelihood, _, variance = prior
    assert isinstance(likelihood, Gaussian)
    kernel = own_kernel(settings, rows.x, len(rows), variance, data.units.groups).to(device)
    likelihood = likelihood.to(device)
    if settings["likelihood"] is None and data.typical_noise is None:
        _allow_little_noise(likelihood)
    tries = settings["kernel"] is None and len(rows) >= FEWEST_ROUGH
    found = Hyperparameters(Covariance(kernel), likelihood, tries_rough_part=tries)
    require_evaluable(found.covariance, rows.x[:1].to(device))
    return found


def learns_map(settings: Mapping[str, Any], rows: Rows) -> bool:
    """Whether a linear map of the inputs is learned with the default kernel."""
    named = ("kernel", "inducing_points")
    free = settings["standardize"] and settings["ard"] and all(settings[n] is None for n in named)
    several = 2 <= rows.x.shape[1] <= MOST_MAPPED and len(rows) >= FEWEST_MAPPED
    return bool(settings["linear_map"] == "auto" and free and several)


def _is_exact(num_rows: int, device: torch.device) -> bool:
    """Whether a table is so small that its model is the exact process."""
    return num_rows <= MOST_EXACT.get(device.type, MOST_EXACT["cpu"])


def _learned_map(found: Hyperparameters, dtype: torch.dtype) -> NDArray[np.floating] | None:
    """The linear map in this dtype; None where it leaves inputs as they are."""
    if found.linear_map is None:
        return None
    linear_map = found.linear_map.detach().to("cpu", dtype)
    identity = torch.eye(len(linear_map), dtype=dtype)
    return None if torch.equal(linear_map, identity) else linear_map.numpy()


def _linear_trend(found: Hyperparameters, rows: Rows) -> Mean | None:
    """The prior mean of the rows where one that is not zero is worth it."""
    here = rows.map(lambda part: part.to(found.noise.device))
    near = NearRows(here.x, latents_first(here.y), here.noise_divisor, count=0)
    # A generator of its own, so that no other draw depends on whether a trend is tried.
    generator = torch.Generator().manual_seed(0)
    trend = learn_trend(found.covariance, near.observations(found.noise), generator)
    # Among several processes all have that of the first.
    trend = current_team().agree(trend)
    return None if trend is None else trend.mean()


def search_run(
    settings: Mapping[str, Any],
    found: Hyperparameters,
    rows: Rows,
    max_steps: int | None,
    generator: torch.Generator,
) -> SearchRun:
    callbacks = list(settings["callbacks"])
    if settings["verbose"]:
        callbacks.append(ProgressBar(max_steps or TYPICAL_STEPS, settings["max_time"]))
    seed = generator.initial_seed()
    checkpoints = search_checkpoints(settings["checkpoint_dir"], found, rows, max_steps, seed)
    return SearchRun(callbacks, checkpoints)


def add_near_rows(
    settings: Mapping[str, Any],
    model: VariationalGP,
    rows: Rows,
    near: NearSettings,
    calibrate: Calibrate,
    generator: torch.Generator,
    history: tuple[Report, ...],
    steps: int,
) -> NearFit:
    """A trained model with these rows: its hyperparameters and inducing points stay."""
    covariance, likelihood = model.covariance, model.likelihood
    assert isinstance(likelihood, Gaussian)
    beta = model.basis.beta.detach()
    model = near_model(settings, covariance.kernel, likelihood, model.mean, beta)
    rows = in_canonical_order(rows)
    conditioned = _conditioned(model, rows, near, calibrate, math.inf, generator)
    return _ended(conditioned, calibrate, history, steps)


def _conditioned(
    model: VariationalGP,
    rows: Rows,
    near: NearSettings,
    calibrate: Calibrate,
    deadline: float,
    generator: torch.Generator,
    chosen: Int[Tensor, " m"] | None = None,
) -> Conditioned:
    def score(left_out: LeftOut) -> float:
        calibration = calibration_of(model, left_out, calibrate)
        return float(log_densities(model, left_out, calibration).mean())

    return condition_on_rows(
        model, rows, near.counts, near.all_rows, score, deadline, generator, chosen
    )


def _ended(
    found: Conditioned, calibrate: Calibrate, history: tuple[Report, ...], steps: int
) -> NearFit:
    calibration = calibration_of(found.model, found.left_out, calibrate)
    return NearFit(found.model, found.predictor, found.left_out, calibration, history, steps)


def with_noise_of(model: VariationalGP, data: FitData) -> Rows:
    """The rows of a table, with scales of their noise that multiply this model's."""
    rows, typical = data.bound_rows, data.typical_noise
    if typical is None and model.log_noise is not None:
        scale = expected_noise(model.log_noise, rows.x.to(model.basis.beta.device))
        return with_noise_scale(rows, scale.to(rows.x.device))
    if rows.noise_scale is None or typical is None:
        return rows
    assert isinstance(model.likelihood, Gaussian)
    assert isinstance(data.units.targets, NumberTargets)
    scale = torch.from_numpy(data.units.targets.scaling.scale)
    # In the units of the model, one for each target.
    known = torch.as_tensor(typical) / scale.square()
    ratio = (known / model.likelihood.likelihood.noise.detach().cpu().reshape(-1)).to(rows.x)
    noise_scale = rows.noise_scale.reshape(len(rows), -1) * ratio
    return replace(rows, noise_scale=noise_scale if rows.y.ndim > 1 else noise_scale[:, 0])


def in_canonical_order(rows: Rows) -> Rows:
    order = canonical_order(rows.x, latents_first(rows.y))
    weight = None if rows.weight is None else rows.weight.clamp_min(SMALLEST_WEIGHT)
    return replace(rows, weight=weight).map(lambda t: t[order])


def _allow_little_noise(likelihood: Gaussian) -> None:
    noise = likelihood.likelihood.noise_covar
    before = likelihood.likelihood.noise.detach().clone()
    noise.register_constraint("raw_noise", GreaterThan(SMALLEST_NOISE).to(before))
    noise.initialize(noise=before)


def choose_inducing_points(
    settings: Mapping[str, Any],
    rows: Rows,
    covariance: Covariance,
    most: int,
    generator: torch.Generator,
) -> Float[Tensor, "b d"]:
    """At most so many centres of the rows as the kernel sees their distances."""
    with torch.no_grad():
        scale = covariance.relevance(rows.x.to(next(covariance.parameters()).device)).sqrt().cpu()
    size = min(int(settings["n_inducing"]), most)
    scaled = choose_beta(rows.x.double() * scale, size, generator)
    return (scaled / scale).to(rows.x)


def near_model(
    settings: Mapping[str, Any],
    kernel: Kernel,
    likelihood: Gaussian,
    mean: Mean | None,
    beta: Float[Tensor, "b d"],
) -> VariationalGP:
    jitter = JITTER if settings["jitter"] is None else settings["jitter"]
    device = next(kernel.parameters()).device
    beta = beta.to(device)
    basis = build_basis(
        "orthogonal", kernel, beta, beta[:0], likelihood.num_latents, "natural",
        settings["hold_fixed"], jitter,
    )  # fmt: skip
    return VariationalGP(kernel, likelihood, basis, mean, jitter).to(device)
