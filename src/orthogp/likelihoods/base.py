"""The contract of a likelihood: what the bound and the predictions ask of p(y | f)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Real
from torch import Tensor, nn


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a new observation, noise included, for each output and row."""

    mean: Float[Tensor, "c n"]
    variance: Float[Tensor, "c n"]


class Likelihood(nn.Module, ABC):
    """p(y | f) for rows whose latents have independent Gaussian marginals.

    Marginals come latents first, `[c, n]`; targets come as `[n]` for one output or labels and as
    `[n, c]` for several outputs. `expected_log_prob` never waits for the device, so a CUDA graph
    can hold it.
    """

    # True when ∂/∂s of −E log p is never negative, as this class computes it: the natural step
    # on β then keeps its precision positive definite without a guard.
    log_concave: ClassVar[bool]
    # True when q(f) is conjugate to p(y | f): one natural step is exact and needs no warm-up.
    gaussian: ClassVar[bool] = False

    def __init__(self, num_latents: int) -> None:
        super().__init__()
        self.num_latents = num_latents

    @abstractmethod
    def expected_log_prob(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        """E_q(f) log p(y | f) for each row, summed over its outputs."""

    @abstractmethod
    def log_density(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        """log ∫ p(y | f) q(f) df for each row, summed over its outputs."""

    @abstractmethod
    def check_targets(self, y: Real[Tensor, "n *outputs"]) -> None:
        """Raise `DataError` for targets that p(y | f) cannot produce. Waits for the device."""


class RegressionLikelihood(Likelihood):
    """A likelihood whose outputs are numbers, one latent each."""

    @abstractmethod
    def predictive(self, mean: Float[Tensor, "c n"], variance: Float[Tensor, "c n"]) -> Moments:
        """Moments of a new observation, by the law of total variance."""


class ClassificationLikelihood(Likelihood):
    """A likelihood whose outputs are labels 0 … k−1."""

    def __init__(self, num_latents: int, num_classes: int) -> None:
        super().__init__(num_latents)
        self.num_classes = num_classes

    @abstractmethod
    def probabilities(
        self, mean: Float[Tensor, "c n"], variance: Float[Tensor, "c n"]
    ) -> Float[Tensor, "n k"]:
        """∫ p(y = k | f) q(f) df for every class; rows sum to one."""
