"""Robust-max and softmax side by side: the classifier's likelihoods for more than two classes.

    python benchmarks/classes.py --data-dir DIR --datasets waveform,pendigits \
        [--rows 2000] [--validation-fraction 0] [--likelihoods softmax]

The fits have the same training rows, points and seed, and every other setting at its default.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from orthogp import OrthogonalGPClassifier
from orthogp.apps.paper.datasets import load, split_dataset

MOST_TEST_ROWS = 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets", required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--likelihoods", default="robustmax,softmax")
    parser.add_argument("--validation-fraction", type=float, default=0.1)
    parser.add_argument("--device")
    asked = parser.parse_args()
    print("| set | classes | likelihood | log density | accuracy | seconds |")
    print("|---|---|---|---|---|---|")
    for name in asked.datasets.split(","):
        part = split_dataset(load(asked.data_dir, "classification", name), 0)
        X, y = part.x_train[: asked.rows], part.y_train[: asked.rows]
        known = np.isin(part.y_test, y)
        X_test, y_test = part.x_test[known][:MOST_TEST_ROWS], part.y_test[known][:MOST_TEST_ROWS]
        for likelihood in asked.likelihoods.split(","):
            start = time.perf_counter()
            gp = OrthogonalGPClassifier(
                likelihood=likelihood, validation_fraction=asked.validation_fraction,
                device=asked.device, random_state=0,
            ).fit(X, y)  # fmt: skip
            seconds = time.perf_counter() - start
            density, accuracy = gp.log_density(X_test, y_test).mean(), gp.score(X_test, y_test)
            print(
                f"| {name} | {len(gp.classes_)} | {likelihood} | {density:.3f} "
                f"| {accuracy:.1%} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
