"""What the four bases share: one projection a step, marginals and KL from it.

Every basis is the same posterior in the coordinates (ν, S̃, a_γ), with w_x = L⁻¹ k_βx and
u = L⁻¹ K_βγ a_γ:

    m(x) = w_xᵀ ν + r(x)              r(x) = k_xγ a_γ − w_xᵀ u, so that r(β) = 0
    s(x) = k_xx − w_xᵀ w_x + w_xᵀ S̃ w_x
    KL   = ½ ( Σ_j a_j r(γ_j) + νᵀν + tr S̃ − log|S̃| − M )

A basis says how ν and S̃ come from its own parameters; that is all in which they differ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthogp.errors import ConfigurationError
from orthogp.execution.streams import Branches, apart, record
from orthogp.kernel.covariance import Covariance
from orthogp.linalg import (
    Factor,
    factorise,
    factorise_robustly,
    lower_product,
    symmetric_product,
    total,
    upper_product,
)
from orthogp.posterior.gaussian import Kept, Whitened
from orthogp.posterior.shards import Shards


@dataclass(frozen=True)
class Blocks:
    """What the kernel alone gives at x, β and the sampled γ: k_βx, k_xx, and products with a_γ."""

    k: Float[Tensor, "b n"]
    prior_variance: Float[Tensor, " n"]
    at_x: Float[Tensor, "c n"]
    at_beta: Float[Tensor, "c b"]
    columns: Int[Tensor, " k"] | None
    gamma_columns: Float[Tensor, "k d"]
    at_columns: Float[Tensor, "c k"]


@dataclass(frozen=True)
class Projection:
    """Everything the marginals at x and the KL need of the kernel, computed once."""

    factor: Factor
    rows: Callable[[], Float[Tensor, "b n"]]
    prior_variance: Float[Tensor, " n"]
    u: Float[Tensor, "c b"]
    gamma_part: Float[Tensor, "c n"]
    columns: Int[Tensor, " k"] | None
    residuals: Callable[[], Float[Tensor, "c k"]] | None

    @property
    def w(self) -> Float[Tensor, "b n"]:
        """w_x = L⁻¹ k_βx of every row, with no link to L: who uses it adds dw = Ω w to Ω."""
        return self.rows()


class Basis(nn.Module, ABC):
    """β, γ and a_γ; a subclass adds its parametrisation of (ν, S̃). Starts at the prior."""

    # Set while several processes hold γ between them.
    shards: Shards | None = None

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
    def coefficients(self, projection: Projection, kept: Kept | None = None) -> Whitened:
        """(ν, S̃) from this basis's own parameters; `kept` waits for what `beside()` does."""

    def beside(self) -> Kept | None:
        """Factorises that of q(f_β) which needs no K_β, where there is such a thing."""
        return None

    def factor(
        self,
        covariance: Covariance,
        jitter: float,
        robust: bool,
        branches: Branches | None = None,
        begun: torch.cuda.Event | None = None,
    ) -> Factor:
        """The factor of K_β + εI, evaluated and factorised in float64, in a branch if asked.

        `robust` escalates the jitter as needed, reading the outcome on the host; without it there
        is one attempt, whose outcome is in `info`, and `begun` is recorded as it begins.
        """
        beta = apart(self.beta.double())

        def work() -> Factor:
            K_b, dtype = covariance.symmetric_block(beta), self.beta.dtype
            if robust:
                return factorise_robustly(K_b, jitter, dtype)
            ready = None if begun is None else partial(record, begun, beta.device)
            return factorise(K_b, jitter, dtype, ready)

        if branches is None:
            return work()
        return branches.run(work, beta, *covariance.shared_parameters())

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
        branches = Branches(x.device, beside=False)
        blocks = self.blocks(covariance, x, columns, branches)
        return self.join(covariance, factor, blocks, branches)

    def blocks(
        self,
        covariance: Covariance,
        x: Float[Tensor, "n d"],
        columns: Int[Tensor, " k"] | None,
        branches: Branches,
    ) -> Blocks:
        """The part of the projection that needs no factor of K_β; complete after a `join`."""
        parameters = self.beta, self.gamma, self.a_gamma
        beta, gamma, a_gamma = (apart(t.to(x.dtype)) for t in parameters)
        # Selected, not indexed: a column is drawn twice at most, which needs no sorting to add up.
        gamma_columns = gamma[:0] if columns is None else gamma.index_select(0, columns)
        if self.shards is not None:
            products = self.shards.products(covariance, x, beta, gamma_columns, gamma, a_gamma)
            at_x, at_beta, at_columns = products
            k, prior_variance = covariance.block(beta, x), covariance.diagonal(x)
            return Blocks(k, prior_variance, at_x, at_beta, columns, gamma_columns, at_columns)
        queries = torch.cat([beta, gamma_columns])
        reads = beta, gamma, a_gamma, *covariance.shared_parameters()
        # Apart from the points, whose gradients are asked for: rows need none.
        at_x = branches.run(lambda: covariance.matvec(x, gamma, a_gamma), x, *reads)
        sizes = [beta.shape[0], gamma_columns.shape[0]]
        # Split in the branch: what joins their gradients then waits for nothing else.
        at_beta, at_columns = branches.run(
            lambda: covariance.matvec(queries, gamma, a_gamma).split(sizes, dim=1), queries, *reads
        )
        k, prior_variance = covariance.block(beta, x), covariance.diagonal(x)
        return Blocks(k, prior_variance, at_x, at_beta, columns, gamma_columns, at_columns)

    def join(
        self,
        covariance: Covariance,
        factor: Factor,
        blocks: Blocks,
        branches: Branches,
        rows_beside: bool = False,
    ) -> Projection:
        """The projection from its two parts; what takes long runs in branches.

        `rows_beside` takes the rows in a branch of their own: worth it where products are large.
        """
        R = factor.R.detach()
        rows = partial(_WhitenRows.apply, blocks.k, R)
        if rows_beside:
            rows = branches.begin(rows, blocks.k, R, patient=True)
        u, solved = (t.mT for t in factor.solve(blocks.at_beta.double().mT))
        residuals = None
        if blocks.columns is not None:
            beta, gamma_columns = apart(self.beta.to(blocks.k.dtype)), blocks.gamma_columns
            # r(γ_j) = k_jγ a_γ − k_jβ (L⁻ᵀ u)
            weights = solved.to(beta.dtype)
            reads = (blocks.at_columns, gamma_columns, beta, weights)
            residuals = branches.begin(
                lambda: blocks.at_columns - covariance.matvec(gamma_columns, beta, weights),
                *reads,
                *covariance.shared_parameters(),
            )
        return Projection(
            factor, rows, blocks.prior_variance, u, blocks.at_x, blocks.columns, residuals
        )

    def kl(self, covariance: Covariance, projection: Projection, q: Whitened) -> Float[Tensor, ""]:
        """KL(q‖p), exact when the projection has no columns, else its unbiased estimate."""
        energy = self._residual_energy(covariance, projection)
        parts = energy + q.v.square().sum(-1) + q.trace - q.log_det - q.v.shape[-1]
        return 0.5 * parts.sum()

    def _residual_energy(self, covariance: Covariance, p: Projection) -> Float[Tensor, " c"]:
        """Σ_j a_j r(γ_j) = a_γᵀ K_γ⊥β a_γ for every latent function."""
        if p.columns is None:
            # a_γᵀ K_γ a_γ − uᵀu: nothing is sampled, so nothing is lost by the difference.
            at_gamma = covariance.matvec(self.gamma, self.gamma, self.a_gamma)
            energy = (self.a_gamma.double() * at_gamma.double()).sum(-1)
            return energy - p.u.square().sum(-1)
        assert p.residuals is not None
        # Projected before sampled: the raw columns of K_γ have a variance that grows with |a|².
        scale = self.gamma.shape[0] / p.columns.shape[0]
        if self.shards is not None:
            # Of this process's γ alone: the mean over the processes is then the whole.
            scale *= self.shards.team.size
        sampled = self.a_gamma.index_select(1, p.columns).double() * p.residuals().double()
        return scale * sampled.sum(-1)


def marginals(p: Projection, q: Whitened) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
    """Mean and variance of q(f) at every row, for every latent function."""
    # m(x) = w_xᵀ (ν − u) + k_xγ a_γ and s(x) = k_xx + w_xᵀ (S̃ − I) w_x
    mean, change = _Marginals.apply(  # pyright: ignore
        p.w, p.factor.omega, q.v - p.u, q.S, q.follows
    )
    variance, least = p.prior_variance + change, 1e-10 * p.prior_variance.detach()
    # Rounding can leave a variance below zero at a row that coincides with a point of β.
    return mean + p.gamma_part, torch.where(variance < least, least, variance)


class _WhitenRows(torch.autograd.Function):
    """k ↦ R k for a constant R, a node of its own: its gradient is taken beside that of R."""

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
