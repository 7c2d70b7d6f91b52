"""Work that is killed: a fit with checkpoints, a model saved, a table predicted.

Each is a function of a folder, run in a process of its own, that goes on from what a process before
it left there; and each says what the folder then shows under final names.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch

from orthogp.apps.tabular.model import TableModel
from orthogp.estimators import OrthogonalGPRegressor
from orthogp.execution import files
from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.storage import save_model
from orthogp.tables import Plan
from orthogp.tables.plan import NumberColumn
from orthogp.training import Rows, TrainingConfig, fit

ROWS = 2000
CONFIG = TrainingConfig(max_steps=120, batch_size=200, report_every=5, kl_columns=20)
SAVES = 60
PREDICTED = 30_000


@dataclass(frozen=True)
class Victim:
    """`prepare` makes a folder to start from, `work` is what is killed, `shown` is what counts."""

    prepare: Callable[[Path], None]
    work: Callable[[Path], None]
    shown: Callable[[Path], dict[str, bytes]]


def rows() -> Rows:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=rng)
    return Rows(x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(ROWS, generator=rng))


def untrained(data: Rows, inducing: int = 50) -> VariationalGP:
    kernel = default_kernel(3, ard=True)
    basis = build_basis("orthogonal", kernel, data.x[:inducing], data.x[inducing : 4 * inducing])
    return VariationalGP(kernel, Gaussian(1), basis)


def train(folder: Path) -> None:
    """A checkpoint at every report, and the model when it is trained."""
    data = rows()
    model = untrained(data)
    fit(model, data, CONFIG, None, (), folder / "checkpoints", 0.0)
    save_model(folder / "model.orthogp", model, {}, {})


def trained(folder: Path) -> dict[str, bytes]:
    """The model's tensors; that every checkpoint with a name is whole is seen by reading it."""
    for path in (folder / "checkpoints").glob("step-*"):
        files.read(path, "checkpoint")
    return _tensors(folder / "model.orthogp")


def save_often(folder: Path) -> None:
    """The same file over and over, by turns of two models."""
    data = rows()
    models = [untrained(data, inducing) for inducing in (60, 61)]
    for number in range(SAVES):
        save_model(folder / "model.orthogp", models[number % 2], {"number": number % 2}, {})


def saved(folder: Path) -> dict[str, bytes]:
    return _tensors(folder / "model.orthogp")


def prepare_table(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    gp = OrthogonalGPRegressor(40, 60, n_neighbors=0, max_steps=20, random_state=0, device="cpu")
    gp.fit(x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=ROWS))
    plan = Plan(tuple(NumberColumn(name, 0.0, False) for name in "ab"), (), "refuse")
    TableModel(gp.with_plan(plan), "y", None).save(folder / "model.orthogp")
    new = rng.normal(size=(PREDICTED, 2))
    pyarrow.csv.write_csv(pa.table({"a": new[:, 0], "b": new[:, 1]}), folder / "new.csv")


def predict(suffix: str) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        from orthogp.apps.cli import app

        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        names = [str(folder / name) for name in ("model.orthogp", "new.csv", f"out{suffix}")]
        app(
            ["predict", *names[:2], "--out", names[2], "--batch-rows", "1000"],
            standalone_mode=False,
        )

    return work


def predicted(suffix: str) -> Callable[[Path], dict[str, bytes]]:
    def shown(folder: Path) -> dict[str, bytes]:
        path = folder / f"out{suffix}"
        return {path.name: path.read_bytes()} if path.exists() else {}

    return shown


def leftovers(folder: Path) -> int:
    return sum(1 for _ in folder.rglob(".*.tmp"))


def _tensors(path: Path) -> dict[str, bytes]:
    if not path.exists():
        return {}
    tensors, _ = files.read(path, "model")
    return {name: value.numpy().tobytes() for name, value in tensors.items()}


VICTIMS = {
    "fit": Victim(lambda folder: None, train, trained),
    "save": Victim(lambda folder: None, save_often, saved),
    "predict to CSV": Victim(prepare_table, predict(".csv"), predicted(".csv")),
    "predict to Parquet": Victim(prepare_table, predict(".parquet"), predicted(".parquet")),
}
