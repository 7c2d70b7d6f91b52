"""How far the values of a column typically lie apart, which its standard deviation need not say.

A column with a few large values, such as a sum of money that is zero for most, has nearly all of
its values within a small part of its standard deviation. Lengthscales that start there find what
happens between them; those that start at the standard deviation may never do.
"""

import math
from collections.abc import Mapping
from typing import Any

from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from orthogp.estimators.defaults import MOST_ROWS_STARTED
from orthogp.model import default_kernel

# Columns with no more values than these are codes, whose distances say nothing.
MOST_CODES = 10
ROWS = 10_000


def starting_kernel(
    settings: Mapping[str, Any], x: Float[Tensor, "n d"], num_rows: int, variance: float
) -> Kernel:
    """The default kernel for `num_rows` rows, these among them."""
    # In a short run they would not get far from where they start.
    moves = settings["train_hyperparameters"] and num_rows > MOST_ROWS_STARTED
    spread = typical_spread(x) if settings["ard"] and moves else None
    return default_kernel(x.shape[1], settings["ard"], variance, spread)


def typical_spread(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The mean distance of a column's values from their median as a share of a normal column's."""
    some = x[:: max(1, len(x) // ROWS)].double()
    distance = (some - some.median(0).values).abs().mean(0)
    # √(2/π) is what a standard normal column has.
    share = distance / (some.std(0) * math.sqrt(2 / math.pi))
    for column, values in enumerate(some.mT):
        if len(values.unique()) <= MOST_CODES:
            share[column] = 1.0
    return share.clamp_max(1.0).to(x.dtype)
