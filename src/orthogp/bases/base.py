"""What the four bases share: one projection a step, marginals and KL from it.

Every basis is the same posterior in the coordinates (ν, S̃, a_γ), with w_x = L⁻¹ k_βx and
u = L⁻¹ K_βγ a_γ:

    m(x) = w_xᵀ ν + r(x)              r(x) = k_xγ a_γ − w_xᵀ u, so that r(β) = 0
    s(x) = k_xx − w_xᵀ w_x + w_xᵀ S̃ w_x
    KL   = ½ ( Σ_j a_j r(γ_j) + νᵀν + tr S̃ − log|S̃| − M )

A basis says how ν and S̃ come from its own parameters; that is all in which they differ.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthogp.bases.posterior import Whitened
from orthogp.covariance import Covariance
from orthogp.errors import ConfigurationError
from orthogp.linalg import Factor, factorise, factorise_robustly


@dataclass(frozen=True)
class Projection:
    """Everything the marginals at x and the KL need of the kernel, computed once."""

    factor: Factor
    w: Float[Tensor, "b n"]
    prior_variance: Float[Tensor, " n"]
    u: Float[Tensor, "c b"]
    gamma_part: Float[Tensor, "c n"]
    columns: Int[Tensor, " k"] | None
    column_residuals: Float[Tensor, "c k"] | None


class Basis(nn.Module, ABC):
    """β, γ and a_γ; a subclass adds its parametrisation of (ν, S̃). Starts at the prior."""

    def __init__(self, beta: Float[Tensor, "b d"], gamma: Float[Tensor, "g d"], num_latents: int):
        super().__init__()
        if beta.shape[0] == 0:
            raise ConfigurationError("at least one inducing point is needed; β is empty")
        self.beta = nn.Parameter(beta.detach().clone())
        self.gamma = nn.Parameter(gamma.detach().to(beta).clone())
        self.a_gamma = nn.Parameter(beta.new_zeros(num_latents, gamma.shape[0]))

    @property
    def num_latents(self) -> int:
        return self.a_gamma.shape[0]

    @abstractmethod
    def coefficients(self, projection: Projection) -> Whitened:
        """(ν, S̃) from this basis's own parameters."""

    def factor(self, covariance: Covariance, jitter: float, robust: bool) -> Factor:
        """The factor of K_β + εI, evaluated and factorised in float64.

        `robust` escalates the jitter as needed, reading the outcome on the host; without it there
        is one attempt, whose outcome is in `info`.
        """
        beta = self.beta.double()
        K_b = covariance.block(beta, beta)
        return factorise_robustly(K_b, jitter) if robust else factorise(K_b, jitter)

    def project(
        self,
        covariance: Covariance,
        factor: Factor,
        x: Float[Tensor, "n d"],
        columns: Int[Tensor, " k"] | None = None,
    ) -> Projection:
        """The projection at x, in the dtype of x.

        `columns` are the γ whose terms estimate the KL, None for all. O((n + k) g + g b + n b²)
        time, no memory that grows with n · g.
        """
        beta, gamma = self.beta.to(x.dtype), self.gamma.to(x.dtype)
        w = factor.R.to(x.dtype) @ covariance.block(beta, x)
        # One pass over γ serves β, x and the sampled columns.
        gamma_columns = gamma[:0] if columns is None else gamma[columns]
        queries = torch.cat([beta, x, gamma_columns])
        products = covariance.matvec(queries, gamma, self.a_gamma.to(x.dtype))
        at_beta, at_x, at_columns = products.split(
            [beta.shape[0], x.shape[0], gamma_columns.shape[0]], dim=1
        )
        u = at_beta.double() @ factor.R.mT
        residuals = None
        if columns is not None:
            # r(γ_j) = k_jγ a_γ − k_jβ (L⁻ᵀ u)
            weights = (u @ factor.R).to(x.dtype)
            residuals = at_columns - covariance.matvec(gamma_columns, beta, weights)
        return Projection(factor, w, covariance.diagonal(x), u, at_x, columns, residuals)

    def kl(self, covariance: Covariance, projection: Projection, q: Whitened) -> Float[Tensor, ""]:
        """KL(q‖p), exact when the projection has no columns, else its unbiased estimate."""
        energy = self._residual_energy(covariance, projection)
        trace = q.S.diagonal(dim1=-2, dim2=-1).sum(-1)
        parts = energy + q.v.square().sum(-1) + trace - q.log_det - q.v.shape[-1]
        return 0.5 * parts.sum()

    def _residual_energy(self, covariance: Covariance, p: Projection) -> Float[Tensor, " c"]:
        """Σ_j a_j r(γ_j) = a_γᵀ K_γ⊥β a_γ for every latent function."""
        if p.columns is None:
            # a_γᵀ K_γ a_γ − uᵀu: nothing is sampled, so nothing is lost by the difference.
            at_gamma = covariance.matvec(self.gamma, self.gamma, self.a_gamma)
            energy = (self.a_gamma.double() * at_gamma.double()).sum(-1)
            return energy - p.u.square().sum(-1)
        assert p.column_residuals is not None
        # Projected before sampled: the raw columns of K_γ have a variance that grows with |a|².
        scale = self.gamma.shape[0] / p.columns.shape[0]
        sampled = self.a_gamma[:, p.columns].double() * p.column_residuals.double()
        return scale * sampled.sum(-1)


def marginals(p: Projection, q: Whitened) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
    """Mean and variance of q(f) at every row, for every latent function."""
    # m(x) = w_xᵀ (ν − u) + k_xγ a_γ
    mean = (q.v - p.u).to(p.w.dtype) @ p.w + p.gamma_part
    explained = p.w.square().sum(0)
    variance = p.prior_variance - explained + quadratic_form(p.w, q.S.to(p.w.dtype))
    # Rounding can leave a variance below zero at a row that coincides with a point of β.
    return mean, torch.maximum(variance, 1e-10 * p.prior_variance.detach())


def full_covariance(
    covariance: Covariance, x: Float[Tensor, "n d"], p: Projection, q: Whitened
) -> Float[Tensor, "c n n"]:
    """The covariance of q(f) between all rows of x."""
    S = q.S.to(p.w.dtype)
    return covariance.block(x, x) - p.w.mT @ p.w + p.w.mT @ S @ p.w


def quadratic_form(w: Float[Tensor, "b n"], S: Float[Tensor, "c b b"]) -> Float[Tensor, "c n"]:
    """w_nᵀ S_c w_n for symmetric S; one product forward, at most one backward."""
    return _QuadraticForm.apply(w, S)  # pyright: ignore[reportReturnType]


class _QuadraticForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, S):
        Sw = S @ w
        ctx.save_for_backward(w, Sw)
        return (w * Sw).sum(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (h,) = grad_outputs
        w, Sw = ctx.saved_tensors
        h = h.unsqueeze(-2)
        grad_w = 2.0 * (h * Sw).sum(0) if ctx.needs_input_grad[0] else None
        # H_c = Σ_n h_n w_n w_nᵀ, the statistic of the natural step.
        grad_S = (h * w) @ w.mT if ctx.needs_input_grad[1] else None
        return grad_w, grad_S
