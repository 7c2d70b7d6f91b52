"""RealMLP and TabM from pytabkit, with their tuned defaults; the best epoch on held-out rows.

Both predict a mean: its density and intervals come from the residuals of the held-out rows.
"""

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from orthogp.apps.accuracy.models.contract import FittedModel, Problem, hold_out
from orthogp.apps.accuracy.predictive import Array, ClassProbabilities, HeldOutPredictive


def fit_network(name: str, problem: Problem) -> FittedModel:
    """`name` is that of pytabkit's classes without their last part: RealMLP_TD, TabM_D."""
    pytabkit = import_module("pytabkit")

    kind = f"{name}_{'Regressor' if problem.regression else 'Classifier'}"
    split = hold_out(problem)
    model: Any = getattr(pytabkit, kind)(
        device=problem.device, random_state=problem.seed, n_threads=problem.threads
    )
    with quiet_lightning():
        model.fit(_single(split.x), split.y, X_val=_single(split.x_held), y_val=split.y_held)
    settings = {"estimator": kind, "held_out_rows": len(split.y_held), "threads": problem.threads}
    if not problem.regression:
        classes = np.asarray(model.classes_)

        def probabilities(x: Array) -> ClassProbabilities:
            with quiet_lightning():
                found = np.asarray(model.predict_proba(_single(x)), dtype=np.float64)
            return ClassProbabilities(classes, found)

        return FittedModel(probabilities, settings)

    def mean(x: Array) -> Array:
        with quiet_lightning():
            return np.asarray(model.predict(_single(x)), dtype=np.float64)

    residuals = split.y_held - mean(split.x_held)
    return FittedModel(lambda x: HeldOutPredictive(mean(x), residuals), settings)


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without the lines that PyTorch Lightning logs about devices at every fit and prediction."""
    logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _single(x: Array) -> Any:
    return x.astype(np.float32)


fit_realmlp, fit_tabm = partial(fit_network, "RealMLP_TD"), partial(fit_network, "TabM_D")
