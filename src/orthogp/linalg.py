"""Cholesky factors that survive near-singular matrices: tensors in, tensors out.

Everything downstream is written with R = L⁻¹, so that solves and the reverse pass are matrix
products. Factorisations run in float64 whatever the dtype of the matrix: the rounding of a float32
factorisation alone is larger than the jitter that keeps coincident points apart.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.errors import NumericalError

JITTER_GROWTH = 10.0
MAX_ATTEMPTS = 6


@dataclass(frozen=True)
class Factor:
    """K + εI = L Lᵀ with R = L⁻¹, ε = jitter · mean diag K, and what it took to get there.

    `R` carries gradients to K; `L` is a constant. So does `omega`, which is zero and stands for
    dR = Ω R: what is a function of R x alone can give its gradient there, without another product
    with R. `info` is 0 where the factorisation succeeded and stays on the device: reading it is
    the caller's decision.
    """

    L: Float[Tensor, "*c b b"]
    R: Float[Tensor, "*c b b"]
    omega: Float[Tensor, "*c b b"]
    K: Float[Tensor, "*c b b"]
    info: Int[Tensor, "*c"]
    jitter: float
    attempts: int

    def whiten(self, x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """R x = L⁻¹ x, in the dtype of x."""
        return _Whiten.apply(x, self.omega, self.R.detach())  # pyright: ignore[reportReturnType]

    def unwhiten(self, x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Rᵀ x = L⁻ᵀ x, in the dtype of x."""
        return _Unwhiten.apply(x, self.omega, self.R.detach())  # pyright: ignore[reportReturnType]


def factorise(K: Float[Tensor, "*c b b"], jitter: float) -> Factor:
    """One attempt at the given relative jitter; never synchronises with the device."""
    K = add_jitter(K.double(), jitter)
    R, omega, L, info = _InverseCholesky.apply(K)  # pyright: ignore[reportGeneralTypeIssues]
    return Factor(L=L, R=R, omega=omega, K=K, info=info, jitter=jitter, attempts=1)


def factorise_robustly(K: Float[Tensor, "*c b b"], jitter: float) -> Factor:
    """Attempts with ten times more jitter until one succeeds; reads the outcome on the host."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        factor = factorise(K, jitter)
        if not factor.info.any():
            return replace(factor, attempts=attempt)
        jitter = max(jitter * JITTER_GROWTH, 1e-12)
    if not K.isfinite().all():
        raise NumericalError(
            "the covariance of the inducing points has entries that are not finite; "
            "the kernel's parameters or the points have diverged"
        )
    raise NumericalError(
        f"the covariance of the inducing points is not positive definite even with a jitter of "
        f"{jitter / JITTER_GROWTH:.0e} of its diagonal; check the kernel"
    )


def add_jitter(K: Float[Tensor, "*c b b"], jitter: float) -> Float[Tensor, "*c b b"]:
    """K + εI with ε relative to the mean diagonal, so that rescaling a kernel changes nothing."""
    epsilon = jitter * K.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return K + epsilon * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)


def log_diagonal(A: Float[Tensor, "*c b b"]) -> Float[Tensor, "*c"]:
    """Σ log A_ii, the log-determinant of a triangular matrix."""
    return A.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def symmetrised(A: Float[Tensor, "*c b b"]) -> Float[Tensor, "*c b b"]:
    return 0.5 * (A + A.mT)


class _InverseCholesky(torch.autograd.Function):
    """K ↦ R = L⁻¹. From dR = −Φ(R dK Rᵀ) R:  ∂ℓ/∂K = −sym(Rᵀ Φ(R̄ Rᵀ + Ω̄) R).

    Φ takes the lower triangle and halves its diagonal. Differentiating L and the solves one after
    the other costs several times the factorisation; this costs about one.
    """

    @staticmethod
    def forward(ctx, K):
        L, info = torch.linalg.cholesky_ex(K)
        identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        R = torch.linalg.solve_triangular(L, identity.expand_as(L), upper=False)
        ctx.save_for_backward(R)
        ctx.mark_non_differentiable(L, info)
        ctx.set_materialize_grads(False)
        return R, torch.zeros_like(R), L, info

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        grad_R, omega, *_ = grad_outputs
        (R,) = ctx.saved_tensors
        if grad_R is not None:
            product = grad_R @ R.mT
            omega = product if omega is None else omega + product
        if omega is None:
            return None
        phi = omega.tril()
        phi.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        return -symmetrised(R.mT @ phi @ R)


class _Whiten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, omega, R):
        R = R.to(x.dtype)
        y = R @ x
        ctx.save_for_backward(R, y)
        ctx.omega_dtype = omega.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        R, y = ctx.saved_tensors
        # dy = Ω y
        omega = (grad @ y.mT).to(ctx.omega_dtype) if ctx.needs_input_grad[1] else None
        return R.mT @ grad if ctx.needs_input_grad[0] else None, omega, None


class _Unwhiten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, omega, R):
        R = R.to(x.dtype)
        ctx.save_for_backward(R, x)
        ctx.omega_dtype = omega.dtype
        return R.mT @ x

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        R, x = ctx.saved_tensors
        whitened = R @ grad
        # dy = Rᵀ Ωᵀ x
        omega = (x @ whitened.mT).to(ctx.omega_dtype) if ctx.needs_input_grad[1] else None
        return whitened, omega, None
