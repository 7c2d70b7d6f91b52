"""Whether more residual points ever hurt: one table row a data set, one column a number of points.

    python benchmarks/more_points.py --data-dir DIR [--datasets pol,bike] \
        [--residual 0,700,7000,30000] [--seeds 1] [--workers 1] [--device cpu]

`OrthogonalGPRegressor(n_residual=...)`, otherwise at its defaults, on nine rows in ten of every
regression set, the target standardised on them. Prints the bound in nats a row and the RMSE on the
other rows, means over the seeds, and how far the bound falls along a row at most.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from orthogp import OrthogonalGPRegressor

# Nats a row by which a bound may be lower with more points: what two seeds typically differ by.
TOLERANCE = 0.003


def measure(path: Path, count: int, seed: int, device: str | None) -> tuple[float, float, float]:
    """Bound a row, RMSE and seconds of one fit with `count` residual points."""
    with np.load(path) as file:
        x, y = file["X"].astype(float), file["y"].astype(float)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [int(0.9 * len(x))])
    y = (y - y[train].mean()) / y[train].std()
    start = time.monotonic()
    gp = OrthogonalGPRegressor(n_neighbors=0, n_residual=count, device=device, random_state=seed)
    gp.fit(x[train], y[train])
    seconds = time.monotonic() - start
    error = float(np.sqrt(np.mean((gp.predict(x[test]) - y[test]) ** 2)))
    return gp.elbo_ / len(train), error, seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets")
    parser.add_argument("--residual", default="0,700,7000,30000")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device")
    options = parser.parse_args()
    residual = [int(count) for count in options.residual.split(",")]
    # The slowest fits first, so that no worker is left with one of them at the end.
    paths = sorted(options.data_dir.glob("regression/*.npz"), key=lambda path: -path.stat().st_size)
    if options.datasets:
        paths = [path for path in paths if path.stem in options.datasets.split(",")]
    found = np.zeros((len(paths), options.seeds, len(residual), 3))
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        fits = {
            pool.submit(measure, paths[p], residual[k], seed, options.device): (p, seed, k)
            for k in np.argsort(residual)[::-1]
            for p in range(len(paths))
            for seed in range(options.seeds)
        }
        for fit in as_completed(fits):
            p, seed, k = fits[fit]
            bound, error, seconds = found[p, seed, k] = fit.result()
            print(
                f"{paths[p].stem}, {residual[k]} points, seed {seed}: "
                f"{bound:.4f}, {error:.4f}, {seconds:.0f} s",
                flush=True,
            )
    heads = [f"{count} points: bound, RMSE" for count in residual]
    print(f"| set | {' | '.join(heads)} | largest fall | seconds |")
    print("|---" * (len(residual) + 3) + "|")
    fallen = []
    for path, means in zip(paths, found.mean(axis=1), strict=True):
        fall = max(0.0, float(-np.diff(means[:, 0]).min(initial=0.0)))
        fallen += [path.stem] if fall > TOLERANCE else []
        cells = [f"{bound:.4f}, {error:.4f}" for bound, error, _ in means]
        times = ", ".join(f"{seconds:.0f}" for seconds in means[:, 2])
        print(f"| {path.stem} | {' | '.join(cells)} | {fall:.4f} | {times} |")
    print(f"falls by more than {TOLERANCE} nats a row: {', '.join(fallen) or 'none'}")


if __name__ == "__main__":
    main()
