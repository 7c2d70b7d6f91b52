"""A valid file of every kind that orthogp writes, and what to do with a file of that kind."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from gpytorch.kernels import LinearKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.apps.tabular.model import TableModel
from orthogp.likelihoods import Gaussian, as_likelihood
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.storage import load_model, save_model
from orthogp.tables import Encoder, Plan, Tally
from orthogp.tables.plan import LevelColumn, NumberColumn
from orthogp.training import Rows, TrainingConfig, fit

SMALL: dict[str, Any] = {
    "n_neighbors": 0,
    "n_inducing": 6, "n_residual": 6, "max_steps": 4, "random_state": 0, "device": "cpu",
}  # fmt: skip
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) * [1.0, 50.0]
Y = 100 + 30 * np.sin(X[:, 0]) + RNG.normal(size=60)
LABELS = np.array(["low", "<b>middle</b>", "high"])[np.digitize(Y, [90, 110])]
COUNTS = Y.round()
# Rows to predict: some of the data, some between, and one far away.
ASKED = np.concatenate([X[:3], 0.5 * (X[3:5] + X[5:7]), [[300.0, -1e5]]])
PLAN = Plan(
    (NumberColumn("width", 0.5, True),),
    (LevelColumn("=colour", "text", ("red", "<i>blue</i>"), ("other",), False),),
    "impute",
)
ROWS = Rows(torch.from_numpy(X).float() / 50, torch.from_numpy(Y).float() / 100)
CONFIG = TrainingConfig(max_steps=4, report_every=2, batch_size=20, kl_columns=3)

Predictions = list[np.ndarray]


@dataclass(frozen=True)
class Loaded:
    """What a file became: `predictions` may raise. `used` is whether anything was taken from it."""

    predictions: Callable[[], Predictions]
    used: bool = True


def write_originals(folder: Path) -> list[Path]:
    """Files whose names begin with their kind: what `LOADERS` has for them."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _write_models(folder)
        _write_estimators(folder)
        _table_model().save(folder / "table-numbers.orthogp")
        _write_checkpoint(folder)
    return sorted(folder.iterdir())


def _write_models(folder: Path) -> None:
    nested = ScaleKernel(ScaleKernel(RBFKernel(ard_num_dims=2)) + LinearKernel() * PeriodicKernel())
    cases = {
        "orthogonal": (default_kernel(2, ard=True), "student_t", "orthogonal", "natural", None),
        "decoupled": (nested, "negative_binomial", "decoupled", "adam", LinearMean(2)),
        "hybrid": (default_kernel(2), "laplace", "hybrid", "adam", None),
        "coupled": (RBFKernel(), "beta", "coupled", "natural", None),
        "softmax": (RBFKernel(), "softmax", "orthogonal", "adam", None),
    }
    for name, (kernel, likelihood, basis, optimizer, mean) in cases.items():
        latents = 3 if likelihood == "softmax" else 1
        q = build_basis(basis, kernel, ROWS.x[:5], ROWS.x[5:11], latents, optimizer)
        model = VariationalGP(kernel, as_likelihood(likelihood, latents), q, mean)
        save_model(folder / f"model-{name}.orthogp", model, {"note": [1, None]}, {"t": ROWS.y[:3]})


def _write_estimators(folder: Path) -> None:
    regressors = {
        "one": ({}, Y),
        "two": ({"likelihood": "student_t", "dtype": "float64"}, np.stack([Y, -Y], 1)),
        "counts": ({"likelihood": "poisson", "inducing_points": X[:4]}, COUNTS),
        "own": ({"kernel": PeriodicKernel()}, Y),
    }
    for name, (settings, y) in regressors.items():
        gp = OrthogonalGPRegressor(**SMALL | settings).fit(X, y)
        gp.save(folder / f"regressor-{name}.orthogp", {"mine": 1})
    classifiers = {"two": Y > 100, "three": LABELS, "numbers": np.digitize(Y, [80, 100, 120])}
    for name, y in classifiers.items():
        classifier = OrthogonalGPClassifier(**SMALL).fit(X, y)
        classifier.save(folder / f"classifier-{name}.orthogp")


def _table_model() -> TableModel:
    colours = ["red", "<i>blue</i>", "other", None] * 15
    table = pa.table({"width": pa.array([*X[:59, 0], None]), "=colour": pa.array(colours)})
    gp = OrthogonalGPRegressor(**SMALL).fit(Encoder(PLAN).encode(table, Tally()), Y)
    return TableModel(gp.with_plan(PLAN), "target", "key")


def _write_checkpoint(folder: Path) -> None:
    def stop(event: Any) -> None:
        if event.kind == "report" and event.step == 4:
            raise InterruptedError

    try:
        fit(_untrained(), ROWS, CONFIG, None, [stop], folder, 0.0)
    except InterruptedError:
        (path,) = folder.glob("step-*")
        path.rename(folder / f"checkpoint-{path.name}")


def _untrained() -> VariationalGP:
    kernel = default_kernel(2)
    return VariationalGP(
        kernel, Gaussian(1), build_basis("orthogonal", kernel, ROWS.x[:5], ROWS.x[5:11])
    )


def load_low_level(path: Path) -> Loaded:
    saved = load_model(path)
    count = saved.model.basis.beta.shape[1]
    x = torch.from_numpy(np.resize(ASKED, (len(ASKED), count)) / 50)
    return Loaded(lambda: [part.numpy() for part in saved.model.predict(x)])


def load_regressor(path: Path) -> Loaded:
    gp = OrthogonalGPRegressor.load(path, device="cpu")
    x = np.resize(ASKED, (len(ASKED), gp.n_features_in_))
    return Loaded(lambda: [*gp.predict(x, return_std=True), gp.predict_quantiles(x, [0.1, 0.9])])


def load_classifier(path: Path) -> Loaded:
    classifier = OrthogonalGPClassifier.load(path, device="cpu")
    x = np.resize(ASKED, (len(ASKED), classifier.n_features_in_))
    return Loaded(lambda: [classifier.predict_proba(x)])


def load_table(path: Path) -> Loaded:
    model = TableModel.load(path)
    table = pa.table({"width": [0.1, None], "=colour": ["red", "new"]})

    def predictions() -> Predictions:
        found = model.predictions(model.encode(table, Tally()), [0.1, 0.9])
        return [column.to_numpy(zero_copy_only=False) for column in found.values()]

    missing = set(model.plan.kinds) - set(table.column_names)
    # Another column than ours: predictions are refused where a table is read.
    return Loaded(list if missing else predictions)


def load_checkpoint(path: Path) -> Loaded:
    """Goes on from the checkpoint, in a folder of its own, to the end of the run."""
    folder = path.parent / "run"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    path.rename(folder / path.name.removeprefix("checkpoint-"))
    model, starts = _untrained(), []
    fit(model, ROWS, CONFIG, None, [lambda e: starts.append(e.step)], folder, 1e9)
    asked = torch.from_numpy(ASKED) / 50
    return Loaded(lambda: [part.numpy() for part in model.predict(asked)], used=starts[0] > 0)


LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "model": load_low_level,
    "regressor": load_regressor,
    "classifier": load_classifier,
    "table": load_table,
    "checkpoint": load_checkpoint,
}
