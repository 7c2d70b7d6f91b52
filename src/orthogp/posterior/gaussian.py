"""q(f_β) for natural steps: how it is stored, and as what every basis needs, whitened (v, S̃).

Which coordinates stand still while the kernel and β move is a choice with consequences for the
hyperparameters' gradients. With K_β + εI = L Lᵀ now, L₀ when q was last set, and T = L⁻¹ L₀:

    whitened     v = v₀           S̃ = S̃₀
    unwhitened   v = T v₀         S̃ = T S̃₀ Tᵀ                 (m_β and S stand still)
    dual         η = T η₀         Λ̃ = I + T (Λ̃₀ − I) Tᵀ        (the likelihood's sites stand still)

There are two ways there. One takes Λ̃ = T⁻ᵀ Λ̃₀ T⁻¹ and inverts it, which is less work. The other
starts from the factor of Λ̃₀, which needs no K_β and may be computed at the same time as that of
K_β, and multiplies its roots by T. One step of the optimizer lies between L₀ and L, so that T is
close to the identity.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthogp.errors import ConfigurationError
from orthogp.linalg import (
    Factor,
    cholesky,
    congruent,
    factorise,
    log_diagonal,
    lower_product,
    symmetric_product,
    total,
    upper_product,
)
from orthogp.posterior.natural import WhitenedNatural, natural_step, safe_step_size

# What stands still while the kernel and β move.
HOLD_FIXED = ("whitened", "unwhitened", "dual")


@dataclass(frozen=True)
class Whitened:
    """q(f_β) = N(L v, L S̃ Lᵀ), differentiable in whatever is not held fixed.

    In float64, but for S̃, whose rounding nothing amplifies and which may have the model's dtype.
    `info` is 0 where a factorisation on the way to S̃ reported no failure. `natural` are the natural
    parameters where they came up on the way, constants.

    Where S stands still, `following_trace` is tr S̃, and S̃ itself has no link to L: who uses it
    adds what its dS̃ = Ω S̃ + S̃ Ωᵀ means for Ω.
    """

    v: Float[Tensor, "c b"]
    S: Float[Tensor, "c b b"]
    log_det: Float[Tensor, " c"]
    info: Int[Tensor, " c"]
    natural: WhitenedNatural | None = None
    following_trace: Float[Tensor, " c"] | None = None

    @property
    def failed(self) -> Bool[Tensor, " c"]:
        """Whether S̃ is not positive definite; stays on the device, as a factor's does."""
        # Written so that NaN counts as a failure.
        return (self.info != 0) | ~(self.log_det.abs() < math.inf)

    @property
    def follows(self) -> bool:
        return self.following_trace is not None

    @property
    def trace(self) -> Float[Tensor, " c"]:
        if self.following_trace is not None:
            return self.following_trace
        return self.S.diagonal(dim1=-2, dim2=-1).sum(-1)


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
        self._precision_factor: Factor | None = None
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
    def factorise_precision(self) -> Factor | None:
        """The factor of Λ̃₀; None where the sites stand still, of which Λ̃₀ alone says nothing."""
        return None if self.hold_fixed == "dual" else factorise(self.precision, jitter=0.0)

    @contextmanager
    def using(self, precision_factor: Factor | None) -> Iterator[None]:
        """Within it `whitened` starts from this factor of Λ̃₀."""
        self._precision_factor = precision_factor
        try:
            yield
        finally:
            self._precision_factor = None

    def whitened(self, factor: Factor, dtype: torch.dtype = torch.float64) -> Whitened:
        """(v, S̃) at the current K_β, S̃ in this dtype; `step` asks for the gradients of both."""
        if self.hold_fixed == "dual":
            return _tracked(_from_natural(self._natural(factor), dtype))
        with torch.no_grad():
            if self._precision_factor is None:
                q = _from_natural(self._natural(factor), dtype)
            else:
                q = self._from_root(self._precision_factor, factor, dtype)
        q = _tracked(q)
        if self.hold_fixed == "unwhitened":
            v, log_det, trace = _Follow.apply(factor.omega, q.v, q.S, q.log_det)  # pyright: ignore
            q = replace(q, v=v, log_det=log_det, following_trace=trace)
        return q

    def _from_root(self, own: Factor, factor: Factor, dtype: torch.dtype) -> Whitened:
        # S̃ = ρ ρᵀ and v = ρ R₀ η₀ with ρ = T R₀ᵀ, where R₀ᵀ R₀ = Λ̃₀⁻¹.
        root, log_det = own.R.mT, 2.0 * log_diagonal(own.R)
        if self.hold_fixed == "unwhitened":
            T = lower_product(factor.R, self.L, lower=True)
            root, log_det = lower_product(T, root), log_det + 2.0 * log_diagonal(T)
        v = root @ (own.R @ self.precision_mean.unsqueeze(-1))
        root = root.to(dtype)
        return Whitened(v.squeeze(-1), root @ root.mT, log_det, own.info)

    def _natural(self, factor: Factor) -> WhitenedNatural:
        """Λ̃ and η at the current K_β; differentiable in it where the sites stand still."""
        if self.hold_fixed == "whitened":
            return WhitenedNatural(self.precision, self.precision_mean)
        if self.hold_fixed == "dual":
            return self._sites(factor)
        back = self._back(factor)
        return WhitenedNatural(congruent(back, self.precision), self.precision_mean @ back)

    def _back(self, factor: Factor) -> Float[Tensor, "b b"]:
        """T⁻¹."""
        return lower_product(self.R, factor.L, lower=True)

    def _sites(self, factor: Factor) -> WhitenedNatural:
        """Λ̃ and η when the likelihood's sites stand still, differentiable in K_β."""
        T = factor.R @ self.L
        identity = torch.eye(T.shape[-1], dtype=T.dtype, device=T.device)
        precision = identity + T @ (self.precision - identity) @ T.mT
        return WhitenedNatural(precision, self.precision_mean @ T.mT)

    @torch.no_grad()
    def move_to(self, factor: Factor, precision_factor: Factor) -> None:
        """Expresses the same q(f_β) by the current L; `precision_factor` is that of Λ̃₀."""
        if self.hold_fixed == "unwhitened":
            back = self._back(factor)
            root = upper_product(back, precision_factor.L)
            symmetric_product(root, root, out=self.precision)
            self.precision_mean.copy_(self.precision_mean @ back)
        self._set_factor(factor)

    @torch.no_grad()
    def step(
        self,
        factor: Factor,
        q: Whitened,
        grad_v: Float[Tensor, "c b"],
        grad_S: Float[Tensor, "c b b"],
        step_size: Float[Tensor, ""],
        guarded: bool,
    ) -> None:
        """A natural step on ℒ from its gradients at q = `whitened(factor)`.

        Where q came from the factor of Λ̃₀, after `move_to`. `log_det` is a path of its own, so
        these are the gradients `natural_step` asks for.
        """
        own = WhitenedNatural(self.precision, self.precision_mean)
        before = own
        if q.natural is not None:
            before = q.natural
            self._set_factor(factor)
        if guarded:
            step_size = safe_step_size(before.precision, grad_S, step_size)
        natural_step(before, q.v, grad_v, grad_S, step_size, out=own)

    @torch.no_grad()
    def set_whitened(
        self, factor: Factor, v: Float[Tensor, "c b"], S: Float[Tensor, "c b b"]
    ) -> None:
        """Sets q(f_β) = N(L v, L S̃ Lᵀ)."""
        precision = torch.cholesky_inverse(cholesky(S.to(self.precision)))
        torch.add(precision, precision.mT, out=self.precision).mul_(0.5)
        self._set_mean(v.to(precision))
        self._set_factor(factor)

    def _set_mean(self, v: Float[Tensor, "c b"]) -> None:
        self.precision_mean.copy_((self.precision @ v.unsqueeze(-1)).squeeze(-1))

    def _set_factor(self, factor: Factor) -> None:
        self.L.copy_(factor.L)
        self.R.copy_(factor.R)


class _Follow(torch.autograd.Function):
    """v, log|S̃| and tr S̃ as functions of L alone, when m_β = L v and S = L S̃ Lᵀ stand still.

    With dR = Ω R:  dv = Ω v,  d log|S̃| = 2 tr Ω,  d tr S̃ = 2 tr Ω S̃.
    """

    @staticmethod
    def forward(ctx, omega, v, S, log_det):
        ctx.save_for_backward(v, S)
        ctx.omega_dtype = omega.dtype
        return v.view_as(v), log_det.view_as(log_det), S.diagonal(dim1=-2, dim2=-1).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        grad_v, grad_log_det, grad_trace = grad_outputs
        v, S = ctx.saved_tensors
        dtype = ctx.omega_dtype
        # In one pass over |β|² numbers.
        weighted = S * (2.0 * grad_trace.to(dtype))[:, None, None]
        omega = total(weighted).addmm_(grad_v.mT.to(dtype), v.to(dtype))
        omega.diagonal().add_(2.0 * grad_log_det.sum())
        grad_S = torch.diag_embed(grad_trace.unsqueeze(-1).expand(S.shape[:-1]))
        return omega, None, grad_S, None


def _from_natural(q: WhitenedNatural, dtype: torch.dtype) -> Whitened:
    factor = factorise(q.precision, jitter=0.0)
    # v past S̃, not through it: their gradients are asked for separately.
    v, R = _solve(factor, q.precision_mean), factor.R.to(dtype)
    S = R.mT @ R
    constant = WhitenedNatural(q.precision.detach(), q.precision_mean.detach())
    return Whitened(v, S, 2.0 * log_diagonal(factor.R), factor.info, constant)


def _solve(factor: Factor, x: Float[Tensor, "c b"]) -> Float[Tensor, "c b"]:
    return (factor.R.mT @ (factor.R @ x.unsqueeze(-1))).squeeze(-1)


def _tracked(q: Whitened) -> Whitened:
    """q with v and S̃ in the graph, so that their gradients can be asked for."""
    if torch.is_grad_enabled():
        for part in (q.v, q.S):
            if not part.requires_grad:
                part.requires_grad_()
    return q
