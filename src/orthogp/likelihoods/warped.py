"""Regression through a link: Poisson, negative binomial, Beta, and any other of GPyTorch."""

import math
from abc import abstractmethod

import torch
from gpytorch.likelihoods import (
    BetaLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    _OneDimensionalLikelihood,
)
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from orthogp.errors import ConfigurationError, DataError
from orthogp.likelihoods.base import (
    PredictiveMoments,
    RegressionLikelihood,
    batch_shape,
    require_broadcast,
)
from orthogp.likelihoods.quadrature import GaussHermite
from orthogp.likelihoods.quantiles import Support
from orthogp.likelihoods.targets import (
    AtNodes,
    Latents,
    Outputs,
    PerRow,
    RowTargets,
    latents_first,
    require_counts,
    require_numbers,
    require_open_unit,
)

# Stands in for a count of failures that underflowed.
TINY = 1e-300


class OneDimensional(RegressionLikelihood):
    """p(y | f) known pointwise, integrated by Gauss–Hermite.

    A subclass gives the conditional's log probability and moments. The known ones write them out
    from GPyTorch's parameters: `likelihood(f)` validates its arguments, which waits for the device,
    and its log probability is −∞ where softplus(f) underflows.
    """

    def __init__(self, num_latents: int, num_nodes: int, num_density_nodes: int) -> None:
        super().__init__(num_latents)
        self.quadrature = GaussHermite(num_nodes)
        # p(y | f) is sharper than its logarithm, so densities and moments need more nodes.
        self.density_quadrature = GaussHermite(num_density_nodes)

    @abstractmethod
    def conditional_log_prob(self, y: Outputs, f: AtNodes) -> AtNodes:
        """log p(y | f), elementwise."""

    @abstractmethod
    def conditional_moments(self, f: AtNodes) -> tuple[AtNodes, AtNodes]:
        """Mean and variance of y given f, elementwise."""

    @abstractmethod
    def conditional_cdf(self, y: Outputs, f: AtNodes) -> AtNodes:
        """P(Y ≤ y | f), elementwise, for y in the support or a whole number below it."""

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        f = self.quadrature.points(mean, variance)
        return self.quadrature.expectation(self.conditional_log_prob(latents_first(y), f)).sum(0)

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        rule = self.density_quadrature
        log_prob = self.conditional_log_prob(latents_first(y), rule.points(mean, variance))
        return rule.log_expectation(log_prob).sum(0)

    def predictive(self, mean: Latents, variance: Latents) -> PredictiveMoments:
        rule = self.density_quadrature
        centre, spread = self.conditional_moments(rule.points(mean, variance))
        total = rule.expectation(centre)
        return PredictiveMoments(total, rule.expectation(spread + (centre - total).square()))

    def cumulative(self, y: Outputs, mean: Latents, variance: Latents) -> Latents:
        rule = self.density_quadrature
        return rule.expectation(self.conditional_cdf(y, rule.points(mean, variance)))


class Poisson(OneDimensional):
    """Counts with rate softplus(f)."""

    log_concave = True

    def __init__(
        self,
        num_latents: int = 1,
        likelihood: PoissonLikelihood | None = None,
        num_nodes: int = 20,
        num_density_nodes: int = 100,
    ) -> None:
        super().__init__(num_latents, num_nodes, num_density_nodes)
        self.likelihood = likelihood or PoissonLikelihood()

    def conditional_log_prob(self, y: Outputs, f: AtNodes) -> AtNodes:
        return y * _log_softplus(f) - softplus(f) - torch.lgamma(y.to(f.dtype) + 1)

    def conditional_moments(self, f: AtNodes) -> tuple[AtNodes, AtNodes]:
        rate = softplus(f)
        return rate, rate

    def conditional_cdf(self, y: Outputs, f: AtNodes) -> AtNodes:
        y = y.to(f.dtype).floor()
        return torch.where(y < 0, 0, torch.special.gammaincc(y.clamp_min(0) + 1, softplus(f)))

    def support(self) -> Support:
        return Support(low=0.0, discrete=True)

    def starting_prior(self, y: RowTargets) -> tuple[float, float]:
        return _count_prior(y)

    def check_targets(self, y: RowTargets) -> None:
        require_counts(y, self.num_latents)


class NegativeBinomial(OneDimensional):
    """Counts of successes, each with probability p, before k(f) failures."""

    log_concave = False

    def __init__(
        self,
        num_latents: int = 1,
        likelihood: NegativeBinomialLikelihood | None = None,
        num_nodes: int = 20,
        num_density_nodes: int = 100,
    ) -> None:
        super().__init__(num_latents, num_nodes, num_density_nodes)
        self.likelihood = likelihood or NegativeBinomialLikelihood(
            batch_shape=batch_shape(num_latents)
        )
        require_broadcast(self.likelihood, num_latents)

    def _success(self) -> Float[Tensor, "*c 1"]:
        # GPyTorch's own clamp, which its `forward` applies and its `probs` does not.
        return self.likelihood.probs.clamp(1e-6, 1 - 1e-6)

    def _failures_per_link(self) -> Float[Tensor, "*c 1"]:
        p = self._success()
        return torch.ones_like(p) if self.likelihood.num_failures_param else (1 - p) / p

    def conditional_log_prob(self, y: Outputs, f: AtNodes) -> AtNodes:
        p, per_link = self._success(), self._failures_per_link()
        y = y.to(f.dtype)
        k, log_k = softplus(f) * per_link, _log_softplus(f) + per_link.log()
        # log Γ(y+k)/Γ(k) = log Γ(y+k)/Γ(1+k) + log k, which survives k = 0; it is 0 for y = 0.
        positive = y > 0
        rising = torch.lgamma(torch.where(positive, y, 1) + k) - torch.lgamma(1 + k) + log_k
        choose = torch.where(positive, rising, 0) - torch.lgamma(y + 1)
        return choose + k * (-p).log1p() + y * p.log()

    def conditional_moments(self, f: AtNodes) -> tuple[AtNodes, AtNodes]:
        p = self._success()
        centre = softplus(f) * self._failures_per_link() * p / (1 - p)
        return centre, centre / (1 - p)

    def conditional_cdf(self, y: Outputs, f: AtNodes) -> AtNodes:
        y = y.to(f.dtype).floor()
        failures = softplus(f) * self._failures_per_link()
        # P(Y ≤ y) = I_{1−p}(k, y + 1), and 1 where there are no failures to wait for.
        below = _betainc(failures.clamp_min(TINY), y.clamp_min(0) + 1, 1 - self._success())
        return torch.where(y < 0, 0, below)

    def support(self) -> Support:
        return Support(low=0.0, discrete=True)

    def starting_prior(self, y: RowTargets) -> tuple[float, float]:
        return _count_prior(y)

    def check_targets(self, y: RowTargets) -> None:
        require_counts(y, self.num_latents)


class Beta(OneDimensional):
    """Fractions in (0, 1): Beta(1 + a σ(f), 1 + a σ(−f)) with a = scale."""

    log_concave = False

    def __init__(
        self,
        num_latents: int = 1,
        likelihood: BetaLikelihood | None = None,
        num_nodes: int = 20,
        num_density_nodes: int = 100,
    ) -> None:
        super().__init__(num_latents, num_nodes, num_density_nodes)
        self.likelihood = likelihood or BetaLikelihood(batch_shape=batch_shape(num_latents))
        require_broadcast(self.likelihood, num_latents)

    def conditional_log_prob(self, y: Outputs, f: AtNodes) -> AtNodes:
        a = self.likelihood.scale
        high, low = a * f.sigmoid(), a * (-f).sigmoid()
        normaliser = torch.lgamma(a + 2) - torch.lgamma(1 + high) - torch.lgamma(1 + low)
        return normaliser + high * y.log() + low * (-y).log1p()

    def conditional_moments(self, f: AtNodes) -> tuple[AtNodes, AtNodes]:
        a = self.likelihood.scale
        centre = (1 + a * f.sigmoid()) / (a + 2)
        return centre, centre * (1 - centre) / (a + 3)

    def conditional_cdf(self, y: Outputs, f: AtNodes) -> AtNodes:
        a = self.likelihood.scale
        return _betainc(1 + a * f.sigmoid(), 1 + a * (-f).sigmoid(), y.to(f.dtype))

    def support(self) -> Support:
        return Support(low=0.0, high=1.0)

    def starting_prior(self, y: RowTargets) -> tuple[float, float]:
        return float(y.double().mean().logit()), 1.0

    def check_targets(self, y: RowTargets) -> None:
        require_open_unit(y, self.num_latents)


def _log_softplus(f: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    # softplus underflows where its logarithm is simply f − eᶠ/2; both branches see safe arguments.
    left = f.clamp_max(-15)
    return torch.where(f < -15, left - left.exp() / 2, softplus(f.clamp_min(-15)).log())


def _count_prior(y: RowTargets) -> tuple[float, float]:
    """Where softplus(f) is the mean count, and what of the counts' variance is not Poisson's."""
    y = y.double()
    # Half a count in all stands in for none.
    mean = y.mean().clamp_min(0.5 / y.numel())
    level = mean + (-(-mean).expm1()).log()
    return float(level), max(1.0, float(y.var(correction=0) - mean))


def _betainc(
    a: Float[Tensor, "*shape"], b: Float[Tensor, "*#shape"], x: Float[Tensor, "*#shape"]
) -> Float[Tensor, "*shape"]:
    """The regularised incomplete beta function I_x(a, b), which torch does not have."""
    # Its import sets a filter of warnings, which importing orthogp must not do.
    from scipy.special import betainc

    values = betainc(*(part.detach().double().cpu().numpy() for part in (a, b, x)))
    return torch.as_tensor(values).to(a)


class Conditional(OneDimensional):
    """Any other one-dimensional GPyTorch likelihood, through the distribution it returns.

    That distribution may validate its arguments, so `expected_log_prob` may wait for the device.
    """

    log_concave = False

    def __init__(
        self,
        num_latents: int,
        likelihood: _OneDimensionalLikelihood,
        num_nodes: int = 20,
        num_density_nodes: int = 100,
    ) -> None:
        super().__init__(num_latents, num_nodes, num_density_nodes)
        self.likelihood = likelihood

    def conditional_log_prob(self, y: Outputs, f: AtNodes) -> AtNodes:
        return self.likelihood(f).log_prob(y)

    def conditional_moments(self, f: AtNodes) -> tuple[AtNodes, AtNodes]:
        conditional = self.likelihood(f)
        return conditional.mean, conditional.variance

    def conditional_cdf(self, y: Outputs, f: AtNodes) -> AtNodes:
        conditional = self.likelihood(f)
        clamped = y.clamp_min(self.support().low)
        try:
            below = conditional.cdf(clamped)
        except NotImplementedError:
            raise ConfigurationError(
                f"{type(self.likelihood).__name__} gives a {type(conditional).__name__} without a "
                "cdf, which intervals and quantiles need"
            ) from None
        return torch.where(y < clamped, 0, below)

    def support(self) -> Support:
        constraint = self.likelihood(torch.zeros(1)).support
        low = float(getattr(constraint, "lower_bound", -math.inf))
        high = float(getattr(constraint, "upper_bound", math.inf))
        return Support(low, high, constraint.is_discrete)

    def check_targets(self, y: RowTargets) -> None:
        require_numbers(y, self.num_latents)
        support = self.likelihood(torch.zeros(1, device=y.device)).support
        if not support.check(y).all():
            raise DataError(f"y has values that {type(self.likelihood).__name__} cannot produce")
