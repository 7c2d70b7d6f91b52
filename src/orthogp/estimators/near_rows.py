"""A fit in which every row counts, for Gaussian noise.

A table of a few thousand rows gets the exact Gaussian process, as β that are all of its rows. A
larger one gets β and, for every prediction, the rows near it; where that predicts better also the
mean of all rows. Calibration is by rows that were left out of their own prediction, so that none is
held out.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.defaults import point_counts, python_number, training_config
from orthogp.estimators.intake import FitData
from orthogp.estimators.settings import Settings
from orthogp.estimators.start import given_points, own_kernel
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian, Likelihood, RegressionLikelihood
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP, build_basis, require_evaluable
from orthogp.posterior import AnyPredictor
from orthogp.posterior.near_rows import SMALLEST_WEIGHT
from orthogp.posterior.neighbors import canonical_order
from orthogp.posterior.points import choose_beta
from orthogp.training import ProgressBar, Report, Rows
from orthogp.training.every_row import (
    Conditioned,
    LeftOut,
    condition_exactly,
    condition_on_rows,
)
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.predictive import MOST_EXACT, TYPICAL_STEPS, learn_to_predict
from orthogp.training.search_run import SearchRun, search_checkpoints

# Numbers of near rows to choose from; the larger one takes four times as long to predict.
NEIGHBORS = (64, 128)
# Numbers in W, which holds w of every row: larger tables have fewer β and rely on near rows.
MOST_FEATURES = 2**26
# GPyTorch allows no noise below 1e-4 of the target's variance; tables without noise want less.
SMALLEST_NOISE = 1e-6
JITTER = 1e-8
# The share of the time of a fit that hyperparameters may take.
LEARNING_SHARE = 0.5
OBJECTIVES = ("auto", "bound", "leave_one_out")
# Settings of the training by steps alone.
STEP_SETTINGS = (
    "batch_size", "learning_rate", "adam_beta2", "natural_step", "kl_columns", "residual_points",
    "schedule", "clip_norm", "residual_rule", "train_points", "shard_residual", "early_stopping",
)  # fmt: skip

Calibrate = Callable[[Likelihood, Tensor, Tensor, Tensor], Calibration | LatentScales]


@dataclass(frozen=True)
class NearFit:
    """A fitted model, predictions of left-out rows with the calibration that is learned from them,
    and what its hyperparameters took to find."""

    model: VariationalGP
    predictor: AnyPredictor
    left_out: LeftOut
    calibration: Calibration | LatentScales
    history: tuple[Report, ...]
    steps: int


@dataclass(frozen=True)
class NearSettings:
    """What the settings say of near rows: numbers to choose from, and whether γ are all rows."""

    counts: tuple[int, ...]
    all_rows: bool | None
    objective: str

    @property
    def by_steps(self) -> bool:
        """Whether hyperparameters are those of the bound, learned by steps."""
        return self.objective == "bound"


def near_settings(
    settings: Mapping[str, Any], data: FitData, likelihood: Likelihood
) -> NearSettings | None:
    """None where the posterior is trained by steps."""
    value, objective = python_number(settings["n_neighbors"]), settings["objective"]
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not (whole or value == "auto"):
        raise ConfigurationError(
            f"n_neighbors is {settings['n_neighbors']!r}; expected a whole number from 0, or 'auto'"
        )
    if objective not in OBJECTIVES:
        raise ConfigurationError(
            f"objective is {objective!r}; expected one of {', '.join(map(repr, OBJECTIVES))}"
        )
    residual = settings["n_residual"]
    # True for all rows, False for points, None for either.
    all_rows = (
        {"all": True, "auto": None}.get(residual, False) if isinstance(residual, str) else False
    )
    point_counts(settings if all_rows is False else {**settings, "n_residual": 0}, len(data.train))
    obstacle = "n_neighbors above 0" if value == 0 else _obstacle(settings, data, likelihood)
    if not obstacle:
        counts = NEIGHBORS if value == "auto" else (int(value),)
        return NearSettings(counts, all_rows, objective)
    by_sites = not isinstance(likelihood, Gaussian) and data.held_out is not None
    wanted = {
        f"n_neighbors={value}": value not in (0, "auto") and not by_sites,
        "n_residual='all'": all_rows is True,
        "objective='leave_one_out'": objective == "leave_one_out",
    }
    for name in wanted:
        if wanted[name]:
            raise ConfigurationError(f"{name} needs {obstacle}")
    return None


def _obstacle(settings: Mapping[str, Any], data: FitData, likelihood: Likelihood) -> str:
    """What near rows need and this fit has not."""
    if not isinstance(likelihood, Gaussian):
        return "Gaussian noise, or rows that are held out to learn by (validation_fraction)"
    if not isinstance(data.train, Rows):
        return "a table that fits in memory"
    if settings["basis"] not in ("orthogonal", "coupled") or settings["optimizer"] != "natural":
        return "the orthogonal or the coupled basis with natural steps"
    return ""


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
    # Refuses invalid settings, as in any other fit.
    config = training_config(settings, data.num_rows, gaussian=True, seed=0)
    given_points(settings, "residual_points", data.units.inputs)
    _warn_of_unused(settings)
    started = time.monotonic()
    deadline = started + (math.inf if config.max_time is None else config.max_time)
    likelihood, mean, variance = prior
    assert isinstance(likelihood, Gaussian)
    rows = _in_canonical_order(data.bound_rows)
    kernel = own_kernel(settings, rows.x, len(rows), variance).to(device)
    likelihood = likelihood.to(device)
    if settings["likelihood"] is None:
        _allow_little_noise(likelihood)
    found = Hyperparameters(Covariance(kernel), likelihood)
    require_evaluable(found.covariance, rows.x[:1].to(device))
    most = None if settings["max_steps"] is None else config.max_steps
    run = _search_run(settings, found, rows, most, generator)
    steps = 0
    if settings["train_hyperparameters"] and found.parameters:
        limit = started + LEARNING_SHARE * (deadline - started)
        with run.told():
            learned = learn_to_predict(
                found, rows, generator, limit, most, run.report, checkpoint=run
            )
            steps, run.reason = learned.steps, "interrupt" if learned.interrupted else "steps"
    exact = len(rows) <= MOST_EXACT.get(device.type, MOST_EXACT["cpu"])
    exact = exact and settings["inducing_points"] is None
    beta = given_points(settings, "inducing_points", data.units.inputs)
    if exact:
        beta = rows.x.unique(dim=0)
    elif beta is None:
        beta = _inducing_points(settings, rows, found.covariance, generator)
    model = _model(settings, kernel, likelihood, mean, beta)
    if exact:
        conditioned = condition_exactly(model, rows)
    else:
        conditioned = _conditioned(model, rows, near, calibrate, deadline, generator)
    return _ended(conditioned, calibrate, tuple(run.history), steps)


def _search_run(
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
    model = _model(settings, covariance.kernel, likelihood, model.mean, beta)
    rows = _in_canonical_order(rows)
    conditioned = _conditioned(model, rows, near, calibrate, math.inf, generator)
    return _ended(conditioned, calibrate, history, steps)


def _conditioned(
    model: VariationalGP,
    rows: Rows,
    near: NearSettings,
    calibrate: Calibrate,
    deadline: float,
    generator: torch.Generator,
) -> Conditioned:
    @torch.no_grad()
    def score(left_out: LeftOut) -> float:
        calibration, likelihood = _calibration(model, left_out, calibrate), model.likelihood
        assert isinstance(calibration, Calibration)
        assert isinstance(likelihood, RegressionLikelihood)
        density = calibration.log_density(likelihood, left_out.y, left_out.mean, left_out.variance)
        return float(density.mean())

    return condition_on_rows(model, rows, near.counts, near.all_rows, score, deadline, generator)


def _calibration(
    model: VariationalGP, left_out: LeftOut, calibrate: Calibrate
) -> Calibration | LatentScales:
    return calibrate(model.likelihood, left_out.y, left_out.mean, left_out.variance)


def _ended(
    found: Conditioned, calibrate: Calibrate, history: tuple[Report, ...], steps: int
) -> NearFit:
    calibration = _calibration(found.model, found.left_out, calibrate)
    return NearFit(found.model, found.predictor, found.left_out, calibration, history, steps)


def _warn_of_unused(settings: Mapping[str, Any]) -> None:
    unused, defaults = [], signature(Settings).parameters
    for name in STEP_SETTINGS:
        value, default = settings[name], defaults[name].default
        # Points given are an array, which compares element by element.
        if value is not default and (default is None or value != default):
            unused.append(name)
    if unused:
        warnings.warn(
            f"{', '.join(unused)} {'has' if len(unused) == 1 else 'have'} no effect on a fit with "
            "near rows; n_neighbors=0 trains the variational posterior by steps",
            stacklevel=6,
        )


def _in_canonical_order(rows: Rows) -> Rows:
    order = canonical_order(rows.x, latents_first(rows.y))
    weight = None if rows.weight is None else rows.weight.clamp_min(SMALLEST_WEIGHT)
    return Rows(rows.x, rows.y, weight).map(lambda t: t[order])


def _allow_little_noise(likelihood: Gaussian) -> None:
    noise = likelihood.likelihood.noise_covar
    before = likelihood.likelihood.noise.detach().clone()
    noise.register_constraint("raw_noise", GreaterThan(SMALLEST_NOISE).to(before))
    noise.initialize(noise=before)


def _inducing_points(
    settings: Mapping[str, Any], rows: Rows, covariance: Covariance, generator: torch.Generator
) -> Float[Tensor, "b d"]:
    """Centres of the rows as the kernel sees their distances."""
    with torch.no_grad():
        scale = covariance.relevance(rows.x.to(next(covariance.parameters()).device)).sqrt().cpu()
    affordable = max(1, MOST_FEATURES // len(rows))
    size = min(int(settings["n_inducing"]), affordable)
    scaled = choose_beta(rows.x.double() * scale, size, generator)
    return (scaled / scale).to(rows.x)


def _model(
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
