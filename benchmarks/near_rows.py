"""What near rows and all rows add: error, log density and coverage of one fit a data set.

    python benchmarks/near_rows.py --data-dir DIR [--task classification] [--datasets pol,bike] \
        [--kinds near,all] [--device cpu]

`OrthogonalGPRegressor(random_state=0)` on nine rows in ten of every regression set, target and
inputs standardised on them, or `OrthogonalGPClassifier(random_state=0)` on the classification sets.
Of the kinds "near" has no mean of all rows, "all" has it always, "points" is the estimator without
near rows, and "bound" has near rows with the hyperparameters that the bound asks for; the default
chooses. Prints a row of a table as each fit ends: RMSE, mean log density and coverage of 90 %
intervals on the other rows, or accuracy and mean log density; seconds of the fit, rows predicted a
second.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

KINDS = {
    "points": {"n_neighbors": 0},
    "default": {},
    "near": {"n_residual": 0},
    "all": {"n_residual": "all"},
    "bound": {"objective": "bound"},
}


def measure(path: Path, settings: dict, device: str | None) -> tuple[int, list[float]]:
    """The number of training rows, and the five figures of a row of the table."""
    x, y, train, test = _split(path)
    y = (y - y[train].mean()) / y[train].std()
    start = time.monotonic()
    gp = OrthogonalGPRegressor(random_state=0, device=device, **settings).fit(x[train], y[train])
    seconds = time.monotonic() - start
    start = time.monotonic()
    mean, _, limits = gp.predict_summary(x[test], [0.05, 0.95])
    speed = len(test) / (time.monotonic() - start)
    covered = (y[test] >= limits[:, 0]) & (y[test] <= limits[:, 1])
    error = np.sqrt(np.mean((mean - y[test]) ** 2))
    density = gp.log_density(x[test], y[test]).mean()
    return len(train), [error, density, 100.0 * covered.mean(), seconds, speed]


def measure_labels(path: Path, settings: dict, device: str | None) -> tuple[int, list[float]]:
    """The number of training rows, and the four figures of a row of the table."""
    x, y, train, test = _split(path)
    start = time.monotonic()
    gp = OrthogonalGPClassifier(random_state=0, device=device, **settings).fit(x[train], y[train])
    seconds = time.monotonic() - start
    # A class may be too rare to be among the training rows.
    test = test[np.isin(y[test], gp.classes_)]
    start = time.monotonic()
    labels = gp.predict(x[test])
    speed = len(test) / (time.monotonic() - start)
    density = gp.log_density(x[test], y[test]).mean()
    return len(train), [100.0 * np.mean(labels == y[test]), density, seconds, speed]


def _split(path: Path) -> tuple[np.ndarray, ...]:
    """Inputs, targets, and the numbers of nine rows in ten and of the others."""
    with np.load(path) as file:
        x, y = file["X"].astype(float), file["y"].ravel()
    y = y.astype(float) if y.dtype.kind == "f" else y
    order = np.random.default_rng(0).permutation(len(x))
    return x, y, *np.split(order, [int(0.9 * len(x))])


# What measures a set, and the heads and formats of its figures.
TASKS = {
    "regression": (
        measure,
        {"RMSE": ".4f", "log density": ".3f", "coverage, %": ".1f"},
    ),
    "classification": (measure_labels, {"accuracy, %": ".2f", "log density": ".4f"}),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="regression")
    parser.add_argument("--datasets")
    parser.add_argument("--kinds", default="default")
    parser.add_argument("--device")
    options = parser.parse_args()
    measures, formats = TASKS[options.task]
    formats = formats | {"fit, s": ".0f", "rows a second": ".0f"}
    paths = options.data_dir.glob(f"{options.task}/*.npz")
    paths = sorted(paths, key=lambda path: path.stat().st_size)
    if options.datasets:
        paths = [path for path in paths if path.stem in options.datasets.split(",")]
    warnings.simplefilter("ignore")
    print(f"| set (rows) | kind | {' | '.join(formats)} |")
    print("|---" * (len(formats) + 2) + "|")
    for path in paths:
        for kind in options.kinds.split(","):
            count, figures = measures(path, KINDS[kind], options.device)
            cells = [f"{v:{f}}" for v, f in zip(figures, formats.values(), strict=True)]
            print(f"| {path.stem} ({count}) | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
