"""Closed forms for a Gaussian likelihood: exact regression and the best q for given points.

All in float64 and cubic in the number of points: references and small problems, not training.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import Factor, cholesky, factorise_robustly
from orthogp.posterior import FactorGaussian, NaturalGaussian, Orthogonal


@dataclass(frozen=True)
class ExactRegression:
    """[OD18, eq. 2] and the log evidence."""

    mean: Float[Tensor, " m"]
    covariance: Float[Tensor, "m m"]
    log_evidence: Float[Tensor, ""]


@torch.no_grad()
def exact_regression(
    covariance: Covariance,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    noise: float,
    x_new: Float[Tensor, "m d"],
) -> ExactRegression:
    """Exact GP regression, O(n³)."""
    x, y, x_new = x.double(), y.double(), x_new.double()
    K = covariance.block(x, x)
    L = cholesky(K + noise * torch.eye(x.shape[0], dtype=K.dtype, device=K.device))
    whitened_y = torch.linalg.solve_triangular(L, y[:, None], upper=False)
    whitened_k = torch.linalg.solve_triangular(L, covariance.block(x, x_new), upper=False)
    log_evidence = -0.5 * (
        whitened_y.square().sum() + 2.0 * L.diagonal().log().sum() + len(y) * math.log(2 * math.pi)
    )
    return ExactRegression(
        mean=(whitened_k.mT @ whitened_y).squeeze(1),
        covariance=covariance.block(x_new, x_new) - whitened_k.mT @ whitened_k,
        log_evidence=log_evidence,
    )


@torch.no_grad()
def leave_one_out(
    covariance: Covariance,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "c n"],
    noise: Float[Tensor, "s n"],
) -> tuple[Float[Tensor, "c n"], Float[Tensor, "s n"]]:
    """Mean and variance of the exact process at every row given all others, O(n³).

    With P = (K + D)⁻¹ they are y_i − (P y)_i / P_ii and 1 / P_ii − D_ii.
    """
    K = covariance.block(x.double(), x.double())
    P = torch.cholesky_inverse(cholesky(K + torch.diag_embed(noise.double())))
    diagonal = P.diagonal(dim1=-2, dim2=-1)
    mean = y - (P @ y.double().unsqueeze(-1)).squeeze(-1) / diagonal
    return mean, (1.0 / diagonal - noise).clamp_min(0.0)


@dataclass(frozen=True)
class CoupledOptimum:
    """Titsias' q(f_β) in whitened coordinates."""

    v: Float[Tensor, " b"]
    S: Float[Tensor, "b b"]


@torch.no_grad()
def coupled_optimum(
    w: Float[Tensor, "b n"], y: Float[Tensor, " n"], noise: float
) -> CoupledOptimum:
    """The best q(f_β) for targets y, given w = L⁻¹ K_βX: S̃ = (I + w wᵀ/σ²)⁻¹, v = S̃ w y/σ²."""
    w, y = w.double(), y.double()
    precision = torch.eye(w.shape[0], dtype=w.dtype, device=w.device) + w @ w.mT / noise
    S = torch.cholesky_inverse(cholesky(precision))
    return CoupledOptimum(S @ (w @ y) / noise, S)


@dataclass(frozen=True)
class DecoupledOptimum:
    """The best mean in the span of α = β ∪ γ and the best S, in the coordinates of every basis.

    a_β and a_γ weigh k_xβ and k_xγ (decoupled); v and a_γ are the orthogonal basis's, S̃ whitened.
    """

    a_beta: Float[Tensor, " b"]
    a_gamma: Float[Tensor, " g"]
    v: Float[Tensor, " b"]
    S: Float[Tensor, "b b"]


@torch.no_grad()
def decoupled_optimum(
    covariance: Covariance,
    factor: Factor,
    beta: Float[Tensor, "b d"],
    gamma: Float[Tensor, "g d"],
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    noise: float,
) -> DecoupledOptimum:
    """a = (K_αX K_Xα/σ² + K_α)⁻¹ K_αX y/σ², with the jitter of `factor` on the β block of K_α.

    Solved in the orthogonal coordinates, where K_α is block diagonal: (v, a_γ) has the prior
    precision diag(I, K_γ⊥β) and the features [w_x; k_γx − K_γβ K_β⁻¹ k_βx].
    """
    beta, gamma, x, y = beta.double(), gamma.double(), x.double(), y.double()
    w, w_g = factor.R @ covariance.block(beta, x), factor.R @ covariance.block(beta, gamma)
    residual_features = covariance.block(gamma, x) - w_g.mT @ w
    features = torch.cat([w, residual_features])
    prior = torch.block_diag(
        torch.eye(len(beta), dtype=w.dtype, device=w.device),
        covariance.block(gamma, gamma) - w_g.mT @ w_g,
    )
    # γ may be as good as dependent: without jitter if possible, with as little as it takes if not.
    R = factorise_robustly(features @ features.mT / noise + prior, jitter=0.0).R
    solution = R.mT @ (R @ (features @ y / noise))
    v, a_gamma = solution[: len(beta)], solution[len(beta) :]
    # K_β a_β + K_βγ a_γ = L v
    a_beta = factor.R.mT @ (v - w_g @ a_gamma)
    return DecoupledOptimum(a_beta, a_gamma, v, coupled_optimum(w, y, noise).S)


@torch.no_grad()
def set_optimum(basis: Orthogonal, factor: Factor, optimum: DecoupledOptimum) -> None:
    """Puts an orthogonal basis of one latent function at the optimum."""
    basis.a_gamma.copy_(optimum.a_gamma[None])
    assert isinstance(basis.q, NaturalGaussian | FactorGaussian)
    basis.q.set_whitened(factor, optimum.v[None], optimum.S[None])
