"""A trained basis condensed for prediction: O(|γ| + |β|²) a row, in float64."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.bases.base import Basis
from orthogp.covariance import Covariance


@dataclass(frozen=True)
class Predictor:
    """m(x) = k_xα a with α = β ∪ γ, and s(x) = k_xx − w_xᵀ (I − S̃) w_x, everything precomputed."""

    covariance: Covariance
    alpha: Float[Tensor, "a d"]
    weights: Float[Tensor, "c a"]
    beta: Float[Tensor, "b d"]
    R: Float[Tensor, "b b"]
    explained: Float[Tensor, "c b b"]

    @torch.no_grad()
    def marginals(
        self, x: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
        x = x.to(self.alpha.dtype)
        mean = self.covariance.matvec(x, self.alpha, self.weights)
        w = self.R @ self.covariance.block(self.beta, x)
        prior = self.covariance.diagonal(x)
        variance = prior - (w * (self.explained @ w)).sum(-2)
        return mean, torch.maximum(variance, 1e-10 * prior)

    @torch.no_grad()
    def full_covariance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "c n n"]:
        x = x.to(self.alpha.dtype)
        w = self.R @ self.covariance.block(self.beta, x)
        return self.covariance.block(x, x) - w.mT @ self.explained @ w


@torch.no_grad()
def condense(basis: Basis, covariance: Covariance, jitter: float) -> Predictor:
    """The predictor of a basis as it stands, O(|β| |γ| + |β|³) once."""
    beta, gamma = basis.beta.double(), basis.gamma.double()
    factor = basis.factor(covariance, jitter, robust=True)
    p = basis.project(covariance, factor, beta[:0])
    q = basis.coefficients(p)
    # m(x) = k_xβ Rᵀ (ν − u) + k_xγ a_γ
    weights = torch.cat([(q.v - p.u) @ factor.R, basis.a_gamma.double()], dim=1)
    identity = torch.eye(beta.shape[0], dtype=beta.dtype, device=beta.device)
    alpha = torch.cat([beta, gamma])
    return Predictor(covariance, alpha, weights, beta, factor.R, identity - q.S)
