"""γ = all rows: the mean of the exact Gaussian process, by conjugate gradients.

For Gaussian noise the best mean of the orthogonal family with γ = X is k_xX α with (K + D) α = y.
β preconditions: with W = R K_βX the matrix Wᵀ W + D is inverted by Woodbury's identity. K is stored
where memory allows; otherwise every product evaluates it anew, without memory that grows with n².
Rows that are absent have no weight, and the others are solved for as if they were all. What is left
of the residual

    r = y − (K + D) α

is for near rows to condition on: their mean of r added to k_xX α is the exact one for k = N,
whatever α. At absent rows it is what k_xX α does not predict.
"""

import time
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import cholesky
from orthogp.posterior.induced import Features
from orthogp.posterior.kernel_matrix import KernelMatrix
from orthogp.posterior.observations import Observations

# The solution is found where the residual's root mean square is this share of the noise's.
TOLERANCE = 0.03
# What a product in float64 counts for where x is float32.
WIDE_PRODUCTS = 3
# The residual by recursion, in float32, is off where it is below the true one by this factor.
MOST_DRIFT = 2.0


@dataclass(frozen=True)
class Solution:
    """α, what it leaves of y, and whether that is little.

    `products` are those with K, each in float64 counted as several.
    """

    weights: Float[Tensor, "c n"]
    residual: Float[Tensor, "c n"]
    products: int
    converged: bool


@torch.no_grad()
def solve_all_rows(
    covariance: Covariance,
    features: Features,
    rows: Observations,
    tolerance: float = TOLERANCE,
    max_products: int = 100,
    deadline: float | None = None,
    start: Float[Tensor, "c n"] | None = None,
    matrix: KernelMatrix | None = None,
    absent: Int[Tensor, " m"] | None = None,
) -> Solution:
    """Solves (K + D) α = y from `start`, in the dtype of x, or in float64 where that is too coarse.

    `deadline` is a time of `time.monotonic()` after which no product begins. Several solutions for
    the same rows can share K, their `matrix`. Rows that are `absent` have a weight of zero.
    """
    matrix = KernelMatrix(covariance, rows.x) if matrix is None else matrix
    system = _System(matrix, features, rows, tolerance, max_products, deadline, absent)
    y = rows.y.double()
    weights = torch.zeros_like(y) if start is None else start.double() * system.present
    residual = y if start is None else y - system.product(weights, torch.float64)
    for dtype in dict.fromkeys((rows.x.dtype, torch.float64)):
        while not system.ended(residual):
            step, expected = system.conjugate_gradients(residual, dtype)
            left = y - system.product(weights + step, torch.float64)
            drifted = system.size(left) > MOST_DRIFT * system.size(expected)
            gained = system.size(left) < 0.5 * system.size(residual)
            # Written so that NaN counts as drift.
            taken = (~drifted & ~left.isnan().any(-1) | gained).unsqueeze(-1)
            weights = torch.where(taken, weights + step, weights)
            residual = torch.where(taken, left, residual)
            if bool((drifted | ~gained).any()):
                break
    return Solution(weights, residual, system.products, system.is_small(residual))


class _System:
    """K + D of the rows that are present, its preconditioner, and how far a solution is to go."""

    def __init__(
        self,
        matrix: KernelMatrix,
        features: Features,
        rows: Observations,
        tolerance: float,
        max_products: int,
        deadline: float | None,
        absent: Int[Tensor, " m"] | None,
    ):
        self.K, self.dtype, self.noise = matrix, rows.x.dtype, rows.noise.double()
        self.present = self.noise.new_ones(len(rows))
        if absent is not None:
            self.present[absent] = 0.0
        self.count = self.present.sum()
        self.W = features.W if absent is None else features.W * self.present.unsqueeze(-1)
        noise = (self.noise * self.present).sum(-1) / self.count
        self.goal = tolerance * noise.sqrt()
        self.max_products, self.deadline, self.products = max_products, deadline, 0
        # I + W D⁻¹ Wᵀ, of every noise.
        weighted = self.W / self.noise.unsqueeze(-1)
        inner = self.W.mT @ weighted
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        self.L = cholesky(inner)

    def size(self, residual: Float[Tensor, "c n"]) -> Float[Tensor, " c"]:
        """The root mean square of every output."""
        return ((residual * self.present).square().sum(-1) / self.count).sqrt()

    def is_small(self, residual: Float[Tensor, "c n"]) -> bool:
        return bool((self.size(residual) <= self.goal).all())

    def ended(self, residual: Float[Tensor, "c n"]) -> bool:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or self.products >= self.max_products or self.is_small(residual)

    def product(self, a: Float[Tensor, "c n"], dtype: torch.dtype) -> Float[Tensor, "c n"]:
        """(K + D) a."""
        self.products += 1 if dtype == self.dtype else WIDE_PRODUCTS
        return self.K.product(a, dtype) + self.noise * a

    def precondition(self, r: Float[Tensor, "c n"]) -> Float[Tensor, "c n"]:
        """(Wᵀ W + D)⁻¹ r."""
        scaled = r / self.noise
        inner = torch.cholesky_solve((scaled @ self.W).unsqueeze(-1), self.L).squeeze(-1)
        return scaled - inner @ self.W.mT / self.noise

    def conjugate_gradients(
        self, residual: Float[Tensor, "c n"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
        """A step from here and the residual after it by recursion, every output on its own."""
        self.K.store(dtype)
        found, r = torch.zeros_like(residual), residual * self.present
        s = self.precondition(r)
        direction, rs = s, (r * s).sum(-1, keepdim=True)
        while not self.ended(r):
            A = self.product(direction, dtype) * self.present
            curvature = (direction * A).sum(-1, keepdim=True)
            # An output whose curvature has been lost to rounding stands still.
            step = torch.where(curvature > 0.0, rs / curvature, 0.0)
            found, r = found + step * direction, r - step * A
            s = self.precondition(r)
            before, rs = rs, (r * s).sum(-1, keepdim=True)
            direction = s + torch.where(before > 0.0, rs / before, 0.0) * direction
        return found, r
