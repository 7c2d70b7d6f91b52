"""The contract of a likelihood: what the bound and the predictions ask of p(y | f)."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from gpytorch.likelihoods import Likelihood as GPyTorchLikelihood
from jaxtyping import Float
from torch import Tensor, nn

from orthogp.errors import ConfigurationError
from orthogp.likelihoods.quantiles import Support, invert
from orthogp.likelihoods.targets import Latents, Outputs, PerRow, RowTargets, latents_first

# Mean and variance of the latents ↦ the expected log-likelihood of each row.
Expectation = Callable[[Tensor, Tensor], Tensor]
# Draws set torch's global generator and restore it: one thread at a time.
_GENERATOR_LOCK = threading.Lock()


@dataclass(frozen=True)
class PredictiveMoments:
    """Mean and variance of a new observation, noise included, for each output and row."""

    mean: Latents
    variance: Latents


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
    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        """E_q(f) log p(y | f) for each row, summed over its outputs."""

    def expectation(self, y: RowTargets, dtype: torch.dtype) -> Expectation:
        """`expected_log_prob` of y, after what takes no marginals; those will have this dtype."""
        return partial(self.expected_log_prob, y)

    @abstractmethod
    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        """log ∫ p(y | f) q(f) df for each row, summed over its outputs."""

    @abstractmethod
    def check_targets(self, y: RowTargets) -> None:
        """Raise `DataError` for targets that p(y | f) cannot produce. Waits for the device."""


class RegressionLikelihood(Likelihood):
    """A likelihood whose outputs are numbers, one latent each."""

    # True when y − f has a distribution of its own, whatever f: y may be shifted and scaled.
    location: ClassVar[bool] = False

    @abstractmethod
    def predictive(self, mean: Latents, variance: Latents) -> PredictiveMoments:
        """Moments of a new observation, by the law of total variance."""

    @abstractmethod
    def cumulative(self, y: Outputs, mean: Latents, variance: Latents) -> Latents:
        """∫ P(Y ≤ y | f) q(f) df, elementwise, for y in the layout of the marginals."""

    def support(self) -> Support:
        """Where y lies, whatever f."""
        return Support()

    def starting_prior(self, y: RowTargets) -> tuple[float, float]:
        """Mean and variance of a latent that can produce targets like y, before any training."""
        return 0.0, 1.0

    def cdf(self, y: RowTargets, mean: Latents, variance: Latents) -> Float[Tensor, "n *outputs"]:
        """∫ P(Y ≤ y | f) q(f) df for each output, in the layout of y."""
        below = self.cumulative(latents_first(y), mean, variance)
        return below[0] if y.ndim == 1 else below.mT

    def quantiles(
        self, levels: Float[Tensor, "q *outputs"], mean: Latents, variance: Latents
    ) -> Float[Tensor, "q c n"]:
        """The smallest y with cdf ≥ level, for levels `[q]` shared or `[q, c]` of each output."""
        moments = self.predictive(mean, variance)
        spread = moments.variance.sqrt()

        def below(y: Latents) -> Latents:
            return self.cumulative(y, mean, variance)

        # A level at a time: a cdf by quadrature holds many numbers a row.
        found = [
            invert(below, level.reshape(-1, 1), moments.mean, spread, self.support())
            for level in levels.to(mean)
        ]
        return torch.stack(found)

    def sample(
        self, f: Float[Tensor, "s c n"], generator: torch.Generator
    ) -> Float[Tensor, "s c n"]:
        """One y for each draw of the latents."""
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        # torch.distributions take no generator: the global one is seeded, and restored afterwards.
        with _GENERATOR_LOCK, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(int(seed))
            return self.get_submodule("likelihood")(f).sample().to(f)


class ClassificationLikelihood(Likelihood):
    """A likelihood whose outputs are labels 0 … k−1."""

    def __init__(self, num_latents: int, num_classes: int) -> None:
        super().__init__(num_latents)
        self.num_classes = num_classes

    @abstractmethod
    def probabilities(self, mean: Latents, variance: Latents) -> Float[Tensor, "n k"]:
        """∫ p(y = k | f) q(f) df for every class; rows sum to one."""


def batch_shape(num_latents: int) -> torch.Size:
    """The GPyTorch batch shape that gives each output parameters of its own."""
    return torch.Size([]) if num_latents == 1 else torch.Size([num_latents])


def require_broadcast(likelihood: GPyTorchLikelihood, num_latents: int) -> None:
    """Refuse parameters that are neither shared, `[1]`, nor one an output, `[c, 1]`."""
    for name, parameter in likelihood.named_parameters():
        if tuple(parameter.shape) not in {(), (1,), (1, 1), (num_latents, 1)}:
            raise ConfigurationError(
                f"{type(likelihood).__name__}.{name} has shape {tuple(parameter.shape)} but there "
                f"are {num_latents} output(s); build it with batch_shape [] or [{num_latents}]"
            )
