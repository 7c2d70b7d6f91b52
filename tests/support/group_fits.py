"""Estimators in an initialised group: what each process ends with."""

from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import DataError
from orthogp.estimators import streamed
from orthogp.sources import ArrayTable

SMALL: dict[str, Any] = {
    "n_neighbors": 0, "n_inducing": 10, "n_residual": 15, "max_steps": 20, "batch_size": 64,
    "device": "cpu", "dtype": "float64",
}  # fmt: skip
ROWS = 600


def table(rows: int = ROWS):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3)) * [1.0, 20.0, 0.1] + 5
    return X, np.sin(X[:, 0]) + 0.1 * X[:, 1] + 0.1 * rng.normal(size=rows)


def seeded_fits() -> dict[str, Any]:
    X, y = table()
    labels = np.where(y > np.median(y), "high", "low")
    settings: dict[str, Any] = SMALL | {"random_state": 0}
    return {
        "regressor": OrthogonalGPRegressor(**settings).fit(X, y),
        "stopped": OrthogonalGPRegressor(**settings, early_stopping=True).fit(X, y),
        "classifier": OrthogonalGPClassifier(**settings).fit(X, labels),
        # With all columns of the KL, γ in parts and in one piece have the same bound.
        "sharded": OrthogonalGPRegressor(**settings, kl_columns=None, shard_residual=True).fit(
            X, y
        ),
        "streamed": streamed_fit(settings),
    }


def streamed_fit(settings: dict[str, Any]) -> OrthogonalGPRegressor:
    X, y = table()
    before, streamed.LOADED_BYTES = streamed.LOADED_BYTES, 0
    try:
        return OrthogonalGPRegressor(**settings).fit(ArrayTable(X, y))
    finally:
        streamed.LOADED_BYTES = before


def unseeded_fits() -> dict[str, Any]:
    """By chance, and by the clock: what remains of the time moves the rates."""
    return {"regressor": OrthogonalGPRegressor(**SMALL, max_time=60.0).fit(*table())}


def contents(estimator) -> dict:
    """Every number of a fitted estimator; times are left out."""
    meta, tensors = estimator._state()
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in meta["history"]]
    state = {f"model.{name}": value for name, value in estimator.model_.state_dict().items()}
    figures = {"elbo": meta["elbo"], "steps": meta["n_iter"], "history": history}
    return figures | state | tensors


def refusal() -> str:
    X, y = table()
    X[:, 0] += dist.get_rank()
    try:
        OrthogonalGPRegressor(**SMALL).fit(X, y)
    except DataError as error:
        return str(error)
    return ""


def all_fits(folder: Path) -> dict[str, Any]:
    seeded, unseeded = seeded_fits(), unseeded_fits()
    for name, estimator in seeded.items():
        estimator.save(folder / f"{name}.orthogp")
    return {"seeded": {k: contents(e) for k, e in seeded.items()},
            "unseeded": {k: contents(e) for k, e in unseeded.items()},
            "refusal": refusal()}  # fmt: skip
