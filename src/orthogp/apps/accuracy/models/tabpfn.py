"""TabPFN: a network that has been trained on made tables and reads the training rows at once.

Its package downloads the weights at the first fit, after their licence has been accepted.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from orthogp.apps.accuracy.models.contract import FittedModel, Problem
from orthogp.apps.accuracy.predictive import Array, ClassProbabilities, FunctionsPredictive
from orthogp.errors import ConfigurationError

# Parts of what its versions have called a failure to obtain the weights.
ABOUT_WEIGHTS = ("download", "huggingface", "license", "gated", "checkpoint", "weights")


def fit_tabpfn(problem: Problem) -> FittedModel:
    tabpfn = import_module("tabpfn")

    kind = tabpfn.TabPFNRegressor if problem.regression else tabpfn.TabPFNClassifier
    model = kind(device=problem.device, random_state=problem.seed)
    try:
        model.fit(problem.x, problem.y)
    except Exception as error:
        if not _about_weights(error):
            raise
        raise ConfigurationError(
            "TabPFN's weights are not on this machine and could not be downloaded: accept their "
            "licence and download them as the package's documentation says, then run again"
        ) from error
    settings = {"estimator": kind.__name__}
    if problem.regression:
        return FittedModel(lambda x: _numbers(model, x), settings)
    return FittedModel(
        lambda x: ClassProbabilities(
            np.asarray(model.classes_), np.asarray(model.predict_proba(x), np.float64)
        ),
        settings,
    )


def _about_weights(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return any(part in text for part in ABOUT_WEIGHTS)


def _numbers(model: Any, x: Array) -> FunctionsPredictive:
    """The histogram that the network predicts: `criterion` is its density, `logits` [n, bars]."""
    found = model.predict(x, output_type="full")
    criterion, logits = found["criterion"], found["logits"]

    def log_density(y: Array) -> Array:
        target = torch.as_tensor(y, dtype=logits.dtype, device=logits.device)
        return -criterion(logits, target).double().cpu().numpy()

    def quantiles(levels: Sequence[float]) -> Array:
        at_levels = [criterion.icdf(logits, float(level)) for level in levels]
        return torch.stack(at_levels, dim=-1).double().cpu().numpy()

    return FunctionsPredictive(np.asarray(found["mean"], np.float64), log_density, quantiles)
