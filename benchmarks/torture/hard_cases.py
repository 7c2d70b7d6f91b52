"""Problems that make numbers hard: tables of a directory, and synthetic ones by name and seed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MOST_ROWS = 20_000
ROWS, TESTS = 250, 100


@dataclass(frozen=True)
class Problem:
    """Rows to fit and rows to predict; `settings` are what the case asks of the estimator."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    settings: dict[str, Any] = field(default_factory=dict)
    classifies: bool = False


def problem(case: str, seed: int, data_dir: str) -> Problem:
    return SYNTHETIC[case](seed) if case in SYNTHETIC else from_table(case, seed, Path(data_dir))


def from_table(case: str, seed: int, data_dir: Path) -> Problem:
    """A tenth of the rows, drawn by the seed, to test on; in the units of the table."""
    from orthogp.apps.paper.datasets import load

    task, _, name = case.partition("/")
    found = load(data_dir, task, name)
    order = np.random.default_rng(seed).permutation(len(found.y))[:MOST_ROWS]
    tests = max(1, len(order) // 10)
    test, train = order[:tests], order[tests:]
    classifies = task == "classification"
    parts = found.X[train], found.y[train], found.X[test], found.y[test]
    return Problem(*parts, classifies=classifies)


def smooth(seed: int, noise: float, dims: int = 3) -> Problem:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(ROWS + TESTS, dims))
    y = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, -1] + noise * rng.normal(size=len(X))
    return Problem(X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:])


def with_settings(found: Problem, **settings: Any) -> Problem:
    return Problem(found.X, found.y, found.X_test, found.y_test, settings)


def huge_lengthscales(seed: int) -> Problem:
    """A straight line, seen by kernels that begin a thousand times too long: K_β has rank one."""
    from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

    rough, even = MaternKernel(2.5, ard_num_dims=3), RBFKernel(ard_num_dims=3)
    rough.initialize(lengthscale=1e3)
    even.initialize(lengthscale=1e4)
    found = smooth(seed, 0.0)
    X, X_test = found.X, found.X_test
    kernel = ScaleKernel(rough) + ScaleKernel(even)
    return Problem(X, X.sum(1), X_test, X_test.sum(1), {"kernel": kernel})


def without_noise(seed: int) -> Problem:
    return smooth(seed, 0.0)


def outliers(seed: int) -> Problem:
    """One target of a hundred is a million standard deviations away, on either side."""
    found = smooth(seed, 0.1)
    rng = np.random.default_rng(seed + 1)
    y = found.y.copy()
    hit = rng.choice(ROWS, ROWS // 100, replace=False)
    y[hit] += 1e6 * np.std(found.y) * rng.choice([-1.0, 1.0], len(hit))
    return Problem(found.X, y, found.X_test, found.y_test)


def coincident_beta(seed: int) -> Problem:
    """A hundred inducing points at ten places."""
    found = smooth(seed, 0.1)
    return with_settings(found, inducing_points=np.repeat(found.X[:10], 10, axis=0))


def gamma_is_beta(seed: int) -> Problem:
    found = smooth(seed, 0.1)
    points = found.X[:100]
    return with_settings(found, inducing_points=points, residual_points=points)


def more_gamma_than_rows(seed: int) -> Problem:
    """Twice as many residual points as rows, each row twice among them."""
    found = smooth(seed, 0.1)
    rng = np.random.default_rng(seed + 1)
    near = found.X + 1e-9 * rng.normal(size=found.X.shape)
    return with_settings(found, n_inducing=50, residual_points=np.concatenate([found.X, near]))


SYNTHETIC: dict[str, Callable[[int], Problem]] = {
    "huge lengthscales": huge_lengthscales,
    "targets without noise": without_noise,
    "outliers of 1e6 standard deviations": outliers,
    "β with coincident points": coincident_beta,
    "γ = β": gamma_is_beta,
    "more γ than rows": more_gamma_than_rows,
}
