"""What the marginals and the KL need of the kernel at a batch of rows, and both from it.

Every basis is the same posterior in the coordinates (ν, S̃, a_γ), with w_x = L⁻¹ k_βx and
u = L⁻¹ K_βγ a_γ:

    m(x) = w_xᵀ ν + r(x)              r(x) = k_xγ a_γ − w_xᵀ u, so that r(β) = 0
    s(x) = k_xx − w_xᵀ w_x + w_xᵀ S̃ w_x
    KL   = ½ ( Σ_j a_j r(γ_j) + νᵀν + tr S̃ − log|S̃| − M )
"""

from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import Factor, lower_product, symmetric_product, total, upper_product
from orthogp.posterior.gaussian import Whitened
from orthogp.posterior.shards import Shards


class Projection:
    """The kernel's quantities at the rows x, each computed once, when it is first asked for.

    `columns` index the γ whose terms estimate the KL, None for all of them. Everything together
    takes O((n + k) g + g b + n b²) time and no memory that grows with n · g.
    """

    def __init__(
        self,
        covariance: Covariance,
        factor: Factor,
        points: tuple[Float[Tensor, "b d"], Float[Tensor, "g d"], Float[Tensor, "c g"]],
        x: Float[Tensor, "n d"],
        columns: Int[Tensor, " k"] | None,
        shards: Shards | None,
    ):
        self.covariance, self.factor, self.x, self.columns = covariance, factor, x, columns
        self.beta, self.gamma, self.a_gamma = points
        self.shards = shards

    def at(self, x: Float[Tensor, "n d"]) -> "Projection":
        """That at other rows, with all that rows have no part in."""
        points = self.beta, self.gamma, self.a_gamma
        found = Projection(self.covariance, self.factor, points, x, self.columns, self.shards)
        found._solved = self._solved
        return found

    @cached_property
    def k(self) -> Float[Tensor, "b n"]:
        """k_βx."""
        return self.covariance.block(self.beta, self.x)

    @cached_property
    def prior_variance(self) -> Float[Tensor, " n"]:
        """k_xx."""
        return self.covariance.diagonal(self.x)

    @cached_property
    def w(self) -> Float[Tensor, "b n"]:
        """w_x = L⁻¹ k_βx of every row, with no link to L: who uses it adds dw = Ω w to Ω."""
        return _WhitenRows.apply(self.k, self.factor.R.detach())  # pyright: ignore

    @cached_property
    def gamma_columns(self) -> Float[Tensor, "k d"]:
        """The γ that estimate the KL."""
        # Selected, not indexed: a column is drawn twice at most, which needs no sorting to add up.
        return self.gamma[:0] if self.columns is None else self.gamma.index_select(0, self.columns)

    @cached_property
    def at_x(self) -> Float[Tensor, "c n"]:
        """k_xγ a_γ."""
        if self.shards is not None:
            return self._shared_products[0]
        return self.covariance.matvec(self.x, self.gamma, self.a_gamma)

    @cached_property
    def at_gamma(self) -> Float[Tensor, "c g"]:
        """K_γ a_γ."""
        return self.covariance.matvec(self.gamma, self.gamma, self.a_gamma)

    @cached_property
    def at_points(self) -> tuple[Float[Tensor, "c b"], Float[Tensor, "c k"]]:
        """K_βγ a_γ, and the same at the γ that estimate the KL."""
        if self.shards is not None:
            return self._shared_products[1:]
        points = torch.cat([self.beta, self.gamma_columns])
        found = self.covariance.matvec(points, self.gamma, self.a_gamma)
        at_beta, at_columns = found.split([len(self.beta), len(self.gamma_columns)], dim=1)
        return at_beta, at_columns

    @cached_property
    def _shared_products(self) -> tuple[Tensor, Tensor, Tensor]:
        assert self.shards is not None
        return self.shards.products(
            self.covariance, self.x, self.beta, self.gamma_columns, self.gamma, self.a_gamma
        )

    @property
    def u(self) -> Float[Tensor, "c b"]:
        """L⁻¹ K_βγ a_γ, in float64."""
        return self._solved[0]

    @cached_property
    def _solved(self) -> tuple[Float[Tensor, "c b"], Float[Tensor, "c b"]]:
        """u and L⁻ᵀ u."""
        u, solved = self.factor.solve(self.at_points[0].double().mT)
        return u.mT, solved.mT

    @cached_property
    def residuals(self) -> Float[Tensor, "c k"]:
        """r(γ_j) = k_jγ a_γ − k_jβ L⁻ᵀ u of the γ that estimate the KL."""
        weights = self._solved[1].to(self.beta.dtype)
        at_beta = self.covariance.matvec(self.gamma_columns, self.beta, weights)
        return self.at_points[1] - at_beta

    @property
    def residual_energy(self) -> Float[Tensor, " c"]:
        """Σ_j a_j r(γ_j) = a_γᵀ K_γ⊥β a_γ for every latent function."""
        if self.columns is None:
            # a_γᵀ K_γ a_γ − uᵀu: nothing is sampled, so nothing is lost by the difference.
            energy = (self.a_gamma.double() * self.at_gamma.double()).sum(-1)
            return energy - self.u.square().sum(-1)
        # Projected before sampled: the raw columns of K_γ have a variance that grows with |a|².
        scale = self.gamma.shape[0] / self.columns.shape[0]
        if self.shards is not None:
            # Of this process's γ alone: the mean over the processes is then the whole.
            scale *= self.shards.team.size
        sampled = self.a_gamma.index_select(1, self.columns).double() * self.residuals.double()
        return scale * sampled.sum(-1)


def marginals(p: Projection, q: Whitened) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
    """Mean and variance of q(f) at every row, for every latent function."""
    # m(x) = w_xᵀ (ν − u) + k_xγ a_γ and s(x) = k_xx + w_xᵀ (S̃ − I) w_x
    mean, change = _Marginals.apply(  # pyright: ignore
        p.w, p.factor.omega, q.v - p.u, q.S, q.follows
    )
    variance, least = p.prior_variance + change, 1e-10 * p.prior_variance.detach()
    # Rounding can leave a variance below zero at a row that coincides with a point of β.
    return mean + p.at_x, torch.where(variance < least, least, variance)


def kl_divergence(p: Projection, q: Whitened) -> Float[Tensor, ""]:
    """KL(q‖p), exact when the projection has no columns, else its unbiased estimate."""
    parts = p.residual_energy + q.v.square().sum(-1) + q.trace - q.log_det - q.v.shape[-1]
    return 0.5 * parts.sum()


class _WhitenRows(torch.autograd.Function):
    """k ↦ R k for a constant R, whose own gradient is taken through Ω."""

    @staticmethod
    def forward(ctx, k, R):
        R = R.to(k.dtype)
        ctx.save_for_backward(R)
        # By panels where that was found to pay.
        return R @ k if k.is_cuda else lower_product(R, k)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (R,), (grad,) = ctx.saved_tensors, grad_outputs
        return R.mT @ grad if grad.is_cuda else upper_product(R, grad), None


class _Marginals(torch.autograd.Function):
    """(w, ν − u, S̃) ↦ w_xᵀ (ν − u) and w_xᵀ (S̃ − I) w_x with w = R k; S̃ is symmetric.

    H_c = Σ_n h_n w_n w_nᵀ, the statistic of the natural step, serves the gradient of R as well:
    with w̄ = (ν − u) gᵀ + 2 (S̃ − I) w h,  Ω̄ = w̄ wᵀ = (ν − u) (w g)ᵀ + 2 (S̃ − I) H. Where S̃
    `follows` R, dS̃ = Ω S̃ + S̃ Ωᵀ adds 2 H S̃, whose transpose is S̃ H.
    """

    @staticmethod
    def forward(ctx, w, omega, weights, S, follows):
        weights = weights.to(w.dtype)
        # ν − u as one more row: a product of its own would take longer than it is worth.
        stacked = w.new_empty(S.shape[0], S.shape[1] + 1, S.shape[2])
        stacked[:, :-1], stacked[:, -1] = S, weights
        excess = stacked[:, :-1]
        excess.diagonal(dim1=-2, dim2=-1).sub_(1.0)
        products = stacked @ w
        half = products[:, :-1]
        ctx.save_for_backward(w, weights, excess, half)
        ctx.wide, ctx.S_dtype, ctx.follows = omega.dtype, S.dtype, follows
        return products[:, -1], (half * w).sum(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        g, h = grad_outputs
        w, weights, excess, half = ctx.saved_tensors
        stacked = w.new_empty(len(h), w.shape[0] + 1, w.shape[1])
        torch.mul(h.unsqueeze(-2), w, out=stacked[:, :-1])
        stacked[:, -1] = g
        products = w.new_empty(*stacked.shape[:-1], w.shape[0])
        symmetric_product(stacked, w, out=products)
        H, grad_weights = products[:, :-1], products[:, -1]
        grad_w = total(half * h.unsqueeze(-2)).addmm_(weights.mT, g, beta=2.0)
        latents, size = weights.shape
        if ctx.follows or latents * size <= w.shape[1]:
            product = total(excess @ H)
            if ctx.follows:
                product = product + (product + total(H)).mT
            omega = product.addmm_(weights.mT, grad_weights, beta=2.0)
        else:
            omega = grad_w @ w.mT
        wide = ctx.wide
        return grad_w, omega.to(wide), grad_weights.to(wide), H.to(ctx.S_dtype), None
