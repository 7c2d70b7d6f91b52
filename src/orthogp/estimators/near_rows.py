"""A fit in which every row counts, for Gaussian noise.

A table of a few thousand rows gets the exact Gaussian process, as β that are all of its rows. A
larger one gets β and, for every prediction, the rows near it; with `n_residual="all"` also the
exact mean, as far as conjugate gradients come. Calibration is by rows that were left out of their
own prediction, so that none is held out.
"""

import math
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.estimators.defaults import point_counts, python_number, training_config
from orthogp.estimators.intake import FitData
from orthogp.estimators.start import given_points, own_kernel
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP, build_basis
from orthogp.posterior import NaturalGaussian, NearPredictor, NearRows, Orthogonal
from orthogp.posterior.all_rows import Solution, solve_all_rows
from orthogp.posterior.induced import Features, Observations
from orthogp.posterior.near_rows import near_predictor
from orthogp.posterior.neighbors import canonical_order
from orthogp.posterior.optimum import leave_one_out as exact_leave_one_out
from orthogp.posterior.points import choose_beta
from orthogp.posterior.solve import solve_gaussian
from orthogp.training import Report, Rows
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.predictive import learn_to_predict

# Up to so many rows all of them are β.
MOST_EXACT = {"cpu": 2000, "cuda": 6000}
NEIGHBORS = {"cpu": 64, "cuda": 64}
# Numbers in W, which holds w of every row: larger tables have fewer β and rely on near rows.
MOST_FEATURES = 2**26
# GPyTorch allows no noise below 1e-4 of the target's variance; tables without noise want less.
SMALLEST_NOISE = 1e-6
JITTER = 1e-8
# Left-out predictions that calibrate, and rows held out of a first solution for all rows.
MOST_CALIBRATED, HELD_OUT_SHARE, FEWEST_HELD_OUT = 5000, 0.1, 500
# Products with all rows, and their share of the time of a fit.
MOST_PRODUCTS, SHARE_OF_TIME = 60, 0.5


@dataclass(frozen=True)
class Predictions:
    """Of rows that had no part in their own: what a calibration is learned from."""

    y: Tensor
    mean: Float[Tensor, "c n"]
    variance: Float[Tensor, "c n"]


@dataclass(frozen=True)
class NearFit:
    """A fitted model, predictions that calibrate it, and what its hyperparameters took to find."""

    model: VariationalGP
    left_out: Predictions
    history: tuple[Report, ...]
    steps: int


def neighbor_count(
    settings: Mapping[str, Any], data: FitData, likelihood: Likelihood, device: torch.device
) -> int:
    """How many rows are near; 0 for the variational posterior alone."""
    value = python_number(settings["n_neighbors"])
    automatic = value == "auto"
    if not automatic and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ConfigurationError(
            f"n_neighbors is {settings['n_neighbors']!r}; expected a whole number from 0, or 'auto'"
        )
    if value == 0:
        return 0
    if settings["n_residual"] != "all":
        point_counts(settings, len(data.train))
    obstacle = _obstacle(settings, data, likelihood)
    if obstacle and not automatic:
        raise ConfigurationError(f"near rows need {obstacle}; set n_neighbors=0")
    if obstacle:
        return 0
    return NEIGHBORS.get(device.type, NEIGHBORS["cpu"]) if automatic else int(value)


def _obstacle(settings: Mapping[str, Any], data: FitData, likelihood: Likelihood) -> str:
    if not isinstance(likelihood, Gaussian):
        return "Gaussian noise"
    if not isinstance(data.train, Rows):
        return "a table that fits in memory"
    if settings["basis"] not in ("orthogonal", "coupled") or settings["optimizer"] != "natural":
        return "the orthogonal or the coupled basis with natural steps"
    return ""


def fit_near(
    settings: Mapping[str, Any],
    data: FitData,
    prior: tuple[Likelihood, Mean | None, float],
    count: int,
    device: torch.device,
    generator: torch.Generator,
) -> NearFit:
    """A model of all rows given, and predictions of them that each was left out of."""
    # Refuses invalid settings, as in any other fit.
    config = training_config(settings, data.num_rows, gaussian=True, seed=0)
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
    history: list[Report] = []

    def report(step: int, density: float) -> None:
        seconds = time.monotonic() - started
        history.append(Report(step, seconds, math.nan, density, math.nan, math.nan))

    steps = 0
    if settings["train_hyperparameters"] and found.parameters:
        limit = started + (1.0 - SHARE_OF_TIME) * (deadline - started)
        most = None if settings["max_steps"] is None else config.max_steps
        steps = learn_to_predict(found, rows, generator, limit, most, report).steps
    exact = len(rows) <= MOST_EXACT.get(device.type, MOST_EXACT["cpu"])
    beta = _inducing_points(settings, data, rows, found.covariance, exact, generator)
    model = _model(settings, kernel, likelihood, mean, beta)
    observed = _observations(model, rows)
    _solve(model, observed)
    if exact and settings["inducing_points"] is None:
        left_out = _exact_predictions(model, rows, observed)
        model.near = NearRows(observed.x, observed.y, _weight(rows, device), count=0)
    elif settings["n_residual"] == "all":
        left_out = _all_rows(model, rows, observed, count, deadline, generator)
    else:
        model.near = NearRows(rows.x.to(device), observed.y, _weight(rows, device), count)
        left_out = _left_out(model, rows, generator)
    return NearFit(model, left_out, tuple(history), steps)


@torch.no_grad()
def with_more_rows(model: VariationalGP, rows: Rows, count: int) -> VariationalGP:
    """A copy of the model with more rows near; all else is as it was."""
    model = deepcopy(model)
    near, device = model.near, model.basis.beta.device
    assert near is not None
    x = rows.x.to(near.x)
    if near.on_mean:
        explained = model.without_near_rows().predict(x)[0]
    else:
        explained = model.prior_mean(x.double())
    y = torch.cat([near.y, latents_first(rows.y.to(device)) - explained.to(near.y)], dim=1)
    weight = None
    if near.weight is not None or rows.weight is not None:
        parts = (near.weight, len(near.x)), (rows.weight, len(x))
        weight = torch.cat([x.new_ones(n) if w is None else w.to(x) for w, n in parts])
    x = torch.cat([near.x, x])
    order = canonical_order(x, y)
    weight = None if weight is None else weight[order]
    model.near = NearRows(x[order], y[:, order], weight, near.count or count, near.on_mean)
    return model


def _in_canonical_order(rows: Rows) -> Rows:
    order = canonical_order(rows.x, latents_first(rows.y))
    return rows.map(lambda t: t[order])


def _allow_little_noise(likelihood: Gaussian) -> None:
    noise = likelihood.likelihood.noise_covar
    before = likelihood.likelihood.noise.detach().clone()
    noise.register_constraint("raw_noise", GreaterThan(SMALLEST_NOISE).to(before))
    noise.initialize(noise=before)


def _inducing_points(
    settings: Mapping[str, Any],
    data: FitData,
    rows: Rows,
    covariance: Covariance,
    exact: bool,
    generator: torch.Generator,
) -> Float[Tensor, "b d"]:
    """Those given, all rows, or centres of the rows as the kernel sees their distances."""
    given = given_points(settings, "inducing_points", data.units.inputs)
    if given is not None:
        return given
    if exact:
        return rows.x.unique(dim=0)
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


def _observations(model: VariationalGP, rows: Rows) -> Observations:
    device = model.basis.beta.device
    y = latents_first(rows.y.to(device)).double()
    with torch.no_grad():
        y = y - model.prior_mean(rows.x.to(device).double())
    near = NearRows(rows.x.to(device), y, _weight(rows, device), count=1)
    assert isinstance(model.likelihood, Gaussian)
    return near.observations(model.likelihood.likelihood.noise)


def _weight(rows: Rows, device: torch.device) -> Tensor | None:
    return None if rows.weight is None else rows.weight.to(device)


def _solve(model: VariationalGP, rows: Observations) -> None:
    """q(f_β) of the variational posterior, of which `elbo_` is the bound."""
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    precision = rows.noise.reciprocal().expand_as(rows.y)
    solve_gaussian(model.basis, model.covariance, factor, rows.x, rows.y, precision)


def _exact_predictions(model: VariationalGP, rows: Rows, observed: Observations) -> Predictions:
    mean, variance = exact_leave_one_out(model.covariance, observed.x, observed.y, observed.noise)
    return _with_prior_mean(model, rows.x, rows.y, mean, variance)


def _left_out(model: VariationalGP, rows: Rows, generator: torch.Generator) -> Predictions:
    predictor = model.predictor()
    assert isinstance(predictor, NearPredictor)
    chosen = torch.randperm(len(rows), generator=generator)[:MOST_CALIBRATED]
    mean, variance = predictor.leave_one_out(chosen.to(predictor.device))
    return _with_prior_mean(model, rows.x[chosen], rows.y[chosen], mean, variance)


def _with_prior_mean(
    model: VariationalGP, x: Tensor, y: Tensor, mean: Tensor, variance: Tensor
) -> Predictions:
    with torch.no_grad():
        mean = mean + model.prior_mean(x.to(mean.device).double())
    return Predictions(y, mean, variance.expand_as(mean))


def _all_rows(
    model: VariationalGP,
    rows: Rows,
    observed: Observations,
    count: int,
    deadline: float,
    generator: torch.Generator,
) -> Predictions:
    """Solves without some rows, to predict these, and then, from there, with them."""
    order = torch.randperm(len(rows), generator=generator)
    enough = max(math.ceil(HELD_OUT_SHARE * len(rows)), min(FEWEST_HELD_OUT, len(rows) // 3))
    num_held_out = min(MOST_CALIBRATED, enough)
    held_out, others = order[:num_held_out].sort().values, order[num_held_out:].sort().values
    middle = 0.5 * (time.monotonic() + deadline)
    first = _solution(model, _part(observed, others), middle)
    predictor = _on_top(model, _part(observed, others), first, count)
    x = observed.x[held_out]
    mean, variance = predictor.marginals(x)
    with torch.no_grad():
        mean = mean + model.covariance.matvec(x, observed.x[others], first.weights.to(x)).double()
    left_out = _with_prior_mean(model, x, rows.y[held_out], mean, variance)
    start = torch.zeros_like(observed.y)
    start[:, others.to(start.device)] = first.weights
    whole = _solution(model, observed, deadline, start)
    _set_all_rows(model, observed, whole)
    weight = _weight(rows, observed.x.device)
    model.near = NearRows(observed.x, whole.residual, weight, count, on_mean=True)
    return left_out


def _part(rows: Observations, chosen: Int[Tensor, " m"]) -> Observations:
    chosen = chosen.to(rows.x.device)
    return Observations(rows.x[chosen], rows.y[:, chosen], rows.noise[:, chosen])


def _features(model: VariationalGP, rows: Observations) -> Features:
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    return Features.of(model.covariance, model.basis.beta, factor.R.detach(), rows.x)


def _solution(
    model: VariationalGP, rows: Observations, deadline: float, start: Tensor | None = None
) -> Solution:
    return solve_all_rows(
        model.covariance, _features(model, rows), rows, max_products=MOST_PRODUCTS,
        deadline=None if deadline == math.inf else deadline, start=start,
    )  # fmt: skip


def _on_top(
    model: VariationalGP, rows: Observations, solution: Solution, count: int
) -> NearPredictor:
    """Near rows for what the solution has left."""
    left = replace(rows, y=solution.residual)
    return near_predictor(model.covariance, left, count, _features(model, rows))


@torch.no_grad()
def _set_all_rows(model: VariationalGP, rows: Observations, solution: Solution) -> None:
    """γ = X and a_γ = α, with ν = u: the mean of the basis is k_xX α."""
    basis = model.basis
    assert isinstance(basis, Orthogonal)
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    S = basis.coefficients(basis.project(model.covariance, factor, basis.beta[:0].double())).S
    model.basis = basis.with_more(rows.x.to(basis.beta))
    model.basis.a_gamma.copy_(solution.weights)
    beta = basis.beta.double()
    at_beta = model.covariance.matvec(beta, rows.x.double(), solution.weights)
    assert isinstance(model.basis.q, NaturalGaussian)
    model.basis.q.set_whitened(factor, at_beta @ factor.R.mT, S)
