"""How good a model is on rows it has not seen, in the units of the paper's tables."""

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogp.likelihoods import ClassificationLikelihood, RegressionLikelihood
from orthogp.model import VariationalGP
from orthogp.posterior import marginals
from orthogp.training import Rows
from orthogp.training.evaluate import bound_rows

INTERVAL = 0.9
HALF_WIDTH = NormalDist().inv_cdf((1 + INTERVAL) / 2)
# What a class that no training row has is given, so that its log is finite.
SMALLEST_PROBABILITY = 1e-15

Array = NDArray[Any]


@torch.no_grad()
def model_metrics(model: VariationalGP, rows: Rows) -> dict[str, float]:
    """Test metrics of a torch model, in chunks of rows."""
    likelihood, count = model.likelihood, len(rows)
    totals: dict[str, float] = {}

    def add(name: str, values: Tensor) -> None:
        totals[name] = totals.get(name, 0.0) + float(values.double().sum()) / count

    for y, mean, variance in _latents(model, rows):
        add("log_likelihood", likelihood.log_density(y, mean, variance))
        if isinstance(likelihood, ClassificationLikelihood):
            hit = likelihood.probabilities(mean, variance).argmax(1) == y
            add("accuracy", 100.0 * hit)
        else:
            assert isinstance(likelihood, RegressionLikelihood)
            moments = likelihood.predictive(mean, variance)
            error = y - moments.mean[0]
            add("rmse", error.square())
            add("coverage", 100.0 * (error.abs() <= HALF_WIDTH * moments.variance[0].sqrt()))
    if "rmse" in totals:
        totals["rmse"] = math.sqrt(totals["rmse"])
    return totals


def _latents(model: VariationalGP, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Targets, latent means and variances, without the work that condensing a predictor takes."""
    basis, device = model.basis, model.basis.beta.device
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    for part in rows.chunks(bound_rows(model.basis)):
        part = part.to(device, torch.float64)
        p = basis.project(model.covariance, factor, part.x)
        mean, variance = marginals(p, basis.coefficients(p))
        yield part.y, mean + model.prior_mean(part.x), variance


def regression_metrics(
    y: Array, mean: Array, log_density: Array, low: Array, high: Array
) -> dict[str, float]:
    return {
        "log_likelihood": float(log_density.mean()),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "coverage": float(100.0 * np.mean((low <= y) & (y <= high))),
    }


def classification_metrics(y: Array, classes: Array, probabilities: Array) -> dict[str, float]:
    """From probabilities of the classes that training saw; any other class gets next to none."""
    full = np.full((len(y), int(max(y.max(), classes.max())) + 1), SMALLEST_PROBABILITY)
    full[:, classes] = np.maximum(probabilities, SMALLEST_PROBABILITY)
    chosen = full[np.arange(len(y)), y]
    return {
        "log_likelihood": float(np.log(chosen).mean()),
        "accuracy": float(100.0 * np.mean(full.argmax(1) == y)),
    }
