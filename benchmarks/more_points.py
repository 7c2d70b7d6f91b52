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


def measure(path: Path, residual: list[int], seeds: int, device: str | None) -> np.ndarray:
    """Bound a row, RMSE and seconds for every number of residual points: `[points, 3]`."""
    with np.load(path) as file:
        x, y = file["X"].astype(float), file["y"].astype(float)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [int(0.9 * len(x))])
    y = (y - y[train].mean()) / y[train].std()
    found = np.zeros((seeds, len(residual), 3))
    for seed in range(seeds):
        for k, count in enumerate(residual):
            start = time.monotonic()
            gp = OrthogonalGPRegressor(n_residual=count, device=device, random_state=seed)
            gp.fit(x[train], y[train])
            seconds = time.monotonic() - start
            error = float(np.sqrt(np.mean((gp.predict(x[test]) - y[test]) ** 2)))
            found[seed, k] = gp.elbo_ / len(train), error, seconds
    return found.mean(axis=0)


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
    # The largest first, so that no worker is left with it at the end.
    paths = sorted(options.data_dir.glob("regression/*.npz"), key=lambda path: -path.stat().st_size)
    if options.datasets:
        paths = [path for path in paths if path.stem in options.datasets.split(",")]
    heads = [f"{count} points: bound, RMSE" for count in residual]
    print(f"| set | {' | '.join(heads)} | largest fall | seconds |")
    print("|---" * (len(residual) + 3) + "|", flush=True)
    fallen = []
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        waiting = {
            pool.submit(measure, path, residual, options.seeds, options.device): path
            for path in paths
        }
        for done in as_completed(waiting):
            path, found = waiting[done], done.result()
            fall = max(0.0, float(-np.diff(found[:, 0]).min(initial=0.0)))
            fallen += [path.stem] if fall > TOLERANCE else []
            cells = [f"{bound:.4f}, {error:.4f}" for bound, error, _ in found]
            seconds = ", ".join(f"{s:.0f}" for s in found[:, 2])
            print(f"| {path.stem} | {' | '.join(cells)} | {fall:.4f} | {seconds} |", flush=True)
    print(f"falls by more than {TOLERANCE} nats a row: {', '.join(fallen) or 'none'}")


if __name__ == "__main__":
    main()
