"""q(f_β) in the coordinates it is kept in, and as what every basis needs: whitened (v, S̃).

Which coordinates stand still while the kernel and β move is a choice with consequences for the
hyperparameters' gradients. With K_β + εI = L Lᵀ now, L₀ when q was last set, and T = L⁻¹ L₀:

    whitened     v = v₀           S̃ = S̃₀
    unwhitened   v = T v₀         S̃ = T S̃₀ Tᵀ                 (m_β and S stand still)
    dual         η = T η₀         Λ̃ = I + T (Λ̃₀ − I) Tᵀ        (the likelihood's sites stand still)

There are two ways there. A GPU has what stands still by its triangular roots, S = G Gᵀ with
G = L₀ S̃₀^½, while K_β is still being factorised; a CPU waits for L, takes Λ̃ = T⁻ᵀ Λ̃₀ T⁻¹ and
inverts it, which is half the work. No product is worse conditioned than the root of K_β.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthogp.errors import ConfigurationError
from orthogp.linalg import (
    Factor,
    factorise,
    log_diagonal,
    lower_product,
    upper_product,
)
from orthogp.natural import WhitenedNatural, natural_step, safe_step_size

# What stands still while the kernel and β move.
HOLD_FIXED = ("whitened", "unwhitened", "dual")


@dataclass(frozen=True)
class Whitened:
    """q(f_β) = N(L v, L S̃ Lᵀ), differentiable in whatever is not held fixed.

    In float64, but for S̃, whose rounding nothing amplifies and which may have the model's dtype.
    `info` is 0 where S̃ is positive definite; like a factor's, it stays on the device. `precision`
    is S̃⁻¹ where it came up on the way, a constant.
    """

    v: Float[Tensor, "c b"]
    S: Float[Tensor, "c b b"]
    log_det: Float[Tensor, " c"]
    info: Int[Tensor, " c"]
    precision: Float[Tensor, "c b b"] | None = None


@dataclass(frozen=True)
class Kept:
    """What stands still of q(f_β), from its parameters alone, before K_β is factorised.

    For a device that does both at once. Mean m, S = G Gᵀ, S⁻¹ = P Pᵀ and log|S|: of f_β when
    (m_β, S) is held fixed, of L⁻¹ f_β when (v, S̃) is.
    """

    mean: Float[Tensor, "c b"]
    root: Float[Tensor, "c b b"]
    precision_root: Float[Tensor, "c b b"]
    log_det: Float[Tensor, " c"]
    info: Int[Tensor, " c"]


class NaturalGaussian(nn.Module):
    """q(f_β) for natural steps: natural parameters in buffers, so that no optimizer finds them."""

    precision: Tensor
    precision_mean: Tensor
    L: Tensor
    R: Tensor

    def __init__(self, factor: Factor, num_latents: int, hold_fixed: str):
        super().__init__()
        if hold_fixed not in HOLD_FIXED:
            raise ConfigurationError(
                f"hold_fixed is {hold_fixed!r}; expected one of {', '.join(HOLD_FIXED)}"
            )
        L = factor.L.detach()
        self.hold_fixed = hold_fixed
        identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
        self.register_buffer("precision", identity.repeat(num_latents, 1, 1))
        self.register_buffer("precision_mean", L.new_zeros(num_latents, L.shape[-1]))
        # Rows first, as a file gives them back: the layout decides how products round.
        for name, value in (("L", L), ("R", factor.R.detach())):
            self.register_buffer(name, value.clone(memory_format=torch.contiguous_format))

    def extra_repr(self) -> str:
        return f"hold_fixed={self.hold_fixed!r}"

    def _apply(self, fn, recurse=True):
        # A cast of the model leaves q in float64; only its device follows.
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(fn(buffer[:0]).device)
        return self

    @torch.no_grad()
    def kept(self) -> Kept | None:
        """None where the sites are held fixed: without K_β they say nothing yet."""
        if self.hold_fixed == "dual":
            return None
        own = factorise(self.precision, jitter=0.0)
        v = _solve(own, self.precision_mean)
        log_det = 2.0 * log_diagonal(own.R)
        if self.hold_fixed == "whitened":
            return Kept(v, own.R.mT, own.L, log_det, own.info)
        log_det = log_det + 2.0 * log_diagonal(self.L)
        root, precision_root = lower_product(self.L, own.R.mT), upper_product(self.R, own.L)
        return Kept(v @ self.L.mT, root, precision_root, log_det, own.info)

    @torch.no_grad()
    def precision_at(self, factor: Factor, kept: Kept | None = None) -> Float[Tensor, "c b b"]:
        """Λ̃ at the current K_β, given what is held fixed."""
        if kept is None or self.hold_fixed == "whitened":
            return self._natural(factor).precision
        root = upper_product(factor.L, kept.precision_root)
        return root @ root.mT

    def whitened(
        self, factor: Factor, kept: Kept | None = None, dtype: torch.dtype = torch.float64
    ) -> Whitened:
        """(v, S̃) at the current K_β; ask for the gradients with respect to them to `step`.

        `kept` is what `kept()` gives, for who has it already; `dtype` is that of S̃.
        """
        if self.hold_fixed == "dual":
            return _tracked(_from_natural(self._natural(factor), dtype))
        with torch.no_grad():
            if kept is None:
                q = _from_natural(self._natural(factor), dtype)
            elif self.hold_fixed == "whitened":
                root = kept.root.to(dtype)
                q = Whitened(kept.mean, root @ root.mT, kept.log_det, kept.info)
            else:
                root = lower_product(factor.R, kept.root).to(dtype)
                log_det = kept.log_det + 2.0 * log_diagonal(factor.R)
                q = Whitened(kept.mean @ factor.R.mT, root @ root.mT, log_det, kept.info)
        if self.hold_fixed == "unwhitened":
            v, S, log_det = _Follow.apply(factor.omega, q.v, q.S, q.log_det)  # pyright: ignore
            q = replace(q, v=v, S=S, log_det=log_det)
        return _tracked(q)

    def _natural(self, factor: Factor) -> WhitenedNatural:
        """Λ̃ and η at the current K_β; differentiable in it where the sites stand still."""
        if self.hold_fixed == "whitened":
            return WhitenedNatural(self.precision, self.precision_mean)
        if self.hold_fixed == "dual":
            return self._sites(factor)
        # T⁻¹, which is close to the identity: one step of the optimizer lies between L₀ and L.
        back = lower_product(self.R, factor.L)
        half = upper_product(back, self.precision)
        return WhitenedNatural(upper_product(back, half.mT), self.precision_mean @ back)

    def _sites(self, factor: Factor) -> WhitenedNatural:
        """Λ̃ and η when the likelihood's sites stand still, differentiable in K_β."""
        T = factor.R @ self.L
        identity = torch.eye(T.shape[-1], dtype=T.dtype, device=T.device)
        precision = identity + T @ (self.precision - identity) @ T.mT
        return WhitenedNatural(precision, self.precision_mean @ T.mT)

    @torch.no_grad()
    def step(
        self,
        factor: Factor,
        q: Whitened,
        grad_v: Float[Tensor, "c b"],
        grad_S: Float[Tensor, "c b b"],
        step_size: Float[Tensor, ""],
        guarded: bool,
        kept: Kept | None = None,
    ) -> None:
        """A natural step on ℒ from its gradients at q = `whitened(factor)`; q is then kept at L.

        `log_det` is a path of its own, so these are the gradients `natural_step` asks for.
        """
        precision = self.precision_at(factor, kept) if q.precision is None else q.precision
        if guarded:
            step_size = safe_step_size(precision, grad_S, step_size)
        natural = WhitenedNatural(precision, (precision @ q.v.unsqueeze(-1)).squeeze(-1))
        self._set(natural_step(natural, q.v, grad_v, grad_S, step_size), factor)

    @torch.no_grad()
    def set_whitened(
        self, factor: Factor, v: Float[Tensor, "c b"], S: Float[Tensor, "c b b"]
    ) -> None:
        """Sets q(f_β) = N(L v, L S̃ Lᵀ)."""
        precision = torch.cholesky_inverse(torch.linalg.cholesky(S.to(self.precision)))
        mean = (precision @ v.to(precision).unsqueeze(-1)).squeeze(-1)
        self._set(WhitenedNatural(precision, mean), factor)

    def _set(self, q: WhitenedNatural, factor: Factor) -> None:
        torch.add(q.precision, q.precision.mT, out=self.precision).mul_(0.5)
        self.precision_mean.copy_(q.precision_mean)
        self.L.copy_(factor.L)
        self.R.copy_(factor.R)


class CovarianceFactor(nn.Module):
    """S = F Fᵀ by its triangular factor, whitened or not, for Adam."""

    def __init__(self, factor: Factor, num_latents: int, hold_fixed: str, dtype: torch.dtype):
        super().__init__()
        if hold_fixed not in ("whitened", "unwhitened"):
            raise ConfigurationError(
                f"hold_fixed is {hold_fixed!r}; with Adam on q(f_β) it is whitened or unwhitened"
            )
        self.hold_fixed = hold_fixed
        L = factor.L.detach()
        prior = torch.eye(L.shape[-1], dtype=dtype, device=L.device)
        prior = prior if hold_fixed == "whitened" else L.to(dtype)
        self.F = nn.Parameter(prior.repeat(num_latents, 1, 1))

    def extra_repr(self) -> str:
        return f"hold_fixed={self.hold_fixed!r}"

    def whitened(self, factor: Factor) -> tuple[Tensor, Tensor]:
        """S̃ and log|S̃|."""
        F = self.F.tril().double()
        # |F_ii|: the sign of a column is free, and Adam may step across zero.
        log_det = 2.0 * F.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        if self.hold_fixed == "unwhitened":
            F = factor.R @ F
            log_det = log_det + 2.0 * log_diagonal(factor.R)
        return F @ F.mT, log_det


class FactorGaussian(nn.Module):
    """q(f_β) for Adam: a mean and a covariance factor as parameters, whitened or not."""

    def __init__(
        self,
        factor: Factor,
        num_latents: int,
        hold_fixed: str,
        dtype: torch.dtype,
    ):
        super().__init__()
        self.covariance = CovarianceFactor(factor, num_latents, hold_fixed, dtype)
        self.mean = nn.Parameter(factor.L.new_zeros(num_latents, factor.L.shape[-1], dtype=dtype))

    def kept(self) -> None:
        """Nothing here is worth having before K_β is factorised."""

    def whitened(
        self, factor: Factor, kept: Kept | None = None, dtype: torch.dtype = torch.float64
    ) -> Whitened:
        S, log_det = self.covariance.whitened(factor)
        mean = self.mean.double()
        v = mean if self.covariance.hold_fixed == "whitened" else mean @ factor.R.mT
        return Whitened(v, S, log_det, definite(log_det))

    @torch.no_grad()
    def set_whitened(
        self, factor: Factor, v: Float[Tensor, "c b"], S: Float[Tensor, "c b b"]
    ) -> None:
        """Sets q(f_β) = N(L v, L S̃ Lᵀ)."""
        F, v = torch.linalg.cholesky(S.double()), v.double()
        if self.covariance.hold_fixed == "unwhitened":
            F, v = factor.L @ F, v @ factor.L.mT
        self.covariance.F.copy_(F)
        self.mean.copy_(v)


class _Follow(torch.autograd.Function):
    """(v, S̃) as functions of L alone, when m_β = L v and S = L S̃ Lᵀ stand still.

    With dR = Ω R:  dv = Ω v,  dS̃ = Ω S̃ + S̃ Ωᵀ,  d log|S̃| = 2 tr Ω.
    """

    @staticmethod
    def forward(ctx, omega, v, S, log_det):
        ctx.save_for_backward(v, S)
        return v.view_as(v), S.view_as(S), log_det.view_as(log_det)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        grad_v, grad_S, grad_log_det = grad_outputs
        v, S = ctx.saved_tensors
        omega = grad_v.mT @ v + ((grad_S + grad_S.mT) @ S).sum(0)
        omega.diagonal().add_(2.0 * grad_log_det.sum())
        return omega, None, None, None


def definite(log_det: Float[Tensor, " c"]) -> Int[Tensor, " c"]:
    """The `info` of an S̃ that is positive definite by construction."""
    return torch.zeros_like(log_det, dtype=torch.int32)


def _from_natural(q: WhitenedNatural, dtype: torch.dtype) -> Whitened:
    factor = factorise(q.precision, jitter=0.0)
    # v past S̃, not through it: their gradients are asked for separately.
    v, R = _solve(factor, q.precision_mean), factor.R.to(dtype)
    S = R.mT @ R
    return Whitened(v, S, 2.0 * log_diagonal(factor.R), factor.info, q.precision.detach())


def _solve(factor: Factor, x: Float[Tensor, "c b"]) -> Float[Tensor, "c b"]:
    return (factor.R.mT @ (factor.R @ x.unsqueeze(-1))).squeeze(-1)


def _tracked(q: Whitened) -> Whitened:
    """q with v and S̃ in the graph, so that their gradients can be asked for."""
    if torch.is_grad_enabled():
        for part in (q.v, q.S):
            if not part.requires_grad:
                part.requires_grad_()
    return q
