"""A posterior in which every row counts, at given hyperparameters, for Gaussian noise.

Candidates are the rows near x, few or more of them, and the mean of all rows with near rows for
what is left of it. The one that predicts left-out rows best is taken, a dearer one only where it
gains enough.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.likelihoods import Gaussian
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP
from orthogp.posterior import NaturalGaussian, NearPredictor, NearRows, Orthogonal, Predictor
from orthogp.posterior.all_rows import Solution, left_out_of_all_rows, solve_all_rows
from orthogp.posterior.induced import Features, Observations
from orthogp.posterior.near_rows import near_predictor
from orthogp.posterior.optimum import leave_one_out
from orthogp.posterior.solve import solve_gaussian
from orthogp.training.batches import Rows

# Rows that are predicted from all others, to compare candidates and to calibrate.
MOST_LEFT_OUT = 5000
# What a dearer candidate must gain, in nats a row.
LEAST_GAIN = 0.01
# Kernel values that products with all rows may take in all; fewer products are not worth a trial.
MOST_VALUES = {"cpu": 4e10, "cuda": 1e11}
FEWEST_PRODUCTS, MOST_PRODUCTS = 10, 100


@dataclass(frozen=True)
class LeftOut:
    """Predictions of rows that had no part in their own."""

    y: Tensor
    mean: Float[Tensor, "c n"]
    variance: Float[Tensor, "c n"]


@dataclass(frozen=True)
class Conditioned:
    """A model with its rows, its predictor, and predictions of left-out rows by it."""

    model: VariationalGP
    predictor: Predictor | NearPredictor
    left_out: LeftOut


# The mean log density, in nats a row, of left-out rows as they are predicted.
Score = Callable[[LeftOut], float]


def condition_exactly(model: VariationalGP, rows: Rows) -> Conditioned:
    """The exact process, for a model whose β are all rows; the rows are held for more to join."""
    table = _Table(model, rows, torch.arange(len(rows)))
    mean, variance = leave_one_out(
        model.covariance, table.observed.x, table.observed.y, table.observed.noise
    )
    model.near = table.near_rows(table.observed.y, count=0)
    return Conditioned(model, model.predictor(), table.left_out(mean, variance))


def condition_on_rows(
    model: VariationalGP,
    rows: Rows,
    counts: Sequence[int],
    all_rows: bool | None,
    score: Score,
    deadline: float,
    generator: torch.Generator,
) -> Conditioned:
    """The best of the numbers of near rows in `counts`, in rising order, and of all rows.

    `all_rows` says whether they are in the mean; None for where that predicts better and is
    affordable. `deadline` is a time of `time.monotonic()`.
    """
    chosen = torch.randperm(len(rows), generator=generator)[:MOST_LEFT_OUT]
    table = _Table(model, rows, chosen)
    best = table.near(counts[0])
    for count in counts[1:]:
        best = _better(best, table.near(count), score)
    entries = MOST_VALUES.get(table.device.type, MOST_VALUES["cpu"])
    products = min(MOST_PRODUCTS, int(entries / len(rows) ** 2))
    if all_rows is False or (all_rows is None and products < FEWEST_PRODUCTS):
        return best
    assert best.model.near is not None
    other = table.with_all_rows(best.model.near.count, max(products, FEWEST_PRODUCTS), deadline)
    return other if all_rows else _better(best, other, score)


def _better(one: Conditioned, dearer: Conditioned, score: Score) -> Conditioned:
    return dearer if score(dearer.left_out) > score(one.left_out) + LEAST_GAIN else one


class _Table:
    """The rows of a model as observations, and those of them that are left out."""

    def __init__(self, model: VariationalGP, rows: Rows, chosen: Int[Tensor, " m"]):
        self.model, self.device = model, model.basis.beta.device
        self.rows = rows.map(lambda t: t.to(self.device))
        self.chosen = chosen.to(self.device)
        with torch.no_grad():
            y = latents_first(self.rows.y).double()
            y = y - model.prior_mean(self.rows.x.double())
        self.observed = self._observations(self.near_rows(y, count=0))
        factor = model.basis.factor(model.covariance, model.jitter, robust=True)
        precision = self.observed.noise.reciprocal().expand_as(y)
        # q(f_β) of the variational posterior, which the bound is of.
        solve_gaussian(model.basis, model.covariance, factor, self.rows.x, y, precision)
        self.factor = factor

    def near_rows(self, y: Float[Tensor, "c n"], count: int, on_mean: bool = False) -> NearRows:
        return NearRows(self.rows.x, y, self.rows.weight, count, on_mean)

    def near(self, count: int) -> Conditioned:
        """β and near rows."""
        near = self.near_rows(self.observed.y, count)
        predictor = self._predictor(near)
        left_out = self.left_out(*predictor.leave_one_out(self.chosen))
        return Conditioned(self._model(near), predictor, left_out)

    def with_all_rows(self, count: int, max_products: int, deadline: float) -> Conditioned:
        """All rows in the mean, and near rows for what is left."""
        solution = solve_all_rows(
            self.model.covariance, self.features, self.observed, max_products=max_products,
            deadline=None if deadline == math.inf else deadline,
        )  # fmt: skip
        near = self.near_rows(solution.residual, count, on_mean=True)
        predictor = self._predictor(near)
        left_out = left_out_of_all_rows(self.observed, solution.weights, predictor, self.chosen)
        model = self._model(near)
        _set_all_rows(model, self.observed, solution)
        predictor = replace(predictor, base=model.condensed())
        return Conditioned(model, predictor, self.left_out(*left_out))

    def left_out(self, mean: Tensor, variance: Tensor) -> LeftOut:
        x, y = self.rows.x[self.chosen], self.rows.y[self.chosen]
        with torch.no_grad():
            mean = mean + self.model.prior_mean(x.double())
        return LeftOut(y, mean, variance.expand_as(mean))

    def _observations(self, near: NearRows) -> Observations:
        assert isinstance(self.model.likelihood, Gaussian)
        return near.observations(self.model.likelihood.likelihood.noise)

    @cached_property
    def features(self) -> Features:
        R = self.factor.R.detach()
        return Features.of(self.model.covariance, self.model.basis.beta, R, self.rows.x)

    def _predictor(self, near: NearRows) -> NearPredictor:
        observed = self._observations(near)
        return near_predictor(self.model.covariance, observed, near.count, self.features)

    def _model(self, near: NearRows) -> VariationalGP:
        m = self.model
        return VariationalGP(m.covariance.kernel, m.likelihood, m.basis, m.mean, m.jitter, near)


@torch.no_grad()
def _set_all_rows(model: VariationalGP, rows: Observations, solution: Solution) -> None:
    """γ = X and a_γ = α, with ν = u: the mean of the basis is k_xX α."""
    basis = deepcopy(model.basis)
    assert isinstance(basis, Orthogonal)
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    S = basis.coefficients(basis.project(model.covariance, factor, basis.beta[:0].double())).S
    model.basis = basis.with_more(rows.x.to(basis.beta))
    model.basis.a_gamma.copy_(solution.weights)
    beta = basis.beta.double()
    at_beta = model.covariance.matvec(beta, rows.x.double(), solution.weights)
    assert isinstance(model.basis.q, NaturalGaussian)
    model.basis.q.set_whitened(factor, at_beta @ factor.R.mT, S)
