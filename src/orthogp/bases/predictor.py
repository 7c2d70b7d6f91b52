"""A trained basis condensed for prediction: O(|γ| + |β|²) a row.

What β says is a difference of large numbers, in float64 therefore; what γ adds is not, and keeps
the precision that it was trained in where its sum for a row is the same beside any other rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.bases.base import Basis
from orthogp.covariance import Covariance
from orthogp.linalg import panel_height

# A share of the prior variance that rounding alone can make of nothing.
NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class Predictor:
    """m(x) = k_xα a with α = β ∪ γ, and s(x) = k_xx − Σ_i λ_i (Z k_βx)_i², everything precomputed.

    From I − S̃ = U diag(λ) Uᵀ the rows of |λ|^½ Uᵀ R, those with λ < 0 apart from the others, each
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

    @torch.no_grad()
    def marginals(
        self, x: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
        narrow, x = x.to(self.gamma.dtype), x.to(self.beta.dtype)
        with self.covariance.held(x):
            k = self.covariance.block(self.beta, x)
            mean = self.beta_weights @ k
            if self.gamma.shape[0]:
                mean += self.covariance.matvec(narrow, self.gamma, self.gamma_weights)
            prior = self.covariance.diagonal(x)
        variance = prior.repeat(mean.shape[0], 1)
        for rows, left in self._panels():
            along = self.Z[:, rows, left:] @ k[left:]
            variance -= (self.explained[:, None, rows] @ along.square_()).squeeze(-2)
        return mean, torch.maximum(variance, 1e-10 * prior)

    def _panels(self) -> Iterator[tuple[slice, int]]:
        """Rows of Z, and how many columns are zero in all of them."""
        height = panel_height(self.Z)
        for start, stop in ((0, self.lowered), (self.lowered, self.Z.shape[-2])):
            for first in range(start, stop, height):
                yield slice(first, min(first + height, stop)), first - start

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
    dtype = basis.gamma.dtype if covariance.row_by_row(basis.gamma) else beta.dtype
    gamma, a_gamma = (t.to(dtype, copy=True) for t in (basis.gamma, basis.a_gamma))
    Z = torch.cat(parts, -2)
    return Predictor(covariance, beta, gamma, beta_weights, a_gamma, Z, signs, lowered)


def _trapezoid(squares: Float[Tensor, "c r"], Z: Float[Tensor, "c r b"]) -> Float[Tensor, "c r b"]:
    """An upper trapezoid T with Tᵀ T = Zᵀ diag(squares) Z."""
    return torch.linalg.qr(squares.sqrt().unsqueeze(-1) * Z, mode="r").R
