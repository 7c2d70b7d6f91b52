"""Model, natural and expectation parameters of q, and the natural step on q(f_β).

The three parametrisations are those of the paper's figure of them [OD18, fig. 1], in the paper's
coordinates. The step itself runs in whitened coordinates (m_β = L v, S = L S̃ Lᵀ), where the same
rule reads Λ̃ ← Λ̃ + 2τ ∂ℒ/∂S̃ with Λ̃ = S̃⁻¹. The coupled basis is the case of no γ.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.linalg import cholesky, cholesky_failed

# A guarded step may shrink the precision in no direction below this share of what it was.
SMALLEST_SHARE = 0.1
# Step sizes tried, each this share of the one before: on a GPU all of them are, every time.
BACKTRACKS, BACKTRACK = 3, 1 / 16


@dataclass(frozen=True)
class ModelParameters:
    """(a_γ, a_β, S) of [OD18, eq. 12]."""

    a_gamma: Float[Tensor, "*c g"]
    a_beta: Float[Tensor, "*c b"]
    S: Float[Tensor, "*c b b"]


@dataclass(frozen=True)
class NaturalParameters:
    """(j_γ, j_β, Θ) of [OD18, eq. 13]."""

    j_gamma: Float[Tensor, "*c g"]
    j_beta: Float[Tensor, "*c b"]
    Theta: Float[Tensor, "*c b b"]


@dataclass(frozen=True)
class ExpectationParameters:
    """(m_γ⊥β, m_β, Λ) of [OD18, eq. 14]."""

    m_gamma: Float[Tensor, "*c g"]
    m_beta: Float[Tensor, "*c b"]
    Lambda: Float[Tensor, "*c b b"]


def natural_from_model(p: ModelParameters, K_b: Float[Tensor, "b b"]) -> NaturalParameters:
    # j_γ = a_γ,  j_β = S⁻¹ K_β a_β,  Θ = ½ S⁻¹
    precision = _inverse(p.S)
    j_beta = _apply(precision, _apply(K_b, p.a_beta))
    return NaturalParameters(p.a_gamma, j_beta, 0.5 * precision)


def model_from_natural(p: NaturalParameters, K_b: Float[Tensor, "b b"]) -> ModelParameters:
    S = _inverse(2.0 * p.Theta)
    return ModelParameters(p.j_gamma, _solve(K_b, _apply(S, p.j_beta)), S)


def expectation_from_natural(
    p: NaturalParameters, K_perp: Float[Tensor, "g g"]
) -> ExpectationParameters:
    # m_γ⊥β = K_γ⊥β j_γ,  m_β = S j_β,  Λ = −S − m_β m_βᵀ
    S = _inverse(2.0 * p.Theta)
    m_beta = _apply(S, p.j_beta)
    return ExpectationParameters(_apply(K_perp, p.j_gamma), m_beta, -S - _outer(m_beta))


def natural_from_expectation(
    p: ExpectationParameters, K_perp: Float[Tensor, "g g"]
) -> NaturalParameters:
    precision = _inverse(-p.Lambda - _outer(p.m_beta))
    return NaturalParameters(
        _solve(K_perp, p.m_gamma), _apply(precision, p.m_beta), 0.5 * precision
    )


def expectation_from_model(
    p: ModelParameters, K_b: Float[Tensor, "b b"], K_perp: Float[Tensor, "g g"]
) -> ExpectationParameters:
    return expectation_from_natural(natural_from_model(p, K_b), K_perp)


def model_from_expectation(
    p: ExpectationParameters, K_b: Float[Tensor, "b b"], K_perp: Float[Tensor, "g g"]
) -> ModelParameters:
    return model_from_natural(natural_from_expectation(p, K_perp), K_b)


@dataclass(frozen=True)
class WhitenedNatural:
    """Λ̃ = S̃⁻¹ and η = Λ̃ v: the natural parameters of q(f_β) in whitened coordinates."""

    precision: Float[Tensor, "c b b"]
    precision_mean: Float[Tensor, "c b"]


def natural_step(
    q: WhitenedNatural,
    v: Float[Tensor, "c b"],
    grad_v: Float[Tensor, "c b"],
    grad_S: Float[Tensor, "c b b"],
    step_size: Float[Tensor, "*c"],
    out: WhitenedNatural | None = None,
) -> WhitenedNatural:
    """One step of size τ on ℒ [OD18, eq. 16b, eq. 16c].

    `grad_v` is ∂ℒ/∂v; `grad_S` is ∂ℒ/∂S̃ less the entropy's part −½Λ̃, that is ½I + Σ h_n w_n w_nᵀ,
    so that nothing is differentiated through S̃⁻¹. `out` may be q itself.
    """
    tau = step_size.to(v.dtype)[..., None]
    # Λ̃ ← (1−τ) Λ̃ + τ (I + 2 Σ h_n w_n w_nᵀ)
    target = _target(grad_S, v.dtype)
    precision = torch.lerp(q.precision, target, tau[..., None], out=out and out.precision)
    # η ← (1−τ) η + τ Σ (2 h_n w_nᵀ v − g_n) w_n
    change = _apply(target, v) - grad_v
    precision_mean = torch.lerp(q.precision_mean, change, tau, out=out and out.precision_mean)
    return WhitenedNatural(precision, precision_mean)


def safe_step_size(
    precision: Float[Tensor, "c b b"], grad_S: Float[Tensor, "c b b"], step_size: Float[Tensor, ""]
) -> Float[Tensor, " c"]:
    """τ, or the first of τ/16 and τ/256 that leaves each latent's precision well inside the cone.

    For likelihoods that are not log-concave, whose h_n may be negative. The decision is made on the
    device, latent by latent; where none helps, that latent stands still.
    """
    target = _target(grad_S, precision.dtype)
    candidates = step_size.to(precision.dtype) * BACKTRACK ** torch.arange(
        BACKTRACKS, dtype=precision.dtype, device=precision.device
    )
    chosen = torch.zeros_like(precision[:, 0, 0])
    found = torch.zeros_like(chosen, dtype=torch.bool)
    # On a CPU one after the other, as few as it takes; a device takes all of them at once.
    for taus in candidates.split(1 if precision.device.type == "cpu" else BACKTRACKS):
        tau = taus[:, None, None, None]
        # Λ̃_new ≻ share · Λ̃: no variance grows more than 1/share-fold in one step.
        room = torch.lerp(precision, target, tau).sub_(precision, alpha=SMALLEST_SHARE)
        positive = ~cholesky_failed(*torch.linalg.cholesky_ex(room))
        for tau, good in zip(taus, positive, strict=True):
            chosen = torch.where(~found & good, tau, chosen)
            found = found | good
        if precision.device.type == "cpu" and bool(found.all()):
            break
    return chosen


def _target(grad_S: Float[Tensor, "c b b"], dtype: torch.dtype) -> Float[Tensor, "c b b"]:
    """Where a step of size one takes Λ̃: twice the gradient, and symmetric."""
    return (grad_S + grad_S.mT).to(dtype)


def _inverse(A: Tensor) -> Tensor:
    return torch.cholesky_inverse(cholesky(A))


def _apply(A: Tensor, x: Tensor) -> Tensor:
    return (A @ x.unsqueeze(-1)).squeeze(-1)


def _solve(A: Tensor, x: Tensor) -> Tensor:
    return torch.linalg.solve(A, x.unsqueeze(-1)).squeeze(-1)


def _outer(x: Tensor) -> Tensor:
    return x.unsqueeze(-1) * x.unsqueeze(-2)
