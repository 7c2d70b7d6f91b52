"""The KL as the code published with the paper estimates it: with cross terms of β and γ."""

from jaxtyping import Float
from torch import Tensor

from orthogp.bases import Orthogonal, Projection, Whitened
from orthogp.covariance import Covariance


class CrossTerms(Orthogonal):
    """The orthogonal basis with a noisier estimate of the same KL.

    aᵀ K_α a, with the γ part of a sampled on one side only, has beside the terms of `Basis.kl`

        scale · Σ_sampled a_j f_β(γ_j) − Σ_j a_j f_β(γ_j),       f_β(x) = k_xβ K_β⁻¹ m_β,

    zero on average and part of every gradient. The steps of a_γ are the smaller for it.
    """

    def kl(self, covariance: Covariance, projection: Projection, q: Whitened) -> Float[Tensor, ""]:
        value, columns = super().kl(covariance, projection, q), projection.columns
        if columns is None:
            return value
        # Ω stands for dR = Ω R: so are the gradients of K_β complete.
        omega, R = projection.factor.omega.double(), projection.factor.R.detach()
        weights = ((q.v + q.v @ omega) @ R).to(self.beta.dtype)
        at_columns = covariance.matvec(self.gamma.index_select(0, columns), self.beta, weights)
        sampled = self.a_gamma.index_select(1, columns).double() * at_columns.double()
        scale = self.gamma.shape[0] / columns.shape[0]
        # Σ_j a_j f_β(γ_j) = uᵀ v
        return value + 0.5 * (scale * sampled.sum() - (projection.u * q.v).sum())
