"""Estimators in the manner of scikit-learn."""

from orthogp.estimators.classifier import OrthogonalGPClassifier
from orthogp.estimators.regressor import OrthogonalGPRegressor

__all__ = ["OrthogonalGPClassifier", "OrthogonalGPRegressor"]
