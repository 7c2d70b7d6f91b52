"""Latents of classes, made as sure as held-out labels say they should be."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.estimators.calibration.search import SMALLEST_SAMPLE, minimised, pays, scales
from orthogp.likelihoods import ClassificationLikelihood

# Numbers of latents that one look at the sample takes.
MOST_LATENTS = 2**16
# A priori the logarithm of a scale has this spread about zero: a hundred labels without a mistake
# would else ask for any certainty.
PRIOR_SPREAD = 0.5


class LatentScales(NamedTuple):
    """τ m and κ s in place of the latents' means and variances."""

    mean: float = 1.0
    variance: float = 1.0

    def __call__(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean * mean, self.variance * variance


@torch.no_grad()
def fit_latent_scales(
    likelihood: ClassificationLikelihood,
    y: Int[Tensor, " n"],
    mean: Float[Tensor, "c n"],
    variance: Float[Tensor, "c n"],
) -> LatentScales:
    """The most probable τ and κ, each within e^±4; (1, 1) unless they gain enough."""
    count = min(mean.shape[1], max(SMALLEST_SAMPLE, MOST_LATENTS // mean.shape[0]))
    y, mean, variance = y[:count].to(mean.device), mean[:, :count], variance[:, :count]
    if count < SMALLEST_SAMPLE:
        return LatentScales()

    def loss(logs: Tensor) -> Tensor:
        found = scales(logs)
        density = likelihood.log_density(y, found[0] * mean, found[1] * variance).mean()
        return 0.5 * (logs / PRIOR_SPREAD).square().sum() / count - density

    logs = minimised(loss, [0.0, 0.0])
    gain = loss(torch.zeros_like(logs)) - loss(logs)
    return LatentScales(*scales(logs).tolist()) if pays(gain, count, 2) else LatentScales()
