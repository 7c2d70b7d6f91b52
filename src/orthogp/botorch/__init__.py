"""A model for BoTorch, which is an extra: `pip install 'orthogp[botorch]'`."""

try:
    import botorch as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "orthogp.botorch needs BoTorch 0.17 or later: pip install 'orthogp[botorch]'"
    ) from error

from orthogp.botorch.model import OrthogonalGPModel, SampledFunctions
from orthogp.botorch.paths import FunctionPath

__all__ = ["FunctionPath", "OrthogonalGPModel", "SampledFunctions"]
