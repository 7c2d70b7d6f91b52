"""A posterior in which every row counts, at given hyperparameters, for Gaussian noise.

Candidates are the rows near x, few or more of them, with or without what β knows of all rows, and
the mean of all rows with near rows for what is left of it. The one that predicts left-out rows best
is taken, a dearer one only where it gains enough.
"""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.likelihoods import Gaussian
from orthogp.likelihoods.row_noise import log_jacobian, with_unit_scale
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP
from orthogp.posterior import AnyPredictor, NaturalGaussian, NearPredictor, NearRows, Orthogonal
from orthogp.posterior.all_rows import Solution, solve_all_rows
from orthogp.posterior.induced import Features
from orthogp.posterior.kernel_matrix import KernelMatrix, fits_in_memory
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.observations import MergedRows, Observations
from orthogp.posterior.optimum import leave_one_out
from orthogp.posterior.solve import solve_gaussian
from orthogp.training.batches import Rows

# Rows that are predicted from all others, to compare candidates and to calibrate; and those that
# are left out together where all others are in the mean, a tenth of all or enough to calibrate.
MOST_LEFT_OUT = 5000
FEWEST_TOGETHER, MOST_TOGETHER = 500, 2000
# What a dearer candidate must gain, in nats a row.
LEAST_GAIN = 0.01
# Kernel values that products with all rows may take where each evaluates them anew; a table that
# cannot have the fewest products by them is too large for any.
MOST_VALUES = {"cpu": 4e10, "cuda": 1e11}
FEWEST_PRODUCTS, MOST_PRODUCTS = 20, {"cpu": 50, "cuda": 100}


@dataclass(frozen=True)
class LeftOut:
    """Predictions of rows that had no part in their own.

    `rows` are their places in the table; `noise_scale` multiplies the noise of each, if it does.
    """

    y: Tensor
    mean: Float[Tensor, "c n"]
    variance: Float[Tensor, "c n"]
    rows: Int[Tensor, " n"]
    noise_scale: Float[Tensor, "s n"] | None = None

    def with_unit_scale(self) -> "LeftOut":
        """The same rows in units in which all have the likelihood's own noise."""
        if self.noise_scale is None:
            return self
        moments = with_unit_scale(self.noise_scale, self.y, self.mean, self.variance)
        return LeftOut(*moments, self.rows)

    def log_jacobian(self) -> Float[Tensor, " n"]:
        """What is added to a log density in those units; zero where they are the rows' own."""
        if self.noise_scale is None:
            return torch.zeros_like(self.mean[0])
        return log_jacobian(self.noise_scale, len(self.mean))


@dataclass(frozen=True)
class Conditioned:
    """A model with its rows, its predictor, and predictions of left-out rows by it."""

    model: VariationalGP
    predictor: AnyPredictor
    left_out: LeftOut


# The mean log density, in nats a row, of left-out rows as they are predicted.
Score = Callable[[LeftOut], float]


def condition_exactly(
    model: VariationalGP, rows: Rows, chosen: Int[Tensor, " m"] | None = None
) -> Conditioned:
    """The exact process, for a model whose β are all rows; the rows are held for more to join.

    Of the predictions of left-out rows those of `chosen` are kept, all by default.
    """
    table = RowTable(model, rows, torch.arange(len(rows)) if chosen is None else chosen)
    mean, variance = leave_one_out(
        model.covariance, table.observed.x, table.observed.y, table.observed.noise
    )
    mean, variance = mean[:, table.chosen], variance[:, table.chosen]
    model.near = table.near_rows(table.observed.y, count=0)
    return Conditioned(model, model.predictor(), table.left_out(table.chosen, mean, variance))


def condition_on_rows(
    model: VariationalGP,
    rows: Rows,
    counts: Sequence[int],
    all_rows: bool | None,
    score: Score,
    deadline: float,
    generator: torch.Generator,
    chosen: Int[Tensor, " m"] | None = None,
) -> Conditioned:
    """The best of the numbers of near rows in `counts`, in rising order, and of all rows.

    `all_rows` says whether they are in the mean; None for where that predicts better and is
    affordable. `deadline` is a time of `time.monotonic()`. The rows `chosen` are left out, random
    ones by default.
    """
    if chosen is None:
        chosen = torch.randperm(len(rows), generator=generator)[:MOST_LEFT_OUT]
    table = RowTable(model, rows, chosen)
    best, best_score = None, -math.inf
    for count, on_beta in [(count, on_beta) for count in counts for on_beta in (False, True)]:
        found = table.near(count, on_beta)
        found_score = score(found.left_out)
        if best is None or found_score > best_score + LEAST_GAIN:
            best, best_score = found, found_score
    assert best is not None
    products = _affordable_products(table.merged.distinct.x)
    if all_rows is False or (all_rows is None and products < FEWEST_PRODUCTS):
        return best
    near, products = best.model.near, max(products, FEWEST_PRODUCTS)
    assert isinstance(near, NearRows)
    trial = table.without_some(near.count, near.on_beta, products, deadline)
    if not all_rows:
        by_near_rows = table.without_some_by_near_rows(near.count, near.on_beta)
        # Written so that NaN is no gain.
        if not score(trial.left_out) > score(by_near_rows) + LEAST_GAIN:
            return best
    return table.with_all_rows(trial, products, deadline, score)


def _affordable_products(x: Float[Tensor, "n d"]) -> int:
    device = x.device.type
    values, most = (limit.get(device, limit["cpu"]) for limit in (MOST_VALUES, MOST_PRODUCTS))
    without_storing = int(min(most, values / len(x) ** 2))
    if without_storing >= FEWEST_PRODUCTS and fits_in_memory(x):
        return int(most)
    return without_storing


@dataclass(frozen=True)
class _Trial:
    """All rows but some in the mean: weights, zero for those; predictions of those."""

    weights: Float[Tensor, "c n"]
    converged: bool
    count: int
    on_beta: bool
    left_out: LeftOut


class RowTable:
    """The rows of a model as observations, in canonical order, and those of them left out."""

    def __init__(self, model: VariationalGP, rows: Rows, chosen: Int[Tensor, " m"]):
        self.model, self.device = model, model.basis.beta.device
        self.rows = rows.map(lambda t: t.to(self.device))
        self.chosen = chosen.to(self.device)
        with torch.no_grad():
            y = latents_first(self.rows.y).double()
            y = y - model.prior_mean(self.rows.x.double())
        self.merged = self._merged(self.near_rows(y, count=0))
        factor = model.basis.factor(model.covariance, model.jitter, robust=True)
        observed = self.merged.distinct
        precision = observed.noise.reciprocal().expand_as(observed.y)
        # q(f_β) of the variational posterior, which the bound is of.
        solve_gaussian(model.basis, model.covariance, factor, observed.x, observed.y, precision)
        self.factor = factor

    @property
    def observed(self) -> Observations:
        """What was observed at every row."""
        return self.merged.rows

    def near_rows(
        self, y: Float[Tensor, "c n"], count: int, on_mean: bool = False, on_beta: bool = True
    ) -> NearRows:
        return NearRows(self.rows.x, y, self.rows.noise_divisor, count, on_mean, on_beta)

    def near(self, count: int, on_beta: bool) -> Conditioned:
        near = self.near_rows(self.observed.y, count, on_beta=on_beta)
        predictor = self._predictor(near)
        left_out = self.left_out(self.chosen, *predictor.leave_one_out(self.chosen))
        return Conditioned(self._model(near), predictor, left_out)

    def without_some(
        self,
        count: int,
        on_beta: bool,
        max_products: int,
        deadline: float,
        start: Float[Tensor, "c n"] | None = None,
    ) -> _Trial:
        """All rows but some in the mean, near rows for what is left: a prediction of those some.

        The search for weights begins at those in `start`.
        """
        half_time = 0.5 * (time.monotonic() + deadline)
        rows, empty = self.merged.without(self._absent)
        found = self._solve(rows, max_products, half_time, start, empty)
        solved = rows.y - found.residual
        mean, variance = self._absent_given(self._beyond(solved), count, on_beta)
        # (K + D) α is solved for, and K α predicts.
        predicted = (solved - rows.noise * found.weights)[:, self.merged.place[self._absent]]
        left_out = self.left_out(self._absent, mean + predicted, variance)
        return _Trial(found.weights, found.converged, count, on_beta, left_out)

    def without_some_by_near_rows(self, count: int, on_beta: bool) -> LeftOut:
        """Predictions of the same rows as in `without_some`, from the same others, without their
        mean."""
        moments = self._absent_given(self.observed.y, count, on_beta)
        return self.left_out(self._absent, *moments)

    @cached_property
    def _absent(self) -> Int[Tensor, " m"]:
        """The rows that are left out together."""
        num_rows = len(self.rows)
        enough = max(num_rows // 10, min(FEWEST_TOGETHER, num_rows // 3), 1)
        return self.chosen[: min(MOST_TOGETHER, enough)]

    def _absent_given(
        self, y: Float[Tensor, "c n"], count: int, on_beta: bool
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "s m"]]:
        """Mean and variance at the rows left out together, where y is observed at the others."""
        present = torch.ones(len(self.rows), dtype=torch.bool, device=self.device)
        present[self._absent] = False
        merged = MergedRows.of_ordered(replace(self.observed, y=y)[present])
        features = None
        if on_beta:
            place = self.merged.place[present][merged.first]
            features = replace(self.features, W=self.features.W[place])
        predictor = near_predictor(self.model.covariance, merged, count, features)
        return predictor.marginals(self.rows.x[self._absent])

    def with_all_rows(
        self, trial: _Trial, max_products: int, deadline: float, score: Score
    ) -> Conditioned:
        """All rows in the mean, from where a trial has led, and near rows for what is left.

        Weights that had not converged in the trial are better now, so that it would calibrate by
        errors that are too large: it goes on from these.
        """
        rows = self.merged.distinct
        found = self._solve(rows, max_products, deadline, trial.weights)
        if not trial.converged and time.monotonic() < deadline:
            products = max(1, max_products // 2)
            again = self.without_some(trial.count, trial.on_beta, products, deadline, found.weights)
            # With few products it may not come as far as it was.
            trial = max(trial, again, key=lambda t: score(t.left_out))
        left = self._beyond(rows.y - found.residual)
        near = self.near_rows(left, trial.count, on_mean=True, on_beta=trial.on_beta)
        model, predictor = self._model(near), self._predictor(near)
        _set_all_rows(model, rows.x, found)
        return Conditioned(model, replace(predictor, base=model.condensed()), trial.left_out)

    def _beyond(self, at_inputs: Float[Tensor, "c r"]) -> Float[Tensor, "c n"]:
        """What every row has beyond these numbers at the distinct inputs."""
        return self.observed.y - at_inputs[:, self.merged.place]

    def _solve(
        self,
        rows: Observations,
        max_products: int,
        deadline: float,
        start: Float[Tensor, "c n"] | None = None,
        absent: Int[Tensor, " m"] | None = None,
    ) -> Solution:
        return solve_all_rows(
            self.model.covariance, self.features, rows, max_products=max_products,
            deadline=None if deadline == math.inf else deadline, start=start,
            matrix=self._matrix, absent=absent,
        )  # fmt: skip

    @cached_property
    def _matrix(self) -> KernelMatrix:
        """Of all rows; every solution has it."""
        return KernelMatrix(self.model.covariance, self.merged.distinct.x)

    def left_out(self, chosen: Int[Tensor, " m"], mean: Tensor, variance: Tensor) -> LeftOut:
        x, y = self.rows.x[chosen], self.rows.y[chosen]
        with torch.no_grad():
            mean = mean + self.model.prior_mean(x.double())
        scale = self.rows.noise_scale
        scale = None if scale is None else latents_first(scale[chosen]).double()
        return LeftOut(y, mean, variance.expand_as(mean), chosen, scale)

    def _merged(self, near: NearRows) -> MergedRows:
        assert isinstance(self.model.likelihood, Gaussian)
        noise = self.model.likelihood.likelihood.noise
        return MergedRows.of_ordered(near.observations(noise))

    @cached_property
    def features(self) -> Features:
        R = self.factor.R.detach()
        x = self.merged.distinct.x
        return Features.of(self.model.covariance, self.model.basis.beta, R, x)

    def _predictor(self, near: NearRows) -> NearPredictor:
        features = self.features if near.on_beta else None
        return near_predictor(self.model.covariance, self._merged(near), near.count, features)

    def _model(self, near: NearRows) -> VariationalGP:
        m = self.model
        return VariationalGP(m.covariance.kernel, m.likelihood, m.basis, m.mean, m.jitter, near)


@torch.no_grad()
def _set_all_rows(model: VariationalGP, x: Float[Tensor, "n d"], solution: Solution) -> None:
    """γ = X and a_γ = α, with ν = u: the mean of the basis is k_xX α."""
    basis = deepcopy(model.basis)
    assert isinstance(basis, Orthogonal)
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    S = basis.coefficients(basis.project(model.covariance, factor, basis.beta[:0].double())).S
    model.basis = basis.with_more(x.to(basis.beta))
    model.basis.a_gamma.copy_(solution.weights)
    beta = basis.beta.double()
    at_beta = model.covariance.matvec(beta, x.double(), solution.weights)
    assert isinstance(model.basis.q, NaturalGaussian)
    model.basis.q.set_whitened(factor, at_beta @ factor.R.mT, S)
