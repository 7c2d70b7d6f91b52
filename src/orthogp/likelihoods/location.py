"""Regression with y = f + noise: Gaussian, Laplace and Student-t noise."""

import math

import torch
from gpytorch.likelihoods import GaussianLikelihood, LaplaceLikelihood, StudentTLikelihood
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.special import ndtr, ndtri

from orthogp.likelihoods.base import (
    Expectation,
    PredictiveMoments,
    RegressionLikelihood,
    batch_shape,
    require_broadcast,
)
from orthogp.likelihoods.quadrature import floored, log_ndtr
from orthogp.likelihoods.targets import (
    AtNodes,
    Latents,
    Outputs,
    PerRow,
    RowTargets,
    latents_first,
    require_numbers,
)
from orthogp.linalg import total


class Gaussian(RegressionLikelihood):
    """N(y; f, σ²), everything in closed form."""

    log_concave = True
    gaussian = True
    location = True

    def __init__(self, num_latents: int = 1, likelihood: GaussianLikelihood | None = None) -> None:
        super().__init__(num_latents)
        self.likelihood = likelihood or GaussianLikelihood(batch_shape=batch_shape(num_latents))
        require_broadcast(self.likelihood, num_latents)

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        return self.expectation(y, mean.dtype)(mean, variance)

    def expectation(self, y: RowTargets, dtype: torch.dtype) -> Expectation:
        y = latents_first(y)
        # One for all outputs, or one for each; for every row, so that summing its gradients is a
        # node of its own.
        noise = self.likelihood.noise.to(dtype).reshape(-1, 1).expand_as(y)
        rate, constant = _rate_and_constant(noise.detach()[:, :1])
        return lambda mean, variance: _GaussianExpectation.apply(  # pyright: ignore
            y, mean, variance, noise, rate, constant
        )

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        return _log_normal(latents_first(y) - mean, variance + self.likelihood.noise).sum(0)

    def predictive(self, mean: Latents, variance: Latents) -> PredictiveMoments:
        return PredictiveMoments(mean, variance + self.likelihood.noise)

    def cumulative(self, y: Outputs, mean: Latents, variance: Latents) -> Latents:
        return ndtr((y - mean) / (variance + self.likelihood.noise).sqrt())

    def quantiles(
        self, levels: Float[Tensor, "q *outputs"], mean: Latents, variance: Latents
    ) -> AtNodes:
        score = ndtri(levels.double().cpu()).to(mean).reshape(len(levels), -1, 1)
        return mean + score * (variance + self.likelihood.noise).sqrt()

    def check_targets(self, y: RowTargets) -> None:
        require_numbers(y, self.num_latents)


class _GaussianExpectation(torch.autograd.Function):
    """t ((y − m)² + s) − ½ log 2πσ² with t = −½ / σ², summed over the outputs, in few passes."""

    @staticmethod
    def forward(ctx, y, mean, variance, noise, rate, constant):
        residual = y - mean
        square = torch.addcmul(variance, residual, residual)
        ctx.save_for_backward(residual, square, rate)
        return total(torch.addcmul(constant, square, rate))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        residual, square, rate = ctx.saved_tensors
        of_variance = (grad * rate).expand_as(square)
        of_mean = (residual * of_variance).mul_(-2.0)
        # ∂/∂σ² = t (1 + 2 t ((y − m)² + s))
        of_noise = torch.addcmul(of_variance, of_variance * square, rate, value=2.0)
        return None, of_mean, of_variance, of_noise, None, None


def _rate_and_constant(noise: Float[Tensor, "c 1"]) -> tuple[Tensor, Tensor]:
    return -0.5 / noise, -0.5 * (2 * math.pi * noise).log()


class Laplace(RegressionLikelihood):
    """exp(−|y − f|/b) / 2b with b = √noise, in closed form: quadrature would miss the kink."""

    log_concave = True
    location = True

    def __init__(self, num_latents: int = 1, likelihood: LaplaceLikelihood | None = None) -> None:
        super().__init__(num_latents)
        self.likelihood = likelihood or LaplaceLikelihood(batch_shape=batch_shape(num_latents))
        require_broadcast(self.likelihood, num_latents)

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        scale = self.likelihood.noise.sqrt()
        residual, std = latents_first(y) - mean, floored(variance).sqrt()
        ratio = residual / (math.sqrt(2) * std)
        # E|y − f| = √(2s/π) exp(−r²/2s) + r erf(r/√2s)
        peak = math.sqrt(2 / math.pi) * std * (-ratio.square()).exp()
        absolute = peak + residual * ratio.erf()
        return -(absolute / scale + (2 * scale).log()).sum(0)

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        scale = self.likelihood.noise.sqrt()
        residual, std = latents_first(y) - mean, floored(variance).sqrt()
        above = _log_tilted_tail(residual, std, scale)
        below = _log_tilted_tail(-residual, std, scale)
        return (torch.logaddexp(above, below) - (2 * scale).log()).sum(0)

    def predictive(self, mean: Latents, variance: Latents) -> PredictiveMoments:
        return PredictiveMoments(mean, variance + 2 * self.likelihood.noise)

    def cumulative(self, y: Outputs, mean: Latents, variance: Latents) -> Latents:
        scale = self.likelihood.noise.sqrt()
        residual, std = y - mean, floored(variance).sqrt()
        # P(f < y) − ½ E[exp(−(y−f)/b); f < y] + ½ E[exp(−(f−y)/b); f > y]
        above = _log_tilted_tail(residual, std, scale).exp()
        below = _log_tilted_tail(-residual, std, scale).exp()
        return ndtr(residual / std) + (below - above) / 2

    def check_targets(self, y: RowTargets) -> None:
        require_numbers(y, self.num_latents)


class StudentT(RegressionLikelihood):
    """Student-t noise with ν degrees of freedom and scale² = noise.

    Gauss–Hermite fails where q(f) is wider than the noise: its nodes step over the peak. But a
    Student-t is a mixture of Gaussians: given the mixing variable each integral over f is closed,
    and the trapezoid rule in that variable's logarithm is accurate for every s/σ².
    """

    log_concave = False
    location = True

    def __init__(
        self,
        num_latents: int = 1,
        likelihood: StudentTLikelihood | None = None,
        num_nodes: int = 100,
    ) -> None:
        super().__init__(num_latents)
        self.likelihood = likelihood or StudentTLikelihood(batch_shape=batch_shape(num_latents))
        require_broadcast(self.likelihood, num_latents)
        grid = torch.linspace(0, 1, num_nodes, dtype=torch.float64)
        self.register_buffer("grid", grid.view(-1, 1, 1), persistent=False)

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        nu, noise = self.likelihood.deg_free, self.likelihood.noise
        square = (latents_first(y) - mean).square() / (nu * noise)
        spread = variance / (nu * noise)
        # log(1 + x) = ∫ (1 − exp(−x eᵗ)) exp(−eᵗ) dt, and E exp(−x eᵗ) is closed for Gaussian f.
        low = -(square + spread).detach().log1p() - 25
        t, step = self._steps(low, torch.full_like(low, math.log(36)))
        rate = t.exp()
        widened = 1 + 2 * spread * rate
        log_laplace = -widened.log() / 2 - square * rate / widened
        heavy = (-log_laplace.expm1() * (-rate).exp()).sum(0) * step
        peak = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - (nu * math.pi * noise).log() / 2
        return (peak - (nu + 1) / 2 * heavy).sum(0)

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        residual = latents_first(y) - mean
        log_prior, noise = self._mixture(residual)
        log_normal = _log_normal(residual, variance + noise)
        return (log_prior + log_normal).logsumexp(0).sum(0)

    def _mixture(self, residual: Latents) -> tuple[AtNodes, AtNodes]:
        """Log weights and noise variances of Gaussians that sum to the Student-t around y."""
        nu, noise = self.likelihood.deg_free, self.likelihood.noise
        # y | t ~ N(m, s + σ² e⁻ᵗ) with eᵗ ~ Gamma(ν/2, ν/2), from an outlier's peak to the prior's.
        width = (2 / nu).sqrt()
        outlier = ((nu + 1) / (nu + residual.square() / noise)).log().clamp_max(0)
        low = (outlier - 5 * width - 40 / (nu + 1)).detach()
        t, _ = self._steps(low, (7 * width).detach())
        log_prior = nu / 2 * (t - t.expm1())
        # The steps are equal, so they cancel between the integral and its normaliser.
        return log_prior - log_prior.logsumexp(0), noise * (-t).exp()

    def _steps(self, low: Latents, high: Float[Tensor, "*#c #n"]) -> tuple[AtNodes, Latents]:
        """Equal steps from low to high for each row, and their length."""
        grid = self.get_buffer("grid").to(low.dtype)
        return low + (high - low) * grid, (high - low) / (grid.shape[0] - 1)

    def predictive(self, mean: Latents, variance: Latents) -> PredictiveMoments:
        nu, noise = self.likelihood.deg_free, self.likelihood.noise
        return PredictiveMoments(mean, variance + noise * nu / (nu - 2))

    def cumulative(self, y: Outputs, mean: Latents, variance: Latents) -> Latents:
        residual = y - mean
        log_prior, noise = self._mixture(residual)
        below = log_ndtr(residual / (variance + noise).sqrt())
        return (log_prior + below).logsumexp(0).exp()

    def check_targets(self, y: RowTargets) -> None:
        require_numbers(y, self.num_latents)


def _log_normal(residual: Latents, variance: Float[Tensor, "*q c n"]) -> Float[Tensor, "*q c n"]:
    return -0.5 * (residual.square() / variance + (2 * math.pi * variance).log())


def _log_tilted_tail(residual: Latents, std: Latents, scale: Float[Tensor, "*#c 1"]) -> Latents:
    """log ∫_{f<y} exp(−(y − f)/b) N(f; m, s) df, for the residual r = y − m."""
    # = −r/b + s/2b² + log Φ(z) with z = r/√s − √s/b. For z < 0 the last two are large and cancel:
    # there it is −r²/2s + log(erfcx(−z/√2)/2), the same number.
    z = residual / std - std / scale
    right = -residual / scale + (std / scale).square() / 2 + log_ndtr(z)
    mills = torch.special.erfcx(-z.clamp_max(0) / math.sqrt(2))
    left = -(residual / std).square() / 2 + (mills / 2).log()
    return torch.where(z < 0, left, right)
