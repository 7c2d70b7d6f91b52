"""The coupled basis: one set of points for mean and covariance [OD18, eq. 7]."""

from jaxtyping import Float
from torch import Tensor

from orthogp.posterior.base import Basis, Projection
from orthogp.posterior.factor_gaussian import FactorGaussian
from orthogp.posterior.gaussian import Kept, NaturalGaussian, Whitened


class Coupled(Basis):
    """ν = v and no γ: the ordinary sparse variational GP."""

    def __init__(self, beta: Float[Tensor, "b d"], q: NaturalGaussian | FactorGaussian):
        super().__init__(beta, beta[:0], num_latents_of(q))
        self.q = q

    def coefficients(self, projection: Projection, kept: Kept | None = None) -> Whitened:
        return self.q.whitened(projection.factor, kept, projection.gamma_part.dtype)

    def beside(self) -> Kept | None:
        return self.q.beside()


def num_latents_of(q: NaturalGaussian | FactorGaussian) -> int:
    return (q.precision_mean if isinstance(q, NaturalGaussian) else q.mean).shape[0]
