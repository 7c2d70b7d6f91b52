"""Kernel + mean + likelihood + basis: the bound on a batch, and predictions."""

import math
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean, ZeroMean
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from orthogp.errors import ConfigurationError, DataError
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.likelihoods.base import Expectation
from orthogp.likelihoods.targets import latents_first
from orthogp.linalg import Factor
from orthogp.model.build import chosen_jitter, require_evaluable
from orthogp.model.cache import ModuleCache
from orthogp.model.priors import log_prior, registered_priors
from orthogp.posterior import (
    AnyPredictor,
    Basis,
    NearPredictor,
    NearRows,
    Predictor,
    SitePredictor,
    SiteRows,
    StoredRows,
    Whitened,
    condense,
    kl_divergence,
    marginals,
)
from orthogp.posterior.conditioning import basis_predictor, with_rows
from orthogp.posterior.gradients import gradient_variance
from orthogp.posterior.induced import Features
from orthogp.posterior.joint import local, mean_at, moments
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.observations import MergedRows
from orthogp.posterior.pathwise import FREQUENCIES, PosteriorFunctions, sample_functions
from orthogp.posterior.stored_rows import StoredPredictor

# Rows near x where a model has none yet and no number is given.
NEIGHBORS = 64


@dataclass(frozen=True)
class Bound:
    """An estimate of the evidence lower bound, and the q and the factor of K_β that it is of."""

    value: Float[Tensor, ""]
    expected_log_prob: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    q: Whitened
    factor: Factor

    @property
    def failures(self) -> Bool[Tensor, "3"]:
        """Whether K_β, q(f_β) and the value went wrong, in that order; stays on the device."""
        # Written so that NaN counts as a failure.
        lost = ~(self.value.abs() < math.inf)
        return torch.stack([self.factor.failed, self.q.failed.any(), lost])

    @property
    def failed(self) -> Bool[Tensor, ""]:
        return self.failures.any()


class VariationalGP(nn.Module):
    """A Gaussian process prior, a likelihood, and a variational posterior in one of the bases.

    `near` are rows that predictions are conditioned on besides; the bound is that without them.
    `log_noise` is a model of the logarithm of what multiplies Gaussian noise at x, one latent for
    every output; None where noise is constant.
    """

    near: NearRows | SiteRows | StoredRows | None
    log_noise: "VariationalGP | None"

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        basis: Basis,
        mean: Mean | None = None,
        jitter: float | None = None,
        near: NearRows | SiteRows | StoredRows | None = None,
        log_noise: "VariationalGP | None" = None,
    ):
        super().__init__()
        if basis.num_latents != likelihood.num_latents:
            raise ConfigurationError(
                f"the likelihood needs {likelihood.num_latents} latent functions; "
                f"the basis has {basis.num_latents}"
            )
        self.covariance = Covariance(kernel)
        require_evaluable(self.covariance, basis.beta)
        self.mean = ZeroMean() if mean is None else mean
        self.likelihood = likelihood
        self.basis = basis
        self.jitter = chosen_jitter(jitter, basis.beta.dtype)
        if isinstance(near, NearRows | StoredRows) and not isinstance(likelihood, Gaussian):
            raise ConfigurationError(
                f"{type(near).__name__} are for Gaussian noise; the likelihood is a "
                f"{type(likelihood).__name__}"
            )
        self.register_module("near", near)
        self._cache = ModuleCache()
        self.register_module("log_noise", log_noise)

    def bound(
        self,
        x: Float[Tensor, "n d"],
        y: Shaped[Tensor, "n *outputs"],
        num_rows: int | None = None,
        columns: Int[Tensor, " k"] | None = None,
        weight: Float[Tensor, " n"] | None = None,
        batch_rows: int | None = None,
        robust: bool = True,
    ) -> Bound:
        """The bound on all `num_rows` rows [OD18, eq. 4], estimated from the batch (x, y), in nats.

        `columns` index the γ that estimate the KL, None for the exact KL; `weight` multiplies each
        row's expected log-likelihood. Where x is only a share of a batch of `batch_rows`, the
        expected log-likelihoods of all shares add up to that of the batch. On a CPU `robust` adds
        jitter to K_β until it has a factor, and raises where that fails; without it, as on a GPU,
        `failures` tells.
        """
        self.require_inputs(x)
        with self.covariance.parameters_read_once(x):
            # Reading the outcome would stall a GPU: there the caller looks when it can afford to.
            factor = self.basis.factor(self.covariance, self.jitter, robust and not x.is_cuda)
            projection = self.basis.project(self.covariance, factor, x, columns)
            q = self.basis.coefficients(projection)
            mean, variance = marginals(projection, q)
            kl = kl_divergence(projection, q)
        scale = 1.0 if num_rows is None else num_rows / (batch_rows or x.shape[0])
        expectation = self.likelihood.expectation(y, x.dtype)
        expected = scale * self.expected_log_prob(expectation, x, mean, variance, weight)
        return Bound(expected - kl, expected, kl, q, factor)

    def expected_log_prob(
        self,
        expectation: Expectation,
        x: Float[Tensor, "n d"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
        weight: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, ""]:
        """Σ_n weight_n E log p(y_n | f(x_n)) from the marginals less the prior mean, in float64."""
        if not isinstance(self.mean, ZeroMean):
            mean = mean + self.prior_mean(x)
        rows = expectation(mean, variance)
        rows = rows if weight is None else rows * weight
        return rows.sum(dtype=torch.float64)

    def log_prior(self) -> Float[Tensor, ""]:
        """log p(θ) under the priors registered on kernel, mean and likelihood; zero for none.

        Training maximises the bound plus this.
        """
        priors = registered_priors(self)
        return log_prior(priors) if priors else self.basis.beta.new_zeros((), dtype=torch.float64)

    def require_inputs(self, x: Float[Tensor, "n d"]) -> None:
        """Raises `DataError` for rows with another number of inputs than β has."""
        expected = self.basis.beta.shape[1]
        # The compiled kernel sums would read past the ends of the rows.
        if x.shape[1] != expected:
            raise DataError(f"x has {x.shape[1]} inputs a row; expected {expected}, as β has")

    def prior_mean(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        # A mean has the dtype of its parameters; predictions are in float64 all the same.
        own = next(self.mean.parameters(), x).dtype
        return self.mean(x.to(own)).to(x.dtype)  # pyright: ignore

    def predictor(self) -> AnyPredictor:
        """The posterior as it stands, ready to predict; build it once, reuse it."""
        if self.near is None or self.near.count == 0:
            return self.condensed()
        if isinstance(self.near, SiteRows):
            return SitePredictor(self.condensed(), self.near.correction())
        if isinstance(self.near, StoredRows):
            return self._stored_predictor(self.near)
        if self._cache.knows(self, "conditional"):
            return self.conditional()
        return self._near_predictor(self.near)

    def conditional(self, count: int = NEIGHBORS) -> NearPredictor:
        """The posterior given the rows near x, in the form that more rows can join.

        That of the basis where no rows are near, with `count` for those to come; the sites of other
        rows are left out. It is kept for as long as the model does not change.
        """

        if isinstance(self.near, StoredRows):
            raise ConfigurationError(
                "derivatives, covariances, sample functions and rows that join need near rows in "
                "memory; the near rows of this model are in a folder"
            )

        def compute() -> NearPredictor:
            if isinstance(self.near, NearRows) and self.near.count > 0:
                return self._near_predictor(self.near)
            return self._basis_predictor(count)

        return self._cache.get(self, "conditional", compute)

    def cache_predictor(self, predictor: AnyPredictor) -> None:
        """Keeps a predictor of this model as it stands, where that is its `conditional`."""
        if isinstance(predictor, NearPredictor):
            self._cache.put(self, "conditional", predictor)

    @torch.no_grad()
    def condition_on(
        self,
        x: Float[Tensor, "n d"],
        y: Shaped[Tensor, "n *outputs"],
        weight: Float[Tensor, "*c n"] | None = None,
        count: int = NEIGHBORS,
    ) -> "VariationalGP":
        """A model that knows of these rows as well, in the time that they take, without training.

        It shares the kernel, the likelihood, the basis and the rows with this one. The rows are
        near rows from then on, `count` of them where the model has none yet. The noise must be
        Gaussian. The first rows that join a model cost what `conditional` costs.
        """
        self.require_inputs(x)
        if not isinstance(self.likelihood, Gaussian):
            raise ConfigurationError(
                f"rows join a model of Gaussian noise; its likelihood is a "
                f"{type(self.likelihood).__name__}, for which q must be trained"
            )
        beta, before = self.basis.beta, self.near
        known = self.conditional(count)
        x, y = x.to(beta), latents_first(y.to(beta.device)).double()
        if weight is not None:
            weight = weight.to(x)
        y = y - self.prior_mean(x.double())
        if known.base is not None:
            y = y - known.base.mean(x)
        if not isinstance(before, NearRows) or before.count == 0:
            known = replace(known, count=count)
            before = NearRows(x[:0], y[:, :0], None, count, after_basis=True)
        near = before.joined(x, y, weight)
        m = self
        found = VariationalGP(
            m.covariance.kernel, m.likelihood, m.basis, m.mean, m.jitter, near, m.log_noise
        )
        new = NearRows(x, y, weight, count).observations(self._noise)
        found._cache.put(found, "conditional", with_rows(known, new))
        return found

    def without_near_rows(self) -> "VariationalGP":
        """The same model, sharing all of its parts but the rows."""
        return VariationalGP(
            self.covariance.kernel, self.likelihood, self.basis, self.mean, self.jitter,
            log_noise=self.log_noise,
        )  # fmt: skip

    def condensed(self) -> Predictor:
        """The posterior of the basis alone, condensed to O(|γ| + |β|²) a row."""
        return condense(self.basis, self.covariance, self.jitter)

    @torch.no_grad()
    def _near_predictor(self, near: NearRows) -> NearPredictor:
        rows, start = near.observations(self._noise), len(near.x) - near.added
        if near.after_basis:
            found = self._basis_predictor(near.count)
        else:
            merged = MergedRows.of_ordered(rows[:start])
            base = self.condensed() if near.on_mean else None
            features = None
            if near.on_beta:
                factor = self.basis.factor(self.covariance, self.jitter, robust=True)
                x = merged.distinct.x
                features = Features.of(self.covariance, self.basis.beta, factor.R, x)
            found = near_predictor(self.covariance, merged, near.count, features, base)
        return found if near.added == 0 else with_rows(found, rows[start:])

    @torch.no_grad()
    def _stored_predictor(self, near: StoredRows) -> StoredPredictor:
        features = None
        if near.on_beta:
            beta = self.basis.beta
            factor = self.basis.factor(self.covariance, self.jitter, robust=True)
            features = Features.of(self.covariance, beta, factor.R, beta[:0])
        return near.predictor(self.covariance, self._noise, self.prior_mean, features)

    def _basis_predictor(self, count: int) -> NearPredictor:
        gaussian = isinstance(self.likelihood, Gaussian)
        one_noise = not gaussian or bool((self._noise == self._noise.reshape(-1)[0]).all())
        return basis_predictor(self.basis, self.covariance, self.jitter, count, one_noise)

    @property
    def _noise(self) -> Float[Tensor, "*c"]:
        assert isinstance(self.likelihood, Gaussian)
        return self.likelihood.likelihood.noise

    @torch.no_grad()
    def predict(
        self, x: Float[Tensor, "n d"], predictor: AnyPredictor | None = None
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
        """Mean and variance of the latent functions at x, in float64."""
        self.require_inputs(x)
        predictor = self.predictor() if predictor is None else predictor
        mean, variance = predictor.marginals(x)
        return mean + self.prior_mean(x.to(mean.dtype)), variance

    def moments(
        self, x: Float[Tensor, "*t q d"]
    ) -> tuple[Float[Tensor, "c *t q"], Float[Tensor, "c *t q q"]]:
        """Mean and joint covariance of the latents at the q points of every batch, in float64.

        Differentiable in x, once; which rows are near does not count as a function of it.
        """
        p = self.conditional()
        with p.covariance.constant_parameters(p.rows.x):
            mean, covariance = moments(p, x)
        flat = x.reshape(-1, x.shape[-1]).to(mean)
        return mean + self._mean_offset(flat).reshape(-1, *mean.shape[1:]), covariance

    def mean_at(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "c n"]:
        """The mean of the latents, in float64; differentiable in x, once."""
        p = self.conditional()
        x = x.to(p.device, torch.float64)
        with p.covariance.constant_parameters(x):
            mean = mean_at(p, x, local(p, x))
        return mean + self._mean_offset(x)

    def gradient_variance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "s n d"]:
        """The variance of the latents' derivatives, for latents that share it once."""
        return gradient_variance(self.conditional(), x)

    def sample_functions(
        self, number: int, generator: torch.Generator, frequencies: int = FREQUENCIES
    ) -> "LatentFunctions":
        """Functions of the posterior: callable at any x, the same ones at every call.

        For sums of RBF and Matérn kernels, with so many random frequencies for each of them.
        """
        return LatentFunctions(
            self, sample_functions(self.conditional(), number, generator, frequencies)
        )

    def _mean_offset(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "*c n"]:
        """What is added to the mean: the prior mean, and what the sites of near rows say."""
        mean = self.prior_mean(x)
        if not isinstance(self.near, SiteRows) or self.near.count == 0:
            return mean
        p = self._cache.get(self, "correction", self.near.correction)
        with p.covariance.constant_parameters(x):
            return mean + mean_at(p, x, local(p, x))


@dataclass(frozen=True)
class LatentFunctions:
    """Functions of the posterior of a model."""

    model: VariationalGP
    functions: PosteriorFunctions

    def __len__(self) -> int:
        return len(self.functions)

    def given_rows_near(self, x: Float[Tensor, "*f n d"]) -> "LatentFunctions":
        """These functions for points that start at x and keep the rows near it wherever they go."""
        covariance = self.functions.predictor.covariance
        with covariance.constant_parameters(self.functions.predictor.rows.x):
            return replace(self, functions=self.functions.given_rows_near(x))

    def __call__(self, x: Float[Tensor, "*f n d"]) -> Float[Tensor, "g c n"]:
        """Every function at x, `[n, d]`, or at an x of its own, `[f, n, d]`.

        In float64, and differentiable in x once.
        """
        covariance = self.functions.predictor.covariance
        with covariance.constant_parameters(self.functions.predictor.rows.x):
            values = self.functions(x)
        offset = self.model._mean_offset(x.reshape(-1, x.shape[-1]).to(values))
        if x.ndim == 3:
            offset = offset.reshape(-1, *x.shape[:2]).movedim(1, 0)
        return values + offset
