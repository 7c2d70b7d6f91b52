"""The paper's bases: how ν and S̃ come from the parameters of each.

The decoupled ones have a mean in the span of α = β ∪ γ, m(x) = k_xα a, and a covariance from β.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orthogp.linalg import factorise, log_diagonal
from orthogp.posterior.base import Basis
from orthogp.posterior.factor_gaussian import CovarianceFactor, FactorGaussian, definite
from orthogp.posterior.gaussian import NaturalGaussian, Whitened
from orthogp.posterior.projection import Projection

# F = 0 is a stationary point of B = F Fᵀ, so the start is near the prior, not at it.
INITIAL_FACTOR = 1e-3


class Coupled(Basis):
    """One set of points for mean and covariance [OD18, eq. 7]: the ordinary sparse variational GP.

    ν = v, and there is no γ.
    """

    def __init__(self, beta: Float[Tensor, "b d"], q: NaturalGaussian | FactorGaussian):
        super().__init__(beta, beta[:0], num_latents_of(q))
        self.q = q

    def coefficients(self, projection: Projection) -> Whitened:
        return self.q.whitened(projection.factor, projection.x.dtype)


class Orthogonal(Basis):
    """γ carries what β cannot express [OD18, eq. 12].

    ν = v: what a_γ adds to the mean vanishes on β, so a_γ and v never compete.
    """

    def __init__(
        self,
        beta: Float[Tensor, "b d"],
        gamma: Float[Tensor, "g d"],
        q: NaturalGaussian | FactorGaussian,
    ):
        super().__init__(beta, gamma, num_latents_of(q))
        self.q = q

    def coefficients(self, projection: Projection) -> Whitened:
        return self.q.whitened(projection.factor, projection.x.dtype)

    @torch.no_grad()
    def with_more(self, gamma: Float[Tensor, "g d"]) -> "Orthogonal":
        """The same posterior with more residual points, which have a weight of zero."""
        larger = Orthogonal(self.beta, torch.cat([self.gamma, gamma.to(self.gamma)]), self.q)
        larger.a_gamma[:, : len(self.gamma)] = self.a_gamma
        return larger


class Hybrid(Basis):
    """γ is not orthogonal to β [OD18, eq. 11].

    m(x) = k_xγ a_γ + k_xβ K_β⁻¹ m_β, so ν = v + u: a_γ moves the function at β as well.
    """

    def __init__(self, beta: Float[Tensor, "b d"], gamma: Float[Tensor, "g d"], q: FactorGaussian):
        super().__init__(beta, gamma, q.mean.shape[0])
        self.q = q

    def coefficients(self, projection: Projection) -> Whitened:
        q = self.q.whitened(projection.factor)
        return Whitened(q.v + projection.u, q.S, q.log_det, q.info)


class Decoupled(Basis):
    """Σ = (I + Ψ_β B Ψ_βᵀ)⁻¹ with B = F Fᵀ [OD18, eq. 8]."""

    def __init__(self, beta: Float[Tensor, "b d"], gamma: Float[Tensor, "g d"], num_latents: int):
        super().__init__(beta, gamma, num_latents)
        self.a_beta = nn.Parameter(beta.new_zeros(num_latents, beta.shape[0]))
        identity = torch.eye(beta.shape[0], dtype=beta.dtype, device=beta.device)
        self.F = nn.Parameter((INITIAL_FACTOR * identity).repeat(num_latents, 1, 1))

    def coefficients(self, projection: Projection) -> Whitened:
        factor = projection.factor
        # Λ̃ = I + Lᵀ B L, and Lᵀ = R K_β
        G = factor.R @ factor.K @ self.F.tril().double()
        identity = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
        precision = factorise(identity + G @ G.mT, jitter=0.0)
        S = precision.R.mT @ precision.R
        nu = _mean_at_beta(self.a_beta, projection)
        return Whitened(nu, S, 2.0 * log_diagonal(precision.R), precision.info)


class DecoupledS(Basis):
    """The same mean with the coupled basis's S for the covariance [OD18, eq. 9]."""

    def __init__(
        self, beta: Float[Tensor, "b d"], gamma: Float[Tensor, "g d"], S: CovarianceFactor
    ):
        super().__init__(beta, gamma, S.F.shape[0])
        self.a_beta = nn.Parameter(beta.new_zeros(S.F.shape[0], beta.shape[0]))
        self.S = S

    def coefficients(self, projection: Projection) -> Whitened:
        S, log_det = self.S.whitened(projection.factor)
        return Whitened(_mean_at_beta(self.a_beta, projection), S, log_det, definite(log_det))


def _mean_at_beta(a_beta: Float[Tensor, "c b"], p: Projection) -> Float[Tensor, "c b"]:
    # ν = L⁻¹ (K_β a_β + K_βγ a_γ)
    return a_beta.double() @ p.factor.K @ p.factor.R.mT + p.u


def num_latents_of(q: NaturalGaussian | FactorGaussian) -> int:
    return (q.precision_mean if isinstance(q, NaturalGaussian) else q.mean).shape[0]
