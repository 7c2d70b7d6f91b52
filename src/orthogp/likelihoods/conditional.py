"""Any other one-dimensional likelihood of GPyTorch."""

import math

import torch
from gpytorch.likelihoods import _OneDimensionalLikelihood
from jaxtyping import Float, Real
from torch import Tensor

from orthogp.errors import ConfigurationError, DataError
from orthogp.likelihoods.quantiles import Support
from orthogp.likelihoods.targets import require_numbers
from orthogp.likelihoods.warped import OneDimensional


class Conditional(OneDimensional):
    """Any other one-dimensional GPyTorch likelihood, through the distribution it returns.

    That distribution may validate its arguments, so `expected_log_prob` may wait for the device.
    """

    log_concave = False

    def __init__(
        self,
        num_latents: int,
        likelihood: _OneDimensionalLikelihood,
        num_nodes: int = 20,
        num_density_nodes: int = 100,
    ) -> None:
        super().__init__(num_latents, num_nodes, num_density_nodes)
        self.likelihood = likelihood

    def conditional_log_prob(
        self, y: Real[Tensor, "c n"], f: Float[Tensor, "q c n"]
    ) -> Float[Tensor, "q c n"]:
        return self.likelihood(f).log_prob(y)

    def conditional_moments(
        self, f: Float[Tensor, "q c n"]
    ) -> tuple[Float[Tensor, "q c n"], Float[Tensor, "q c n"]]:
        conditional = self.likelihood(f)
        return conditional.mean, conditional.variance

    def conditional_cdf(
        self, y: Real[Tensor, "c n"], f: Float[Tensor, "q c n"]
    ) -> Float[Tensor, "q c n"]:
        conditional = self.likelihood(f)
        inside = y.clamp_min(self.support().low)
        try:
            below = conditional.cdf(inside)
        except NotImplementedError:
            raise ConfigurationError(
                f"{type(self.likelihood).__name__} gives a {type(conditional).__name__} without a "
                "cdf, which intervals and quantiles need"
            ) from None
        return torch.where(y < inside, 0, below)

    def support(self) -> Support:
        constraint = self.likelihood(torch.zeros(1)).support
        low = float(getattr(constraint, "lower_bound", -math.inf))
        high = float(getattr(constraint, "upper_bound", math.inf))
        return Support(low, high, constraint.is_discrete)

    def check_targets(self, y: Real[Tensor, "n *outputs"]) -> None:
        require_numbers(y, self.num_latents)
        support = self.likelihood(torch.zeros(1, device=y.device)).support
        if not support.check(y).all():
            raise DataError(f"y has values that {type(self.likelihood).__name__} cannot produce")
