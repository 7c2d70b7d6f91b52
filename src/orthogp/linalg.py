"""Cholesky factors that survive near-singular matrices: tensors in, tensors out.

Everything downstream is written with R = L⁻¹, so that solves and the reverse pass are matrix
products. Factorisations run in float64 whatever the dtype of the matrix: the rounding of a float32
factorisation alone is larger than the jitter that keeps coincident points apart.
"""

from dataclasses import dataclass

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

    `R` carries gradients to K; `L` is a constant. `info` is 0 where the factorisation succeeded
    and stays on the device: reading it is the caller's decision.
    """

    L: Float[Tensor, "*c b b"]
    R: Float[Tensor, "*c b b"]
    K: Float[Tensor, "*c b b"]
    info: Int[Tensor, "*c"]
    jitter: float
    attempts: int


def factorise(K: Float[Tensor, "*c b b"], jitter: float) -> Factor:
    """One attempt at the given relative jitter; never synchronises with the device."""
    K = add_jitter(K.double(), jitter)
    R, L, info = _InverseCholesky.apply(K)  # pyright: ignore[reportGeneralTypeIssues]
    return Factor(L=L, R=R, K=K, info=info, jitter=jitter, attempts=1)


def factorise_robustly(K: Float[Tensor, "*c b b"], jitter: float) -> Factor:
    """Attempts with ten times more jitter until one succeeds; reads the outcome on the host."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        factor = factorise(K, jitter)
        if not factor.info.any():
            return Factor(factor.L, factor.R, factor.K, factor.info, jitter, attempt)
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
    """K ↦ R = L⁻¹. From dR = −Φ(R dK Rᵀ) R:  ∂ℓ/∂K = −sym(Rᵀ Φ(R̄ Rᵀ) R), three products.

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
        return R, L, info

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (R,) = ctx.saved_tensors
        phi = (grad_outputs[0] @ R.mT).tril()
        phi.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        return -symmetrised(R.mT @ phi @ R)
