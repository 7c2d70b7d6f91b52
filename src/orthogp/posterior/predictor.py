"""A trained basis condensed for prediction: O(|γ| + |β|²) a row.

β's part of the mean is a difference of large numbers and is computed in float64. γ's part is not;
it has the precision of training where the sum for a row does not depend on the other rows of the
batch. On a CPU the variances of many rows are computed in float32, and again in float64 where they
are so small that the rounding of float32, as measured at the model's own points, would matter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import panel_height
from orthogp.posterior.base import Basis

# A share of the prior variance that rounding alone can make of nothing.
NEGLIGIBLE = 1e-12
# Fewer rows are computed in float64 alone, so that a row's result does not depend on the others.
MANY = 512
# A variance must be so many times the rounding of float32, which must be below this share of the
# prior variance to be of use.
TIMES_ROUNDING, LARGEST_ROUNDING = 500.0, 1e-4
PROBES = 1024


@dataclass(frozen=True)
class Predictor:
    """m(x) = k_xα a with α = β ∪ γ, and s(x) = k_xx − Σ_i λ_i (Z k_βx)_i², everything precomputed.

    From I − S̃ = U diag(λ) Uᵀ the rows of |λ|^½ Uᵀ R, those with λ < 0 on their own, each
    part turned into a trapezoid that keeps its sums of squares: Z, with λ = ∓1. One product a row,
    nearly half of it zeros, and rows that lose nothing to the conditioning of K_β. The first
    `lowered` rows are the part with −1, where S̃ is beyond the prior.
    """

    covariance: Covariance
    beta: Float[Tensor, "b d"]
    gamma: Float[Tensor, "g d"]
    beta_weights: Float[Tensor, "c b"]
    gamma_weights: Float[Tensor, "c g"]
    Z: Float[Tensor, "c r b"]
    explained: Float[Tensor, "c r"]
    lowered: int
    # The rounding of float32 in a variance, as a share of the prior's; None to do without it.
    rounding: float | None = None

    @property
    def device(self) -> torch.device:
        return self.beta.device

    @torch.no_grad()
    def marginals(
        self, x: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
        x = x.to(self.beta.dtype)
        with self.covariance.parameters_read_once(x):
            k = self.covariance.block(self.beta, x)
            mean = self.beta_weights @ k + self._gamma_mean(x)
            prior = self.covariance.diagonal(x)
        if self.rounding is None or x.shape[0] < MANY:
            variance = prior - self._explained_variance(k)
        else:
            variance = prior - self._explained_variance(k.float()).double()
            small = (variance < TIMES_ROUNDING * self.rounding * prior).any(0).nonzero()[:, 0]
            if len(small):
                variance[:, small] = prior[small] - self._explained_variance(k[:, small])
        return mean, torch.maximum(variance, 1e-10 * prior)

    @torch.no_grad()
    def mean(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "c n"]:
        x = x.to(self.beta.dtype)
        with self.covariance.parameters_read_once(x):
            return self.beta_weights @ self.covariance.block(self.beta, x) + self._gamma_mean(x)

    def _gamma_mean(self, x: Float[Tensor, "n d"]) -> Tensor | float:
        if not self.gamma.shape[0]:
            return 0.0
        return self.covariance.matvec(x.to(self.gamma.dtype), self.gamma, self.gamma_weights)

    def _explained_variance(self, k: Float[Tensor, "b n"]) -> Float[Tensor, "c n"]:
        """Σ_i λ_i (Z k)_i², what of the prior variance β explains, in the dtype of k."""
        found = k.new_empty(len(self.Z), k.shape[1])
        along = k.new_empty(self.Z.shape[-2], k.shape[1])
        for Z, signs, out in zip(self.Z.to(k), self.explained.to(k), found, strict=True):
            for rows, left in self._panels():
                torch.mm(Z[rows, left:], k[left:], out=along[rows])
            torch.mv(along.square_().mT, signs, out=out)
        return found

    def _panels(self) -> Iterator[tuple[slice, int]]:
        """Rows of Z, and how many columns are zero in all of them."""
        height, lowered, count = panel_height(self.Z), self.lowered, self.Z.shape[-2]
        if lowered < height:
            # Too few for a panel of their own.
            yield slice(0, min(lowered + height, count)), 0
            parts = ((lowered, lowered + height, count),)
        else:
            parts = (0, 0, lowered), (lowered, lowered, count)
        for left, start, stop in parts:
            for first in range(start, stop, height):
                yield slice(first, min(first + height, stop)), first - left

    @torch.no_grad()
    def full_covariance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "c n n"]:
        x = x.to(self.beta.dtype)
        along = self.Z @ self.covariance.block(self.beta, x)
        return self.covariance.block(x, x) - along.mT @ (self.explained.unsqueeze(-1) * along)


@torch.no_grad()
def condense(basis: Basis, covariance: Covariance, jitter: float) -> Predictor:
    """The predictor of a basis as it stands, O(|β| |γ| + |β|³) once."""
    beta = basis.beta.double()
    factor = basis.factor(covariance, jitter, robust=True)
    p = basis.project(covariance, factor, beta[:0])
    q = basis.coefficients(p)
    # m(x) = k_xβ Rᵀ (ν − u) + k_xγ a_γ
    beta_weights = (q.v - p.u) @ factor.R
    identity = torch.eye(beta.shape[0], dtype=beta.dtype, device=beta.device)
    explained, U = torch.linalg.eigh(identity - q.S)
    # Ascending: what S̃ has beyond the prior, what it leaves as it is, what it explains.
    lowered = int((explained < -NEGLIGIBLE).sum(-1).max())
    rest = int((explained <= NEGLIGIBLE).sum(-1).min())
    Z = U.mT @ factor.R
    parts = [
        _trapezoid((-explained[:, :lowered]).clamp_min(0.0), Z[:, :lowered]),
        _trapezoid(explained[:, rest:].clamp_min(0.0), Z[:, rest:]),
    ]
    signs = torch.cat([-torch.ones_like(parts[0][..., 0]), torch.ones_like(parts[1][..., 0])], -1)
    independent = covariance.products_are_independent(basis.gamma, len(basis.a_gamma))
    dtype = basis.gamma.dtype if independent else beta.dtype
    gamma, a_gamma = (t.to(dtype, copy=True) for t in (basis.gamma, basis.a_gamma))
    Z = torch.cat(parts, -2)
    found = Predictor(covariance, beta, gamma, beta_weights, a_gamma, Z, signs, lowered)
    if basis.beta.dtype == torch.float32 and covariance.rows_are_independent(basis.beta):
        return replace(found, rounding=_rounding(found))
    return found


def _rounding(p: Predictor) -> float | None:
    """That of float32 in a variance, as a share of the prior's, at the points of the model."""
    points = torch.cat([p.beta, p.gamma.to(p.beta)])
    points = points[:: -(-len(points) // PROBES)]
    k, prior = p.covariance.block(p.beta, points), p.covariance.diagonal(points)
    error = (p._explained_variance(k) - p._explained_variance(k.float())).abs().amax(0)
    largest = (error / prior).max().item()
    return largest if largest <= LARGEST_ROUNDING else None


def _trapezoid(squares: Float[Tensor, "c r"], Z: Float[Tensor, "c r b"]) -> Float[Tensor, "c r b"]:
    """An upper trapezoid T with Tᵀ T = Zᵀ diag(squares) Z."""
    return torch.linalg.qr(squares.sqrt().unsqueeze(-1) * Z, mode="r").R
