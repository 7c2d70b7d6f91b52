"""What the bases share: points, their covariance, and the projection of rows on them.

A basis says how ν and S̃ come from its own parameters; that is all in which they differ.
"""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from orthogp.errors import ConfigurationError
from orthogp.kernel.covariance import Covariance
from orthogp.linalg import Factor, factorise, factorise_robustly
from orthogp.posterior.gaussian import Whitened
from orthogp.posterior.projection import Projection
from orthogp.posterior.shards import Shards


class Basis(nn.Module, ABC):
    """β, γ and a_γ; a subclass adds its parametrisation of (ν, S̃). Starts at the prior."""

    # Set while several processes hold γ between them.
    shards: Shards | None = None

    def __init__(self, beta: Float[Tensor, "b d"], gamma: Float[Tensor, "g d"], num_latents: int):
        super().__init__()
        if beta.shape[0] == 0:
            raise ConfigurationError("at least one inducing point is needed; β is empty")
        self.beta = nn.Parameter(beta.detach().clone())
        self.gamma = nn.Parameter(gamma.detach().to(beta).clone())
        self.a_gamma = nn.Parameter(beta.new_zeros(num_latents, gamma.shape[0]))

    @property
    def num_latents(self) -> int:
        return self.a_gamma.shape[0]

    @abstractmethod
    def coefficients(self, projection: Projection) -> Whitened:
        """(ν, S̃) from this basis's own parameters."""

    def covariance_at_beta(self, covariance: Covariance) -> Float[Tensor, "b b"]:
        """K_β, in float64."""
        return covariance.symmetric_block(_view(self.beta.double()))

    def factor(self, covariance: Covariance, jitter: float, robust: bool) -> Factor:
        """The factor of K_β + εI, evaluated and factorised in float64.

        `robust` escalates the jitter as needed, reading the outcome on the host; without it there
        is one attempt, whose outcome is in `failed`.
        """
        K_b = self.covariance_at_beta(covariance)
        return (factorise_robustly if robust else factorise)(K_b, jitter, self.beta.dtype)

    def project(
        self,
        covariance: Covariance,
        factor: Factor,
        x: Float[Tensor, "n d"],
        columns: Int[Tensor, " k"] | None = None,
    ) -> Projection:
        """The projection at x, in the dtype of x; `columns` are the γ that estimate the KL."""
        beta, gamma, a_gamma = (_view(t.to(x.dtype)) for t in (self.beta, self.gamma, self.a_gamma))
        points = beta, gamma, a_gamma
        return Projection(covariance, factor, points, x, columns, self.shards)


def _view(parameter: Tensor) -> Tensor:
    """Where its gradients add up before they reach the parameter."""
    return parameter.view_as(parameter)
