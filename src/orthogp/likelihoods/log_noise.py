"""The likelihood of a latent function that is the logarithm of a noise variance."""

import math

import torch
from torch import Tensor

from orthogp.likelihoods.base import Likelihood
from orthogp.likelihoods.quadrature import GaussHermite
from orthogp.likelihoods.targets import (
    Latents,
    PerRow,
    RowTargets,
    latents_first,
    require_not_negative,
)

NODES = 20


class LogNoise(Likelihood):
    """log N(ε; 0, e^g) of noise ε whose squares, or their expectations, are the targets.

    E log N = −½ (log 2π + m + ε² e^{−m + s/2}), so that −∂/∂s = ¼ ε² e^{−m + s/2} ≥ 0.
    """

    log_concave = True

    def __init__(self, num_latents: int = 1) -> None:
        super().__init__(num_latents)
        self.quadrature = GaussHermite(NODES)

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        ratio = latents_first(y) * (0.5 * variance - mean).exp()
        return -0.5 * (math.log(2 * math.pi) + mean + ratio).sum(0)

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        g: Tensor = self.quadrature.points(mean, variance)
        values = -0.5 * (math.log(2 * math.pi) + g + latents_first(y) * torch.exp(-g))
        return self.quadrature.log_expectation(values).sum(0)

    def check_targets(self, y: RowTargets) -> None:
        require_not_negative(y, self.num_latents)
