"""Fits to shards: what each process of a group passes, and the same in a process with all rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

from group_fits import contents
from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor, training
from orthogp.apps.tabular.model import TableModel
from orthogp.errors import OrthogpError
from orthogp.estimators import sharded, streamed
from orthogp.sources import ArrayTable, Shards, blocks
from orthogp.training import Event, gather_rows
from tabular_cases import run

STEPS: dict[str, Any] = {
    "n_neighbors": 0, "n_inducing": 10, "n_residual": 15, "max_steps": 20, "batch_size": 64,
    "device": "cpu", "dtype": "float64", "random_state": 0,
}  # fmt: skip
NEAR: dict[str, Any] = {"max_steps": 20, "device": "cpu", "dtype": "float64", "random_state": 0}
BLOCK = 100
# Rows of each process: uneven, and none in the second.
BOUNDS = (0, 300, 300, 400)
Part = tuple[Any, Any, Any]


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    count = BOUNDS[-1]
    table = pd.DataFrame(
        {"a": rng.normal(size=count), "b": 5 + 10 * rng.normal(size=count),
         "town": rng.choice(["Bern", "Chur", "Genf"], count)}
    )  # fmt: skip
    table["y"] = np.sin(table.a) + 0.01 * table.b + (table.town == "Bern")
    table["y"] += 0.1 * rng.normal(size=count)
    table["weight"] = rng.uniform(0.5, 1.5, count)
    # A class that the last process alone has.
    table["label"] = np.where(np.arange(count) > 370, "rare", np.where(table.y > 0.5, "yes", "no"))
    return table


def own(rank: int | None) -> pd.DataFrame:
    """The rows of one process, or all."""
    table = frame()
    return table if rank is None else table[BOUNDS[rank] : BOUNDS[rank + 1]]


def streets(rank: int | None) -> list[str]:
    """More levels than have an input each, for the rows of one process, or all."""
    found = [
        f"street {number}" for number in np.random.default_rng(1).integers(40, size=BOUNDS[-1])
    ]
    return found if rank is None else found[BOUNDS[rank] : BOUNDS[rank + 1]]


def numbers(rank: int | None) -> Part:
    part = own(rank)
    X, y, weight = (part[name].to_numpy(copy=True) for name in (["a", "b"], "y", "weight"))
    return X, y, weight


def small_blocks() -> None:
    blocks.ARRAY_ROWS = sharded.ARRAY_ROWS = BLOCK


def all_fits(rank: int | None, folder: Path) -> dict[str, dict]:
    """With its own rows in each process of a group, or with all of them alone."""
    small_blocks()
    table, (X, y, weight) = own(rank), numbers(rank)
    shards = {"shards": rank is not None}
    mixed = table[["a", "b", "town"]]
    fits = {
        "steps": OrthogonalGPRegressor(**STEPS).fit(X, y, weight, **shards),
        "near": OrthogonalGPRegressor(**NEAR).fit(mixed, table.y, **shards),
        "labels": OrthogonalGPClassifier(**STEPS).fit(mixed, table.label, **shards),
        "streamed": streamed_fit(rank, ArrayTable, X, y, weight),
        "streamed_text": streamed_fit(
            rank, sharded.FrameTable, mixed.assign(street=streets(rank)), table.y, None
        ),
        "command": command_fit(rank, folder),
    }
    found = {name: contents(estimator) for name, estimator in fits.items()}
    return found | {"rows": {"x": own_rows(rank).x, "y": own_rows(rank).y}}


def streamed_fit(rank, kind, *part, **settings) -> OrthogonalGPRegressor:
    source = kind(*part) if len(part[0]) else None
    if rank is not None:
        return OrthogonalGPRegressor(**STEPS | settings).fit(Shards(source, memory=0))
    before, streamed.LOADED_BYTES = streamed.LOADED_BYTES, 0
    try:
        return OrthogonalGPRegressor(**STEPS | settings).fit(source)
    finally:
        streamed.LOADED_BYTES = before


def command_fit(rank: int | None, folder: Path) -> OrthogonalGPRegressor:
    """By the command line, on a CSV file of the process, of no rows in the second."""
    own(rank).to_csv(folder / ("all.csv" if rank is None else f"part-{rank}.csv"), index=False)
    table = ["all.csv"] if rank is None else ["part-{rank}.csv", "--shards"]
    out = folder / f"model-{rank}.orthogp"
    run("fit", folder / table[0], *table[1:], "--target", "y", "--drop", "label,weight", "--out",
        out, "--n-neighbors", 0, "--max-steps", 20, "--n-inducing", 8, "--n-residual", 8,
        "--device", "cpu", "--dtype", "float64", "--test-size", 0)  # fmt: skip
    if rank is not None:
        dist.barrier()
    # The first process writes it.
    model = TableModel.load(out if rank is None else folder / "model-0.orthogp")
    assert isinstance(model.estimator, OrthogonalGPRegressor)
    return model.estimator


def own_rows(rank: int | None) -> training.Rows:
    X, y, _ = numbers(rank)
    return gather_rows(torch.from_numpy(X), torch.from_numpy(y))


def refusals(rank: int) -> list[str]:
    """What is said in each process where its rows do not go with the others'."""
    X, y, weight = numbers(rank)
    bad = X.copy()
    bad[-1:, 1] = np.inf
    tables = [
        (X[:, :1] if rank else X, y, None),
        (own(rank)[["a", "town" if rank else "b"]].set_axis(["a", "b"], axis=1), y, None),
        (X, y, weight if rank else None),
        (bad if rank else X, y, None),
        (None, None, None),
        (Path("nowhere.parquet") if rank == 2 else X, "y" if rank == 2 else y, None),
    ]
    messages = []
    for part in tables:
        try:
            OrthogonalGPRegressor(**STEPS).fit(*part, shards=True)
            messages.append("")
        except OrthogpError as error:
            messages.append(str(error))
    try:
        streamed_fit(rank, ArrayTable, bad if rank else X, y, None)
    except OrthogpError as error:
        messages.append(str(error))
    return messages


def resumable(folder: str) -> dict:
    """A streamed fit with a checkpoint at every report; the first step of this attempt as well."""
    small_blocks()
    fit, started = training.fit, []

    def note_start(event: Event) -> None:
        if event.kind == "start":
            started.append(event.step)

    def eager_fit(model, rows, config, validation, callbacks, checkpoint_dir):
        callbacks = (*callbacks, note_start)
        return fit(model, rows, config, validation, callbacks, checkpoint_dir, 0.0)

    training.fit = eager_fit
    part = numbers(2 * dist.get_rank())
    settings = {"checkpoint_dir": folder, "max_steps": 150}
    found = contents(streamed_fit(dist.get_rank(), ArrayTable, *part, **settings))
    return found | {"started": started}
