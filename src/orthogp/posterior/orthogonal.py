"""The orthogonally decoupled basis: γ carries what β cannot express [OD18, eq. 12]."""

from jaxtyping import Float
from torch import Tensor

from orthogp.posterior.base import Basis, Projection
from orthogp.posterior.coupled import num_latents_of
from orthogp.posterior.factor_gaussian import FactorGaussian
from orthogp.posterior.gaussian import Kept, NaturalGaussian, Whitened


class Orthogonal(Basis):
    """ν = v: what a_γ adds to the mean vanishes on β, so a_γ and v never compete."""

    def __init__(
        self,
        beta: Float[Tensor, "b d"],
        gamma: Float[Tensor, "g d"],
        q: NaturalGaussian | FactorGaussian,
    ):
        super().__init__(beta, gamma, num_latents_of(q))
        self.q = q

    def coefficients(self, projection: Projection, kept: Kept | None = None) -> Whitened:
        return self.q.whitened(projection.factor, kept, projection.gamma_part.dtype)

    def beside(self) -> Kept | None:
        return self.q.beside()
