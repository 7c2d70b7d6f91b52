"""A fit with near rows of a table that no memory holds, for Gaussian noise.

Hyperparameters are learned from a sample of the rows. With the lengthscales found all rows are
written to a folder, in cells of neighbours, in one pass; hyperparameters are then learned further
from rows at their true density, some rows and all that are near them. Calibration is by rows that
are held out.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gpytorch.means import Mean

from orthogp.errors import ConfigurationError
from orthogp.estimators.intake import FitData
from orthogp.estimators.near_fit import Calibrate, NearFit, calibration_of, log_densities
from orthogp.estimators.near_rows import (
    LEARNING_SHARE,
    choose_inducing_points,
    in_canonical_order,
    near_model,
    search_run,
    starting_hyperparameters,
)
from orthogp.estimators.near_settings import NearSettings, checked_config
from orthogp.estimators.start import given_points
from orthogp.execution.urls import RemotePath, locate
from orthogp.likelihoods import Likelihood
from orthogp.posterior.row_store import RowStore, remove_store
from orthogp.training import Stream
from orthogp.training.every_row import Conditioned, LeftOut
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.predictive import learn_to_predict
from orthogp.training.rows_on_disk import condition_on_store, neighbourhoods, write_rows

# w of every near row is computed for each prediction: so many β double its time.
MOST_INDUCING = 128


def fit_on_disk(
    settings: Mapping[str, Any],
    data: FitData,
    prior: tuple[Likelihood, Mean | None, float],
    near: NearSettings,
    calibrate: Calibrate,
    device: torch.device,
    generator: torch.Generator,
) -> NearFit:
    """A model whose near rows are those of `settings["rows_dir"]`, which this writes."""
    config = checked_config(settings, data)
    folder = _local_folder(settings["rows_dir"])
    deadline = time.monotonic() + (math.inf if config.max_time is None else config.max_time)
    stream, sample = data.train, in_canonical_order(data.sample)
    assert isinstance(stream, Stream)
    found = starting_hyperparameters(settings, data, prior, sample, device)
    learns = settings["train_hyperparameters"] and bool(found.parameters)
    most = None if settings["max_steps"] is None else config.max_steps
    run, steps = search_run(settings, found, sample, most, generator), 0

    def limit() -> float:
        now = time.monotonic()
        return now + LEARNING_SHARE * (deadline - now)

    if learns:
        with run.reported():
            learned = learn_to_predict(
                found, sample, generator, limit(), most, run.report, checkpoint=run
            )
            steps, run.reason = learned.steps, "interrupt" if learned.interrupted else "steps"

    def scale() -> torch.Tensor:
        with torch.no_grad():
            return found.covariance.relevance(sample.x[:1].to(device)).sqrt()

    began = time.monotonic()
    store = write_rows(folder, stream, sample, scale())
    try:
        if learns and run.reason != "interrupt":
            order = torch.randperm(len(sample), generator=generator)
            rows, centres = neighbourhoods(
                store, sample.x[order], scale(), single=sample.y.ndim == 1
            )
            left = None if most is None else max(0, most - steps)
            steps += learn_to_predict(found, rows, generator, limit(), left, centres=centres).steps
        best = _best_on_store(settings, data, prior[1], found, near, calibrate, store, generator)
        calibration = calibration_of(best.model, best.left_out, calibrate)
    except BaseException:
        remove_store(folder)
        raise
    return NearFit(
        best.model, best.predictor, best.left_out, calibration, tuple(run.history), steps,
        time.monotonic() - began,
    )  # fmt: skip


def _local_folder(name: str | Path) -> Path:
    folder = locate(name)
    if isinstance(folder, RemotePath):
        raise ConfigurationError(f"rows_dir is {folder}; predictions need a folder of this machine")
    return folder.resolve()


def _best_on_store(
    settings: Mapping[str, Any],
    data: FitData,
    mean: Mean | None,
    found: Hyperparameters,
    near: NearSettings,
    calibrate: Calibrate,
    store: RowStore,
    generator: torch.Generator,
) -> Conditioned:
    """The model with these hyperparameters that predicts held-out rows best from those stored."""
    sample, held_out = in_canonical_order(data.sample), data.held_out
    assert held_out is not None
    beta = given_points(settings, "inducing_points", data.units.inputs)
    if beta is None:
        beta = choose_inducing_points(settings, sample, found.covariance, MOST_INDUCING, generator)
    model = near_model(settings, found.covariance.kernel, found.likelihood, mean, beta)

    def score(left_out: LeftOut) -> float:
        calibration = calibration_of(model, left_out, calibrate)
        return float(log_densities(model, left_out, calibration).mean())

    return condition_on_store(model, sample, store, near.counts, held_out, score)
