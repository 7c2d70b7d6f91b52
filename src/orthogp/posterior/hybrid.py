"""The hybrid basis: γ beside β, not orthogonal to it [OD18, eq. 11]."""

from jaxtyping import Float
from torch import Tensor

from orthogp.posterior.base import Basis, Projection
from orthogp.posterior.factor_gaussian import FactorGaussian
from orthogp.posterior.gaussian import Kept, Whitened


class Hybrid(Basis):
    """m(x) = k_xγ a_γ + k_xβ K_β⁻¹ m_β, so ν = v + u: a_γ moves the function at β as well."""

    def __init__(self, beta: Float[Tensor, "b d"], gamma: Float[Tensor, "g d"], q: FactorGaussian):
        super().__init__(beta, gamma, q.mean.shape[0])
        self.q = q

    def coefficients(self, projection: Projection, kept: Kept | None = None) -> Whitened:
        q = self.q.whitened(projection.factor)
        return Whitened(q.v + projection.u, q.S, q.log_det, q.info)
