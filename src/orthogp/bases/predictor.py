"""A trained basis condensed for prediction: O(|γ| + |β|²) a row, in float64."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.bases.base import Basis
from orthogp.covariance import Covariance


@dataclass(frozen=True)
class Predictor:
    """m(x) = k_xα a with α = β ∪ γ, and s(x) = k_xx − Σ_i λ_i (Z k_βx)_i², everything precomputed.

    Z = Uᵀ R and λ come from I − S̃ = U diag(λ) Uᵀ: one product a row, and rows that lose nothing to
    the conditioning of K_β.
    """

    covariance: Covariance
    beta: Float[Tensor, "b d"]
    gamma: Float[Tensor, "g d"]
    beta_weights: Float[Tensor, "c b"]
    gamma_weights: Float[Tensor, "c g"]
    Z: Float[Tensor, "c b b"]
    explained: Float[Tensor, "c b"]

    @torch.no_grad()
    def marginals(
        self, x: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
        x = x.to(self.beta.dtype)
        with self.covariance.held():
            k = self.covariance.block(self.beta, x)
            mean = self.beta_weights @ k
            if self.gamma.shape[0]:
                mean += self.covariance.matvec(x, self.gamma, self.gamma_weights)
            prior = self.covariance.diagonal(x)
        along = self.Z @ k
        variance = prior - (self.explained.unsqueeze(-2) @ along.square_()).squeeze(-2)
        return mean, torch.maximum(variance, 1e-10 * prior)

    @torch.no_grad()
    def full_covariance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "c n n"]:
        x = x.to(self.beta.dtype)
        along = self.Z @ self.covariance.block(self.beta, x)
        return self.covariance.block(x, x) - along.mT @ (self.explained.unsqueeze(-1) * along)


@torch.no_grad()
def condense(basis: Basis, covariance: Covariance, jitter: float) -> Predictor:
    """The predictor of a basis as it stands, O(|β| |γ| + |β|³) once."""
    beta, gamma = basis.beta.double(), basis.gamma.double()
    factor = basis.factor(covariance, jitter, robust=True)
    p = basis.project(covariance, factor, beta[:0])
    q = basis.coefficients(p)
    # m(x) = k_xβ Rᵀ (ν − u) + k_xγ a_γ
    beta_weights = (q.v - p.u) @ factor.R
    identity = torch.eye(beta.shape[0], dtype=beta.dtype, device=beta.device)
    explained, U = torch.linalg.eigh(identity - q.S)
    weights = beta_weights, basis.a_gamma.double()
    return Predictor(covariance, beta, gamma, *weights, U.mT @ factor.R, explained)
