"""The rows near x for any likelihood: what they say beyond the posterior of the basis.

In a variational posterior every row n has a site: a Gaussian factor in the latents f_n that points
from their mean along g_n = ∂/∂m E_q log p(y_n | f_n). If all sites share the precision 1/σ², that
of row n has its centre at σ² g_n from the mean. A residual process with a kernel of its own, which
is observed at those centres with the noise σ², corrects the mean of the basis at x by what the k
rows nearest to x say of it:

    m′(x) = m(x) + k_xN (K_NN + σ² I)⁻¹ σ² g_N

The variance stays that of the basis. Because the precision is shared, one factorisation serves all
latents. For Gaussian noise g_n = (y_n − m_n) / σ², so that σ² g_n is the residual of the row.
"""

from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor, nn

from orthogp.kernel.covariance import Covariance
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.near_rows import NearPredictor
from orthogp.posterior.neighbors import canonical_order
from orthogp.posterior.observations import MergedRows, Observations
from orthogp.posterior.predictor import Predictor
from orthogp.posterior.stored_rows import StoredPredictor


@dataclass(frozen=True)
class SitePredictor:
    """The posterior of a basis, with a mean that is corrected by the sites of the near rows."""

    base: Predictor
    correction: NearPredictor

    @property
    def device(self) -> torch.device:
        return self.base.device

    def marginals(
        self, x: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
        mean, variance = self.base.marginals(x)
        return mean + self.correction.marginals(x)[0], variance

    def full_covariance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "c n n"]:
        return self.base.full_covariance(x)


AnyPredictor = Predictor | NearPredictor | SitePredictor | StoredPredictor


class SiteRows(nn.Module):
    """Rows whose sites correct the mean of a model, with the kernel of the residual process.

    `residual` are the centres of the sites less the mean of the basis: their gradients g_n times
    `weight`. `noise` is σ², and `count` is how many rows near x correct a prediction.
    """

    x: Tensor
    residual: Tensor
    noise: Tensor
    weight: Tensor

    def __init__(
        self,
        x: Float[Tensor, "n d"],
        residual: Float[Tensor, "c n"],
        noise: float,
        weight: float,
        kernel: Kernel,
        count: int,
    ):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("residual", residual.to(x.dtype))
        for name, value in (("noise", noise), ("weight", weight)):
            number = torch.tensor(value, dtype=torch.float64, device=x.device)
            self.register_buffer(name, number)
        self.kernel, self.count = kernel, count

    def extra_repr(self) -> str:
        return f"{len(self.x)} rows, {self.count} near"

    @torch.no_grad()
    def joined(self, more: "SiteRows") -> "SiteRows":
        """These rows with more of the same residual process."""
        x, residual = (
            torch.cat([old.to(new), new], dim=dim)
            for old, new, dim in ((self.x, more.x, 0), (self.residual, more.residual, 1))
        )
        order = canonical_order(x, residual)
        numbers = float(more.noise), float(more.weight)
        return SiteRows(x[order], residual[:, order], *numbers, more.kernel, more.count)

    def correction(self) -> NearPredictor:
        noise = self.noise.expand(1, len(self.x))
        rows = Observations(self.x, self.residual.double(), noise)
        merged = MergedRows.of_ordered(rows)
        return near_predictor(Covariance(self.kernel), merged, self.count, features=None)
