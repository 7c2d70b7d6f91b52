"""What it is worth to take in the rows that calibrated: a fit before its last steps and after.

    python benchmarks/taking_in.py --data-dir DIR [--datasets kin40k,twonorm] [--rows 1000] \
        [--subsets 2] [--device cpu]

Estimators at their defaults on random subsets of so many rows, by default on nine rows in ten of
each set. Prints the mean log density of the other rows, 5 000 of them at most, of numbers in units
of the standardised target, and how many of those the 90 % intervals cover.
"""

import argparse
from pathlib import Path

import numpy as np

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

TEST_ROWS = 5000


def measure(path: Path, rows: int | None, subset: int, device: str | None) -> list[tuple]:
    """Log density and coverage, before and after."""
    with np.load(path) as file:
        x, y = file["X"].astype(float), file["y"]
    order = np.random.default_rng(subset).permutation(len(x))
    train, test = np.split(order, [rows or round(0.9 * len(x))])
    test = test[:TEST_ROWS]
    if y.dtype.kind == "f":
        kind, y = OrthogonalGPRegressor, (y - y[train].mean()) / y[train].std()
    else:
        # A class that the training rows lack has no density.
        kind, test = OrthogonalGPClassifier, test[np.isin(y[test], y[train])]
    found = []

    def note(gp) -> None:
        inside = float("nan")
        if kind is OrthogonalGPRegressor:
            low, high = gp.predict_interval(x[test], coverage=0.9)
            inside = 100 * np.mean((low <= y[test]) & (y[test] <= high))
        found.append((gp.log_density(x[test], y[test]).mean(), inside))

    class WithoutThem(kind):
        def _train_on_all(self, *args) -> None:
            """Leaves the rows that calibrated out for good."""

    for estimator in (WithoutThem, kind):
        note(estimator(device=device, random_state=subset).fit(x[train], y[train]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--subsets", type=int, default=1)
    parser.add_argument("--device")
    options = parser.parse_args()
    paths = sorted(options.data_dir.glob("*/*.npz"))
    if options.datasets:
        paths = [path for path in paths if path.stem in options.datasets.split(",")]
    print("| set | before | after | gain | 90 % intervals cover: before | after |")
    print("|---|---|---|---|---|---|")
    gains = []
    for path in paths:
        runs = [measure(path, options.rows, k, options.device) for k in range(options.subsets)]
        (before, cover), (after, covers) = np.mean(runs, axis=0)
        gains += [run[1][0] - run[0][0] for run in runs]
        row = f"{before:.4f} | {after:.4f} | {after - before:+.4f} | {cover:.1f} | {covers:.1f}"
        print(f"| {path.stem} | {row} |", flush=True)
    print(f"{sum(g > 0 for g in gains)} of {len(gains)} gain, {np.mean(gains):+.4f} on average")


if __name__ == "__main__":
    main()
