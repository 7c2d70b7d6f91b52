"""Constant and learned noise side by side, on tables whose noise changes with x.

    python benchmarks/changing_noise.py [--rows 10000] [--folds 3] [--tables made,area,diabetes]

`made` has one input, with noise that grows sixfold along it, and 20 000 test rows. `area` is the
standard error of the area of cell nuclei, from their ten means in scikit-learn's breast cancer
table; `diabetes` is scikit-learn's. These two are predicted in folds. Intervals of 90 % are counted
by thirds of the rows along one input; densities are per unit of y.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import KFold

from orthogp import OrthogonalGPRegressor

TEST_ROWS = 20_000
TABLES = ("made", "area", "diabetes")


@dataclass(frozen=True)
class Table:
    """Rows in folds; coverage is counted along the column `along`."""

    X: NDArray
    y: NDArray
    along: int
    folds: list[tuple[NDArray, NDArray]]


def made(rows: int) -> Table:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(rows + TEST_ROWS, 1))
    std = 0.1 + 0.5 / (1 + np.exp(-2 * X[:, 0]))
    y = np.sin(2 * X[:, 0]) + std * rng.normal(size=len(X))
    every = np.arange(len(X))
    return Table(X, y, 0, [(every[:rows], every[rows:])])


def bundled(name: str, folds: int) -> Table:
    if name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
        # The body mass index.
        along = 2
    else:
        columns = load_breast_cancer().data
        # Columns 0 to 9 are means, 13 is the standard error of the area; 0 is the mean radius.
        X, y, along = columns[:, :10], columns[:, 13], 0
    split = KFold(folds, shuffle=True, random_state=0).split(X)
    return Table(X, y, along, list(split))


def measured(table: Table, noise: str) -> Iterator[str]:
    inside, density = np.zeros(len(table.y), bool), np.zeros(len(table.y))
    seconds, learned = 0.0, 0
    for train, test in table.folds:
        began = time.perf_counter()
        gp = OrthogonalGPRegressor(noise=noise, random_state=0, device="cpu")
        gp.fit(table.X[train], table.y[train])
        seconds += time.perf_counter() - began
        learned += gp.noise_learned_
        low, high = gp.predict_interval(table.X[test], 0.9)
        inside[test] = (low <= table.y[test]) & (table.y[test] <= high)
        density[test] = gp.log_density(table.X[test], table.y[test])
    tested = np.concatenate([test for _, test in table.folds])
    x = table.X[tested, table.along]
    third = np.digitize(x, np.quantile(x, [1 / 3, 2 / 3]))
    for k in range(3):
        yield f"{inside[tested][third == k].mean():.1%}"
    yield f"{density[tested].mean():.3f}"
    yield f"{learned} of {len(table.folds)}"
    yield f"{seconds / len(table.folds):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--tables", default=",".join(TABLES))
    asked = parser.parse_args()
    print("| table | noise | low third | middle | high third | log density | kept | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name in asked.tables.split(","):
        table = made(asked.rows) if name == "made" else bundled(name, asked.folds)
        for noise in ("constant", "learned"):
            print(f"| {name} | {noise} | {' | '.join(measured(table, noise))} |", flush=True)


if __name__ == "__main__":
    main()
