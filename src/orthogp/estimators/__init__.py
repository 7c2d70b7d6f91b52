"""Estimators in the manner of scikit-learn."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthogp.estimators.classifier import OrthogonalGPClassifier
    from orthogp.estimators.regressor import OrthogonalGPRegressor

__all__ = ["OrthogonalGPClassifier", "OrthogonalGPRegressor"]


def __getattr__(name: str) -> Any:
    # Imported when first asked for: `settings` is for those who have no use for torch.
    if name == "OrthogonalGPClassifier":
        from orthogp.estimators.classifier import OrthogonalGPClassifier

        return OrthogonalGPClassifier
    if name == "OrthogonalGPRegressor":
        from orthogp.estimators.regressor import OrthogonalGPRegressor

        return OrthogonalGPRegressor
    raise AttributeError(f"module 'orthogp.estimators' has no attribute {name!r}")
