"""Short fits of small tables with other numbers of steps, rates, and another memory of Adam.

    OMP_NUM_THREADS=1 python benchmarks/short_runs.py --data-dir DIR --datasets kin40k,pol \
        [--runs 200:0.95:0.15:told,100:0.9] [--rows 1000] [--subsets 2] [--workers 2]

A run is `max_steps:adam_beta2[:learning_rate][:told]`; everything else is an estimator's default.
`told` gives the noise to start from, as the default has it, so that a regressor does not look for
its hyperparameters in the evidence of a few rows. Prints the mean log density of 2 000 test rows,
of numbers in units of the standardised target, averaged over subsets, and below it how far each
run is ahead of the first.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.estimators.defaults import NOISE_VARIANCE

TEST_ROWS = 2000


def measure(directory: Path, name: str, rows: int, subset: int, run: str) -> tuple[float, float]:
    """Mean log density of the test rows, and seconds of `fit`."""
    with np.load(next(directory.glob(f"*/{name}.npz"))) as file:
        x, y = file["X"].astype(float), file["y"]
    order = np.random.default_rng(subset).permutation(len(x))
    train, test = order[:rows], order[rows : rows + TEST_ROWS]
    regression = y.dtype.kind == "f"
    if regression:
        y = (y - y[train].mean()) / y[train].std()
    else:
        # A class that the training rows lack has no density.
        test = test[np.isin(y[test], y[train])]
    steps, beta2, *rate = run.removesuffix(":told").split(":")
    given = {"max_steps": int(steps), "adam_beta2": float(beta2), "random_state": 0}
    given["n_neighbors"] = 0
    given |= {"learning_rate": float(rate[0])} if rate else {}
    given |= {"noise_variance": NOISE_VARIANCE * y[train].var()} if run.endswith("told") else {}
    gp = OrthogonalGPRegressor(**given) if regression else OrthogonalGPClassifier(**given)
    start = time.perf_counter()
    gp.fit(x[train], y[train])
    seconds = time.perf_counter() - start
    if regression:
        return float(gp.log_density(x[test], y[test]).mean()), seconds
    return -log_loss(y[test], gp.predict_proba(x[test]), labels=gp.classes_), seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets", required=True)
    parser.add_argument("--runs", default="200:0.95:0.15:told,100:0.9:0.03")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--subsets", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    names, runs = options.datasets.split(","), options.runs.split(",")
    jobs = list(product(names, range(options.subsets), runs))
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        waiting = [
            pool.submit(measure, options.data_dir, name, options.rows, subset, run)
            for name, subset, run in jobs
        ]
        found = dict(zip(jobs, (one.result() for one in waiting), strict=True))

    def mean(name: str, run: str, which: int) -> float:
        return float(np.mean([found[name, k, run][which] for k in range(options.subsets)]))

    print("| set |", " | ".join(runs), "|")
    print("|---" * (len(runs) + 1) + "|")
    for name in names:
        print(f"| {name} |", " | ".join(f"{mean(name, run, 0):.3f}" for run in runs), "|")
    ahead = [np.mean([mean(n, run, 0) - mean(n, runs[0], 0) for n in names]) for run in runs]
    print("| ahead of the first |", " | ".join(f"{value:+.3f}" for value in ahead), "|")
    spent = [np.mean([mean(n, run, 1) for n in names]) for run in runs]
    print("| seconds |", " | ".join(f"{value:.1f}" for value in spent), "|")


if __name__ == "__main__":
    main()
