"""Cholesky factors that survive near-singular matrices, products with triangles, and Gaussians
that are conditioned.

Everything downstream is written with R = L⁻¹, so that solves and the reverse pass are matrix
products. Factorisations run in float64 whatever the dtype of the matrix: the rounding of a float32
factorisation alone is larger than the jitter that keeps coincident points apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.errors import NumericalError

JITTER_GROWTH = 10.0
MAX_ATTEMPTS = 6
# Triangular blocks up to this width are solved at once on a GPU.
LARGEST_SOLVE = 64
# A larger matrix is inverted on a GPU by products, in panels of this height.
INVERSE_PANEL = 2048
# A triangle is multiplied in about so many panels of rows, unless they would be too low to pay.
PANELS, SMALLEST_PANEL = {"cpu": 3, "cuda": 2}, {"cpu": 64, "cuda": 512}


@dataclass(frozen=True)
class Factor:
    """K + εI = L Lᵀ with R = L⁻¹, ε = jitter · mean diag K, and what it took to get there.

    `L` is a constant. Gradients reach K in two ways: through `R`, and through `omega`, a tensor of
    zeros that stands for Ω in dR = Ω R. A function of R x takes R as a constant and gives the
    gradient of `omega`, which costs less; docs/gradients.md has the derivation. `info` is LAPACK's
    own report, which `failed` does not trust alone.
    """

    L: Float[Tensor, "*c b b"]
    R: Float[Tensor, "*c b b"]
    omega: Float[Tensor, "*c b b"]
    without_jitter: Float[Tensor, "*c b b"]
    info: Int[Tensor, "*c"]
    jitter: float
    attempts: int

    @property
    def failed(self) -> Bool[Tensor, "*c"]:
        """Whether L is no factor; stays on the device, so that reading it is the caller's choice.

        OpenBLAS reports success for a matrix with NaN: the diagonal of L has the last word.
        """
        return cholesky_failed(self.L, self.info)

    @property
    def K(self) -> Float[Tensor, "*c b b"]:
        """K + εI."""
        K = self.without_jitter
        # For the gradient alone, which `Covariance.symmetric_block` wants symmetric.
        return add_jitter(0.5 * (K + K.mT), self.jitter)

    def solve(self, x: Float[Tensor, "b n"]) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
        """R x = L⁻¹ x and Rᵀ R x = (K + εI)⁻¹ x, in the dtype of x."""
        return _Solve.apply(x, self.omega, self.R.detach())  # pyright: ignore[reportReturnType]


def factorise(
    K: Float[Tensor, "*c b b"],
    jitter: float,
    dtype: torch.dtype = torch.float64,
) -> Factor:
    """One attempt at the given relative jitter; never synchronises with the device.

    `dtype` is that of Ω, which gathers gradients.
    """
    K = K.double()
    R, omega, L, info = _InverseCholesky.apply(K, jitter, dtype)  # pyright: ignore
    return Factor(L, R, omega, K, info, jitter, attempts=1)


def factorise_robustly(
    K: Float[Tensor, "*c b b"], jitter: float, dtype: torch.dtype = torch.float64
) -> Factor:
    """Attempts with ten times more jitter until one succeeds; reads the outcome on the host."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        factor = factorise(K, jitter, dtype)
        if not factor.failed.any():
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


def cholesky(A: Float[Tensor, "*c b b"]) -> Float[Tensor, "*c b b"]:
    """L of A = L Lᵀ, or a `NumericalError`; reads the outcome on the host."""
    L, info = torch.linalg.cholesky_ex(A)
    if cholesky_failed(L, info).any():
        raise NumericalError("a matrix that should be positive definite is not")
    return L


def cholesky_failed(L: Float[Tensor, "*c b b"], info: Int[Tensor, "*c"]) -> Bool[Tensor, "*c"]:
    """Whether `torch.linalg.cholesky_ex` failed, by its own report or by a diagonal that no factor
    has: a factor's is positive and finite."""
    # Written so that NaN counts as a failure.
    return (info != 0) | ~(log_diagonal(L).abs() < math.inf)


def add_jitter(K: Float[Tensor, "*c b b"], jitter: float) -> Float[Tensor, "*c b b"]:
    """K + εI with ε relative to the mean diagonal, so that rescaling a kernel changes nothing."""
    if jitter == 0.0:
        return K
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    out = K.clone()
    out.diagonal(dim1=-2, dim2=-1).add_(jitter * diagonal.mean(-1, keepdim=True))
    return out


def _padded(K: Float[Tensor, "*c b b"], jitter: float) -> Float[Tensor, "*c p p"]:
    """A copy of K + εI, on a GPU extended by an identity to the `_padded_size`."""
    size = K.shape[-1]
    whole = _padded_size(size) if K.is_cuda else size
    if whole == size:
        room = K.clone(memory_format=torch.contiguous_format)
    else:
        room = K.new_zeros(*K.shape[:-2], whole, whole)
        room[..., :size, :size] = K
        room.diagonal(dim1=-2, dim2=-1)[..., size:].fill_(1.0)
    if jitter != 0.0:
        diagonal = room.diagonal(dim1=-2, dim2=-1)[..., :size]
        diagonal.add_(jitter * diagonal.mean(-1, keepdim=True))
    return room


def _padded_size(size: int) -> int:
    """The next size that can be halved into equal blocks of a width of at most `LARGEST_SOLVE`."""
    parts = 2 ** max(0, math.ceil(math.log2(size / LARGEST_SOLVE)))
    return -(-size // parts) * parts


def _cholesky(K: Float[Tensor, "*c b b"]) -> tuple[Float[Tensor, "*c b b"], Int[Tensor, "*c"]]:
    """L, which overwrites the symmetric K, and LAPACK's report."""
    info = K.new_empty(K.shape[:-2], dtype=torch.int32)
    # The transpose is laid out as LAPACK wants it: nothing is copied. On a CPU L comes by rows.
    torch.linalg.cholesky_ex(K.mT, upper=not K.is_cuda, out=(K.mT, info))
    return K.mT if K.is_cuda else K, info


def _invert_lower(L: Float[Tensor, "*c b b"]) -> Float[Tensor, "*c b b"]:
    """L⁻¹ of a lower triangular matrix, on a GPU of a `_padded_size`.

    There the diagonal blocks are inverted all at once and joined pair by pair with products,
    which fill the device; a triangular solve works through the rows one after the other.
    """
    if not L.is_cuda:
        # Transposed on its way, so that it comes by rows.
        identity = _identity(L.shape[-1], L.dtype).expand_as(L)
        return torch.linalg.solve_triangular(L.mT, identity, upper=True).mT
    width, size = L.shape[-1], L.shape[-1]
    while width > LARGEST_SOLVE:
        width //= 2
    if width == size:
        return torch.linalg.solve_triangular(L, _identity_like(L), upper=False)
    R = L.new_zeros(L.shape)
    blocks = diagonal_blocks(L, width).contiguous()
    diagonal_blocks(R, width).copy_(
        torch.linalg.solve_triangular(blocks, _identity_like(blocks), upper=False)
    )
    while width < size:
        pairs, inverses = diagonal_blocks(L, 2 * width), diagonal_blocks(R, 2 * width)
        product = pairs[..., width:, :width] @ inverses[..., :width, :width]
        inverses[..., width:, :width] = -(inverses[..., width:, width:] @ product)
        width *= 2
    return R


def cholesky_inverse(L: Float[Tensor, "b b"]) -> Float[Tensor, "b b"]:
    """(L Lᵀ)⁻¹ = Rᵀ R, of a large matrix on a GPU without the products with zeros of R."""
    size = L.shape[-1]
    if not L.is_cuda or size <= INVERSE_PANEL:
        return torch.cholesky_inverse(L)
    R = _invert_lower(_padded(L, 0.0))[:size, :size]
    out = torch.empty_like(R)
    for a in range(0, size, INVERSE_PANEL):
        b = min(a + INVERSE_PANEL, size)
        torch.mm(R[a:, a:b].mT, R[a:, :b], out=out[a:b, :b])
        out[:a, a:b] = out[a:b, :a].mT
    return out


@lru_cache(maxsize=1)
def _identity(size: int, dtype: torch.dtype) -> Float[Tensor, "b b"]:
    """On a CPU, where every step asks for the same one twice."""
    return torch.eye(size, dtype=dtype, device="cpu")


def _identity_like(A: Float[Tensor, "*c b b"]) -> Float[Tensor, "*c b b"]:
    return torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)


def diagonal_blocks(
    A: Float[Tensor, "*c b b"], width: int
) -> Float[Tensor, "*c {A.shape[-1]//width} {width} {width}"]:
    """The square blocks of the given width along the diagonal, as a view."""
    count = A.shape[-1] // width
    split = A.unflatten(-1, (count, width)).unflatten(-3, (count, width))
    return split.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def log_diagonal(A: Float[Tensor, "*c b b"]) -> Float[Tensor, "*c"]:
    """Σ log A_ii, the log-determinant of a triangular matrix."""
    return A.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def total(parts: Float[Tensor, "c *shape"]) -> Float[Tensor, "*shape"]:
    """The sum over the first axis, without a pass over the data where there is one part only."""
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def lower_product(
    A: Float[Tensor, "*#c b b"], X: Float[Tensor, "*#c b n"], lower: bool = False
) -> Float[Tensor, "*c b n"]:
    """A X of a lower triangular A, without many of the products with its zeros.

    With `lower` X is lower triangular too, and so is A X.
    """
    if lower:
        return _panelled(A, X, lambda A, X, a, b: (A[..., a:b, :b], X[..., :b, :b]))
    return _panelled(A, X, lambda A, X, a, b: (A[..., a:b, :b], X[..., :b, :]))


def upper_product(
    A: Float[Tensor, "*#c b b"], X: Float[Tensor, "*#c b n"]
) -> Float[Tensor, "*c b n"]:
    """Aᵀ X of a lower triangular A, likewise."""
    return _panelled(A.mT, X, lambda A, X, a, b: (A[..., a:b, a:], X[..., a:, :]))


def symmetric_product(
    A: Float[Tensor, "*c r n"], B: Float[Tensor, "*#c b n"], out: Float[Tensor, "*c r b"]
) -> None:
    """A Bᵀ into `out`, whose first b rows are symmetric and computed once, but for some."""
    if out.shape[:-2] == (1,):
        A, B, out = (t[0] if t.ndim > 2 else t for t in (A, B, out))
    rows, size, height = A.shape[-2], B.shape[-2], panel_height(out)
    for a in range(0, size, height):
        b = min(a + height, size)
        # The last panel takes the rows below the square along.
        below = rows if b == size else b
        torch.matmul(A[..., a:below, :], B[..., :b, :].mT, out=out[..., a:below, :b])
        if a:
            out[..., :a, a:b] = out[..., a:b, :a].mT


def congruent(A: Float[Tensor, "b b"], P: Float[Tensor, "*c b b"]) -> Float[Tensor, "*c b b"]:
    """Aᵀ P A of a lower triangular A and a symmetric P; symmetric but for rounding."""
    if P.shape[:-2] == (1,):
        return congruent(A, P[0])[None]
    half = upper_product(A, P).mT
    size, height = A.shape[-1], panel_height(A)
    out = torch.empty_like(P)
    for a in range(0, size, height):
        b = min(a + height, size)
        torch.matmul(A[a:, a:b].mT, half[..., a:, a:], out=out[..., a:b, a:])
        if a:
            out[..., a:b, :a] = out[..., :a, a:b].mT
    return out


def panel_height(A: Tensor) -> int:
    """How many rows of a triangle are multiplied at a time."""
    kind = "cuda" if A.is_cuda else "cpu"
    return max(SMALLEST_PANEL[kind], -(-A.shape[-1] // PANELS[kind]))


def _panelled(
    A: Tensor, X: Tensor, factors: Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]
) -> Tensor:
    """A X by panels of rows; `factors` are what matters of A and X for rows a to b."""
    size, height = A.shape[-1], panel_height(A)
    if size <= height:
        return A @ X
    # One may have a batch the other lacks; `torch.broadcast_shapes` takes as long as a product.
    batch = max(A.shape[:-2], X.shape[:-2], key=len)
    if batch == (1,):
        # A product of two matrices begins sooner than a batch of one.
        A, X = (t[0] if t.ndim > 2 else t for t in (A, X))
        return _panelled(A, X, factors)[None]
    out = X.new_empty(*batch, size, X.shape[-1])
    for a in range(0, size, height):
        b = min(a + height, size)
        left, right = factors(A, X, a, b)
        width = right.shape[-1]
        torch.matmul(left, right, out=out[..., a:b, :width])
        if width < out.shape[-1]:
            out[..., a:b, width:].zero_()
    return out


class _InverseCholesky(torch.autograd.Function):
    """K ↦ R = L⁻¹ of K + εI. From dR = −Φ(R dK Rᵀ) R:  ∂ℓ/∂K = −sym(Rᵀ Φ(R̄ Rᵀ + Ω̄) R).

    Φ takes the lower triangle and halves its diagonal. Differentiating L and the solves one after
    the other costs several times the factorisation; this costs about one.
    """

    @staticmethod
    def forward(ctx, K, jitter, dtype):
        size = K.shape[-1]
        L, info = _cholesky(_padded(K, jitter))
        R, L = (A[..., :size, :size] for A in (_invert_lower(L), L))
        ctx.save_for_backward(R)
        ctx.jitter = jitter
        ctx.mark_non_differentiable(L, info)
        ctx.set_materialize_grads(False)
        return R, R.new_zeros((), dtype=dtype).expand_as(R), L, info

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        grad_R, omega, *_ = grad_outputs
        (R,) = ctx.saved_tensors
        if grad_R is not None:
            product = grad_R @ R.mT
            omega = product if omega is None else omega + product
        if omega is None:
            return None, None, None
        phi = omega.tril().mul_(-0.5)
        phi.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        # In the dtype of Ω: its own rounding weighs as much as that of the products.
        low = R.to(phi.dtype)
        half = upper_product(low, lower_product(phi, low, lower=True))
        grad = (half + half.mT).to(R.dtype)
        # ε = jitter · mean diag K
        diagonal = grad.diagonal(dim1=-2, dim2=-1)
        diagonal.add_(ctx.jitter * diagonal.mean(-1, keepdim=True))
        return grad, None, None


class _Solve(torch.autograd.Function):
    """x ↦ y = R x and z = Rᵀ y:  dy = Ω y + R dx,  dz = Rᵀ (Ωᵀ y + dy)."""

    @staticmethod
    def forward(ctx, x, omega, R):
        R = R.to(x.dtype)
        y = R @ x
        ctx.save_for_backward(R, y)
        ctx.omega_dtype = omega.dtype
        return y, R.mT @ y

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        grad_y, grad_z = grad_outputs
        R, y = ctx.saved_tensors
        from_z = R @ grad_z
        grad = grad_y + from_z
        omega = None
        if ctx.needs_input_grad[1]:
            omega = (y @ from_z.mT).addmm_(grad, y.mT).to(ctx.omega_dtype)
        return R.mT @ grad if ctx.needs_input_grad[0] else None, omega, None


def condition_gaussian(
    mean: Float[Tensor, "*b n"],
    covariance: Float[Tensor, "*b n n"],
    y: Float[Tensor, "*f m"],
    noise: Float[Tensor, "*d m"],
) -> tuple[Float[Tensor, "*g k"], Float[Tensor, "*g k k"]]:
    """A Gaussian given noisy observations y of its first m numbers: of the k others.

    m′ = m_2 + Σ_21 (Σ_11 + D)⁻¹ (y − m_1)  and  Σ′ = Σ_22 − Σ_21 (Σ_11 + D)⁻¹ Σ_12, where D has the
    variances of the noise; O(m³ + m² k).
    """
    m = y.shape[-1]
    L = psd_safe_cholesky(covariance[..., :m, :m] + torch.diag_embed(noise))
    half = torch.linalg.solve_triangular(L, covariance[..., :m, m:], upper=False)
    residual = (y - mean[..., :m]).unsqueeze(-1)
    along = torch.linalg.solve_triangular(
        L.expand(*residual.shape[:-2], m, m), residual, upper=False
    )
    found = mean[..., m:] + (half.mT @ along).squeeze(-1)
    left = covariance[..., m:, m:] - half.mT @ half
    return found, left.expand(*found.shape, found.shape[-1])
