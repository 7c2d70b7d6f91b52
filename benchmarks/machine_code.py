"""Times fits and predictions on a CPU with the machine code of the kernel sums and without it.

    python benchmarks/machine_code.py [--pairs 5] [--steps 300] [--threads 2]

Each run is a process of its own, with `ORTHOGP_DISABLE=llvm` in every second one; the table holds
the medians of each kind, and the median and the extremes of the ratios of neighbours. A first pair,
which compiles and fills the cache on disk, is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROWS, PREDICTED, INPUTS = (5_000, 15_000), 50_000, 8


def measure(steps: int, threads: int) -> dict[str, float]:
    """Seconds of each part, in this process."""
    import numpy as np
    import torch

    from orthogp import OrthogonalGPRegressor

    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PREDICTED, INPUTS))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=len(x))
    # The imports and the first call of each library are in nobody's time.
    OrthogonalGPRegressor(n_neighbors=0, max_steps=5, random_state=0).fit(
        x[:1000], y[:1000]
    ).predict(x[:1000])
    seconds = {}
    for rows in ROWS:
        gp = OrthogonalGPRegressor(n_neighbors=0, max_steps=steps, random_state=0)
        start = time.perf_counter()
        gp.fit(x[:rows], y[:rows])
        seconds[f"fit of {rows} rows, {steps} steps"] = time.perf_counter() - start
        # Between two reports: steps alone, without the choice of points and the calibration.
        first, last = gp.history_[0], gp.history_[-1]
        taken = (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
        seconds[f"a step, {rows} rows"] = taken
    start = time.perf_counter()
    gp.predict(x, return_std=True)
    seconds[f"prediction of {PREDICTED} rows"] = time.perf_counter() - start
    return seconds


def run(disabled: str, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", *sys.argv[1:]]
    environment = os.environ | {"ORTHOGP_DISABLE": disabled}
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.steps, options.threads)))
        return
    pairs = [(run("", options), run("llvm", options)) for _ in range(options.pairs + 1)][1:]
    print("| | machine code, s | plain torch, s | gain |\n|---|---|---|---|")
    for part in pairs[0][0]:
        with_it, without = (statistics.median(pair[k][part] for pair in pairs) for k in (0, 1))
        gains = sorted(slow[part] / fast[part] for fast, slow in pairs)
        middle = statistics.median(gains)
        print(
            f"| {part} | {with_it:.4g} | {without:.4g} | "
            f"{middle:.2f} ({gains[0]:.2f} to {gains[-1]:.2f}) |"
        )


if __name__ == "__main__":
    main()
