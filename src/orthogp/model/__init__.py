"""Kernel + mean + likelihood + posterior: the bound on a batch, predictions, priors."""

from orthogp.model.build import (
    DEFAULT_JITTER,
    build_basis,
    chosen_jitter,
    default_kernel,
    require_evaluable,
)
from orthogp.model.gp import Bound, VariationalGP

__all__ = [
    "DEFAULT_JITTER",
    "Bound",
    "VariationalGP",
    "build_basis",
    "chosen_jitter",
    "default_kernel",
    "require_evaluable",
]
