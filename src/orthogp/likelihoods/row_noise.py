"""Noise that differs from row to row, by a likelihood whose noise does not.

Where the noise of a row has r times the variance of the likelihood's, y/√r has the likelihood's own
about f/√r, whose mean is m/√r and whose variance is s/r. Densities of y are those of y/√r over √r.
"""

from jaxtyping import Float
from torch import Tensor

from orthogp.likelihoods.targets import Latents, PerRow, RowTargets, latents_first

# r of every row, of all outputs alike or of each.
NoiseScale = Float[Tensor, "#c n"]


def with_unit_scale(
    scale: NoiseScale, y: RowTargets, mean: Latents, variance: Latents
) -> tuple[RowTargets, Latents, Latents]:
    """Targets y/√r, in their layout, and the moments of f/√r."""
    root = scale.sqrt()
    divided = latents_first(y) / root.to(y)
    return divided[0] if y.ndim == 1 else divided.mT, mean / root, variance / scale


def log_jacobian(scale: NoiseScale, num_outputs: int) -> PerRow:
    """log |∂(y/√r) / ∂y| of every row, its outputs together."""
    return -0.5 * scale.log().expand(num_outputs, -1).sum(0)
