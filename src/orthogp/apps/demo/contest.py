"""Who is fitted to what, and how well each does."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.apps.demo.problems import DemoData

SEED = 0
DIGIT_BATCH = 512


@dataclass(frozen=True)
class DemoSize:
    """How much is fitted: rows; steps and points of the two bases by steps and the classifier."""

    rows: int
    test_rows: int
    steps: int
    batch_size: int
    inducing: int
    residual: int
    digit_rows: int
    digit_test_rows: int
    digit_steps: int
    digit_points: tuple[int, int]
    table_rows: int
    grid: int


FULL = DemoSize(
    rows=25_000, test_rows=4000, steps=150, batch_size=2048,
    inducing=300, residual=700,
    digit_rows=1300, digit_test_rows=497, digit_steps=80, digit_points=(100, 200),
    table_rows=350, grid=160,
)  # fmt: skip
QUICK = DemoSize(
    rows=400, test_rows=200, steps=100, batch_size=64, inducing=15, residual=35,
    digit_rows=150, digit_test_rows=100, digit_steps=50, digit_points=(10, 20), table_rows=150,
    grid=12,
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """`options` are the estimator's. Colours are those of the paper's figures."""

    name: str
    points: str
    colour: str
    options: dict[str, Any]


@dataclass(frozen=True)
class DemoResult:
    """A fitted estimator and its figures on the test rows."""

    method: Method
    gp: Any
    log_likelihood: float
    seconds: float
    rmse: float = math.nan
    coverage: float = math.nan
    accuracy: float = math.nan


def regression_methods(size: DemoSize) -> tuple[Method, Method, Method]:
    """Inducing points alone, with residual points, and the default, in which every row counts."""
    by_steps = {
        "n_neighbors": 0,
        "max_steps": size.steps,
        "batch_size": min(size.batch_size, size.rows),
    }
    return (
        Method(
            "COUPLEDNAT", f"{size.inducing} β", "#0072B2",
            {"basis": "coupled", "n_inducing": size.inducing, **by_steps},
        ),
        Method(
            "ORTHNAT", f"{size.inducing} β + {size.residual} γ", "#D55E00",
            {"n_inducing": size.inducing, "n_residual": size.residual, **by_steps},
        ),
        default_method(),
    )  # fmt: skip


def default_method() -> Method:
    return Method("DEFAULT", "every row", "#009E73", {})


def classification_method(size: DemoSize) -> Method:
    inducing, residual = size.digit_points
    return Method(
        "ORTHNAT", f"{inducing} β + {residual} γ", "#D55E00",
        {"n_inducing": inducing, "n_residual": residual},
    )  # fmt: skip


def fit_regression(method: Method, data: DemoData, verbose: bool) -> DemoResult:
    gp = OrthogonalGPRegressor(random_state=SEED, verbose=verbose, **method.options)
    seconds = _timed_fit(gp, data)
    low, high = gp.predict_interval(data.X_test, coverage=0.9)
    return DemoResult(
        method,
        gp,
        log_likelihood=float(gp.log_density(data.X_test, data.y_test).mean()),
        seconds=seconds,
        rmse=math.sqrt(np.mean((gp.predict(data.X_test) - data.y_test) ** 2)),
        coverage=float(np.mean((low <= data.y_test) & (data.y_test <= high))),
    )


def fit_classification(method: Method, data: DemoData, size: DemoSize, verbose: bool) -> DemoResult:
    gp = OrthogonalGPClassifier(
        max_steps=size.digit_steps, batch_size=min(DIGIT_BATCH, size.digit_rows),
        random_state=SEED, verbose=verbose, **method.options,
    )  # fmt: skip
    seconds = _timed_fit(gp, data)
    return DemoResult(
        method,
        gp,
        log_likelihood=float(gp.log_density(data.X_test, data.y_test).mean()),
        seconds=seconds,
        accuracy=float(np.mean(gp.predict(data.X_test) == data.y_test)),
    )


def _timed_fit(gp: Any, data: DemoData) -> float:
    start = time.perf_counter()
    gp.fit(data.X, data.y)
    return time.perf_counter() - start
