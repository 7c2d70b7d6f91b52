"""Seconds of the first `fit` of a new process: 1 000 rows of 10 columns, default settings, CPU.

    python benchmarks/first_fit.py [--runs 5]

Each fit in a process of its own, imports not counted; first with the compiled code of earlier
processes at hand, then with none, as on a machine that has never fitted a model.
"""

import argparse
import os
import statistics
import subprocess
import sys

FIT = """
import time
import numpy as np
from orthogp import OrthogonalGPRegressor
rng = np.random.default_rng(0)
x = rng.normal(size=(1000, 10))
y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=1000)
start = time.perf_counter()
OrthogonalGPRegressor(device="cpu", random_state=0).fit(x, y)
print(time.perf_counter() - start)
"""


def seconds(environment: dict[str, str]) -> float:
    command = [sys.executable, "-W", "ignore", "-c", FIT]
    completed = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return float(completed.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    # One that is not counted leaves its code behind.
    seconds({})
    for label, environment in (("code kept", {}), ("never compiled", {"ORTHOGP_CACHE": ""})):
        found = sorted(seconds(environment) for _ in range(options.runs))
        middle = statistics.median(found)
        print(f"{label}: {middle:.1f} s ({', '.join(f'{value:.1f}' for value in found)})")


if __name__ == "__main__":
    main()
