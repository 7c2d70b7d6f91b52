"""Questions, files and calls of the program that are to be refused, one row a case."""

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse
import torch
from gpytorch.kernels import Kernel

import runs
import tabular_cases as program
from bad_fits import FRAME, INF, LABELS, NAN, ONES, X, Y, changed, small
from orthogp import OrthogonalGPClassifier as Classifier
from orthogp import OrthogonalGPRegressor as Regressor
from orthogp.errors import ConfigurationError, DataError, FileError, NumericalError
from orthogp.estimators.checks import DataTypeError
from orthogp.likelihoods import Gaussian, NegativeBinomial, Poisson, RobustMax, Softmax
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.posterior.points import choose_gamma
from orthogp.training import Rows
from orthogp.training import fit as train


@cache
def fitted(kind: type, named: bool = False) -> Any:
    return small(kind).fit(FRAME if named else X, LABELS if kind is Classifier else Y)


def targets(gp: Any) -> np.ndarray:
    return LABELS if isinstance(gp, Classifier) else Y


def model() -> Any:
    return fitted(Regressor)


def basis(kernel: Kernel | None = None) -> Any:
    kernel = default_kernel(2) if kernel is None else kernel
    return build_basis("orthogonal", kernel, ROWS.x[:5], ROWS.x[5:9])


class Negative(Kernel):
    """−1 everywhere."""

    def forward(self, x1, x2, diag=False, **_):
        return -x1.new_ones(len(x1)) if diag else -x1.new_ones(len(x1), len(x2))


def full_disk() -> Any:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return mock.patch.object(os, "fsync", side_effect=full)


@contextlib.contextmanager
def small_disk(size: int = 500):
    """The system itself stops every file at this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def under(condition: Any, ask: Callable[[], Any]) -> Any:
    with condition:
        return ask()


def fit(folder: Path, out: str, *more: Any, status: int = 0) -> str:
    return program.fit(folder / "table.csv", folder / out, *more, status=status)


def predict(folder: Path, out: str) -> Any:
    return program.predict(folder / "model", folder / "table.csv", folder / out)


# What is asked of estimators that have been fitted; with True, to a table with names.
QUESTIONS: dict[str, tuple] = {
    "unseen columns": (DataError, r"unseen at fit time:\n- z\n",
                       lambda gp: gp.predict(FRAME.rename(columns={"a": "z"})), True),
    "reordered columns": (DataError, "must be in the same order",
                          lambda gp: gp.predict(FRAME[["b", "a", "c"]]), True),
    "a column too many": (DataError, r"unseen at fit time:\n- d\n",
                          lambda gp: gp.predict(FRAME.assign(d=1.0)), True),
    "a column too few": (DataError, "X has 2 features, but .* 3", lambda gp: gp.predict(X[:, :2])),
    "infinity in new rows": (DataError, "row 3", lambda gp: gp.predict(changed(X, (3, 1), INF))),
    "text in new rows": (DataError, "text, 'q'", lambda gp: gp.predict(np.full((4, 3), "q"))),
    "no new rows": (DataError, r"0 sample\(s\)", lambda gp: gp.predict(X[:0])),
    "sparse new rows": (DataTypeError, "sparse", lambda gp: gp.predict(scipy.sparse.eye_array(3))),
    "a row alone": (DataError, "Reshape your data", lambda gp: gp.predict(X[0])),
    "densities of NaN": (DataError, "40 (labels|values)", lambda gp: gp.log_density(X, NAN * Y)),
    "densities of other rows": (DataError, "39", lambda gp: gp.log_density(X, targets(gp)[1:])),
    "more rows of other columns": (DataError, "X has 2 features",
                                   lambda gp: deepcopy(gp).partial_fit(X[:, :2], targets(gp))),
}  # fmt: skip

# The same of one estimator.
OWN_QUESTIONS: dict[str, tuple] = {
    "quantile one": (Regressor, ConfigurationError, r"\(0, 1\)",
                     lambda gp: gp.predict_quantiles(X, [0.5, 1.0])),
    "no quantiles": (Regressor, ConfigurationError, "q is", lambda gp: gp.predict_quantiles(X, [])),
    "quantiles as text": (Regressor, DataError, "text", lambda gp: gp.predict_quantiles(X, ["q"])),
    "coverage one": (Regressor, ConfigurationError, "coverage is 1.0",
                     lambda gp: gp.predict_interval(X, 1.0)),
    "coverage as text": (Regressor, ConfigurationError, "coverage is 'all'",
                         lambda gp: gp.predict_interval(X, "all")),
    "no draws": (Regressor, ConfigurationError, "n_samples is 0", lambda gp: gp.sample_y(X, 0)),
    "half a draw": (Regressor, ConfigurationError, "n_samples is 1.5",
                    lambda gp: gp.sample_y(X, 1.5)),
    "draws of no seed": (Regressor, ConfigurationError, "random_state is 'x'",
                         lambda gp: gp.sample_y(X, 1, "x")),
    "deviations and covariances": (Regressor, ConfigurationError, "not for both",
                                   lambda gp: gp.predict(X, return_std=True, return_cov=True)),
    "densities of several": (Regressor, DataError, r"shape \(40, 2\); expected \(40,\)",
                             lambda gp: gp.log_density(X, np.ones((40, 2)))),
    "densities of unseen labels": (Classifier, DataError, "among the classes: 'left', 'right'",
                                   lambda gp: gp.log_density(X, ["left", "right"] * 20)),
    "more rows of unseen labels": (Classifier, DataError, "among the classes: 'left'",
                                   lambda gp: deepcopy(gp).partial_fit(X[:2], ["up", "left"])),
    "NaN among classes": (Classifier, DataError, "classes has 1 labels that are missing",
                          lambda _: small(Classifier).partial_fit(X, ONES, [0, 1, NAN])),
}  # fmt: skip

# The model under the estimators.
ROWS = runs.data(40)
LOW: dict[str, tuple] = {
    "a model of other latents": (ConfigurationError, "needs 3 latent functions",
                                 lambda: VariationalGP(default_kernel(2), RobustMax(3), basis())),
    "a model of other inputs": (ConfigurationError, "3 lengthscales and the points have 2",
                                lambda: VariationalGP(default_kernel(3, True), Gaussian(1),
                                                      basis())),
    "a basis of other inputs": (ConfigurationError, "3 lengthscales and the points have 2",
                                lambda: build_basis("decoupled", default_kernel(3, True), ROWS.x,
                                                    ROWS.x, optimizer="adam")),
    "a negative jitter": (ConfigurationError, "jitter is -1.0", lambda: VariationalGP(
        default_kernel(2), Gaussian(1), basis(), jitter=-1.0)),
    "a kernel that is not one": (NumericalError, "not positive definite",
                                 lambda: basis(Negative())),
    "new rows of other inputs": (DataError, "x has 3 inputs a row; expected 2",
                                 lambda: runs.model(ROWS).predict(torch.zeros(4, 3))),
    "rows of other inputs": (DataError, "x has 3 inputs a row; expected 2", lambda: train(
        runs.model(ROWS), Rows(torch.zeros(4, 3), torch.zeros(4)), runs.settings())),
    "rows of NaN": (DataError, "not finite; drop", lambda: train(
        runs.model(ROWS), Rows(NAN * ROWS.x, ROWS.y), runs.settings())),
    "points from no rows": (DataError, "no rows", lambda: choose_gamma(
        ROWS.x[:0], 3, ROWS.x, torch.Generator())),
    "two outputs for one": (DataError, r"output\(s\); pass \[n\]",
                            lambda: Poisson(1).check_targets(torch.ones(4, 2))),
    "counts without end": (DataError, "missing or infinite",
                           lambda: NegativeBinomial(1).check_targets(torch.tensor([INF]))),
    "a sure mistake": (ConfigurationError, r"in \(0, 1\), not 1.5", lambda: RobustMax(3, 1.5)),
    "an odd number of draws": (ConfigurationError, "even and positive, not 3",
                               lambda: Softmax(3, num_draws=3)),
}  # fmt: skip

# Files and the program. Every folder holds a table, a model, an old file and a folder `taken`.
FILES: dict[str, tuple] = {
    "a folder in place of the file": (FileError, r"taken\.csv could not be written: Is a directory",
                                      lambda folder: model().save(folder / "taken.csv")),
    "a file in place of the folder": (FileError, "could not be written",
                                      lambda folder: model().save(folder / "old" / "model")),
    "a full disk": (FileError, "old could not be written: No space left on device",
                    lambda folder: under(full_disk(), lambda: model().save(folder / "old"))),
    "a disk full half-way": (FileError, "could not be written: File too large",
                             lambda folder: under(small_disk(),
                                                  lambda: model().save(folder / "m"))),
    "a graph on a full disk": (FileError, "No space left", lambda folder: under(
        full_disk(), lambda: model().export_onnx(folder / "old"))),
    "a model that is not there": (FileError, "No such file", lambda folder: Regressor.load(
        folder / "nothing")),
    "a folder as a model": (FileError, "could not be read", lambda folder: Regressor.load(
        folder / "taken.csv")),
    "a table as a model": (FileError, "is not an orthogp model", lambda folder: Regressor.load(
        folder / "table.csv")),
    "a regressor as a classifier": (FileError, "holds a OrthogonalGPReg", lambda folder:
                                    Classifier.load(folder / "model")),
    "fit: no points": (ConfigurationError, "n_inducing is 0",
                       lambda folder: fit(folder, "m", "--n-inducing", 0)),
    "fit: a device out of reach": (ConfigurationError, "--device is cuda:63|cannot be used",
                                   lambda folder: fit(folder, "m", "--device", "cuda:63")),
    "fit: a folder in place of the model": (FileError, "is a folder",
                                            lambda folder: fit(folder, "taken.csv")),
    "fit: a file in place of the folder": (FileError, "takes no new files",
                                           lambda folder: fit(folder, "old/model")),
    "fit: a full disk": (FileError, "No space left",
                         lambda folder: under(full_disk(), lambda: fit(folder, "old"))),
    "fit: negative counts": (DataError, "negative or fractional",
                             lambda folder: fit(folder, "m", "--likelihood", "poisson")),
    "predict: a folder in place of the file": (FileError, "is a folder",
                                               lambda folder: predict(folder, "taken.csv")),
    "predict: a disk full half-way": (FileError, "could not be written: .*File too large",
                                      lambda folder: under(small_disk(),
                                                           lambda: predict(folder, "p.parquet"))),
    "predict: a table as a model": (FileError, "is not an orthogp", lambda folder: program.run(
        "predict", folder / "table.csv", folder / "table.csv", "--out", folder / "p.csv")),
}  # fmt: skip
