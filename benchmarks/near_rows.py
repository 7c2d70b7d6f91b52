"""What near rows and all rows add: error, log density and coverage of one fit a data set.

    python benchmarks/near_rows.py --data-dir DIR [--datasets pol,bike] [--kinds near,all] \
        [--device cpu]

`OrthogonalGPRegressor(random_state=0)` on nine rows in ten of every regression set, target and
inputs standardised on them. Of the kinds "near" has no mean of all rows, "all" has it always, and
"points" is the estimator without near rows; the default chooses. Prints a row of a table as each
fit ends: RMSE, mean log density and coverage of 90 % intervals on the other rows, seconds of the
fit, rows predicted a second.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

from orthogp import OrthogonalGPRegressor

KINDS = {
    "points": {"n_neighbors": 0},
    "default": {},
    "near": {"n_residual": 0},
    "all": {"n_residual": "all"},
}


def measure(path: Path, settings: dict, device: str | None) -> tuple[int, list[float]]:
    """The number of training rows, and the five figures of a row of the table."""
    with np.load(path) as file:
        x, y = file["X"].astype(float), file["y"].astype(float).ravel()
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [int(0.9 * len(x))])
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets")
    parser.add_argument("--kinds", default="default")
    parser.add_argument("--device")
    options = parser.parse_args()
    paths = sorted(options.data_dir.glob("regression/*.npz"), key=lambda path: path.stat().st_size)
    if options.datasets:
        paths = [path for path in paths if path.stem in options.datasets.split(",")]
    warnings.simplefilter("ignore")
    print("| set (rows) | kind | RMSE | log density | coverage, % | fit, s | rows a second |")
    print("|---" * 7 + "|")
    for path in paths:
        for kind in options.kinds.split(","):
            count, (error, density, coverage, seconds, speed) = measure(
                path, KINDS[kind], options.device
            )
            print(
                f"| {path.stem} ({count}) | {kind} | {error:.4f} | {density:.3f} | "
                f"{coverage:.1f} | {seconds:.0f} | {speed:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
