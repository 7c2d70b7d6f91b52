"""The estimators of orthogp, with nothing set."""

from collections.abc import Sequence

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.apps.accuracy.metrics import INTERVAL_LEVELS
from orthogp.apps.accuracy.models.contract import FittedModel, Problem
from orthogp.apps.accuracy.predictive import Array, ClassProbabilities, FunctionsPredictive


def fit_orthogp(problem: Problem) -> FittedModel:
    if problem.regression:
        gp = OrthogonalGPRegressor(device=problem.device, random_state=problem.seed)
        gp.fit(problem.x, problem.y)
        return FittedModel(lambda x: _numbers(gp, x), _settings(gp))
    classifier = OrthogonalGPClassifier(device=problem.device, random_state=problem.seed)
    classifier.fit(problem.x, problem.y)
    return FittedModel(
        lambda x: ClassProbabilities(classifier.classes_, classifier.predict_proba(x)),
        _settings(classifier),
    )


def _settings(gp: OrthogonalGPRegressor | OrthogonalGPClassifier) -> dict[str, str | int]:
    return {"estimator": type(gp).__name__, "steps": gp.n_iter_}


def _numbers(gp: OrthogonalGPRegressor, x: Array) -> FunctionsPredictive:
    """Mean and 90 % interval in one pass over the rows; other quantiles in one of their own."""
    mean, _, interval = gp.predict_summary(x, INTERVAL_LEVELS)

    def quantiles(levels: Sequence[float]) -> Array:
        if tuple(levels) == INTERVAL_LEVELS:
            return interval
        return gp.predict_quantiles(x, levels)

    return FunctionsPredictive(mean, lambda y: gp.log_density(x, y), quantiles)
