"""Products with triangles and of symmetric results, by panels of rows that leave work out."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

# A triangle is multiplied in about so many panels of rows, unless they would be too low to pay.
PANELS, SMALLEST_PANEL = {"cpu": 3, "cuda": 2}, {"cpu": 64, "cuda": 512}


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
