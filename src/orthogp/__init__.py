"""Orthogonally decoupled variational Gaussian processes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orthogp.errors import OrthogpError

if TYPE_CHECKING:
    from orthogp.estimators import OrthogonalGPClassifier, OrthogonalGPRegressor
    from orthogp.strategy import OrthogonalVariationalStrategy

__version__ = "0.2.0"

# Imported when first asked for: a GPyTorch user needs no scikit-learn, and the reverse.
_WHERE = {
    "OrthogonalGPClassifier": "orthogp.estimators",
    "OrthogonalGPRegressor": "orthogp.estimators",
    "OrthogonalVariationalStrategy": "orthogp.strategy",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'orthogp' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])


__all__ = [
    "OrthogonalGPClassifier",
    "OrthogonalGPRegressor",
    "OrthogonalVariationalStrategy",
    "OrthogpError",
]
