"""The default kernel of the model for BoTorch: with a prior that knows the number of inputs.

In d dimensions points of the unit cube are about √d apart. With a few hundred rows in tens of
dimensions the evidence alone does not keep lengthscales from being much shorter, and the model then
knows nothing of what is between the rows. As in BoTorch's own models (Hvarfner, Hellsten and Nardi,
2024) the logarithm of a lengthscale, in units of the unit cube, is normal with mean √2 + ½ log d
and variance 3.
"""

import math

from gpytorch.kernels import Kernel
from gpytorch.priors import LogNormalPrior

from orthogp.model import default_kernel

# The side of a cube in which points have unit standard deviation.
SIDE = math.sqrt(12.0)


def kernel_with_prior(num_inputs: int, ard: bool) -> Kernel:
    """Of inputs in units of their standard deviation."""
    kernel = default_kernel(num_inputs, ard)
    mean = math.sqrt(2.0) + 0.5 * math.log(num_inputs) + math.log(SIDE)
    for part in kernel.kernels:  # pyright: ignore
        prior = LogNormalPrior(mean, math.sqrt(3.0))
        part.base_kernel.register_prior("lengthscale_prior", prior, "lengthscale")
    return kernel
