"""Fits a Parquet directory that is streamed, beside the same rows in memory.

    python benchmarks/streaming.py --folder DIR [--rows 20000000] [--steps 300] [--device cuda]

Writes DIR once (ten inputs, one target, files of a million rows, row groups of 131072), then fits
in a process of its own from the directory and from arrays. Memory is the peak beyond what the
process had after its imports; steps a second are those of the loop, between the first report and
the last.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

COLUMNS = [f"x{k}" for k in range(10)]
FILE_ROWS, GROUP_ROWS = 1_000_000, 2**17


def write(folder: Path, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        path = folder / f"part-{number:03}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng(number)
        x = rng.normal(size=(min(FILE_ROWS, rows - start), len(COLUMNS))).astype(np.float32)
        y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=len(x))
        table = pa.table({**dict(zip(COLUMNS, x.T, strict=True)), "y": y.astype(np.float32)})
        parquet.write_table(table, path, row_group_size=GROUP_ROWS)


def resident() -> float:
    """MB that the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


class Watch(threading.Thread):
    """The most that the process has held since it was started."""

    def __init__(self):
        super().__init__(daemon=True)
        self.base = self.peak = resident()

    def run(self):
        while True:
            self.peak = max(self.peak, resident())
            time.sleep(0.02)


def fit(kind: str, folder: Path, steps: int, device: str | None) -> dict:
    import pandas as pd
    import pyarrow.dataset
    import sklearn.cluster  # noqa: F401
    import torch  # noqa: F401

    from orthogp import OrthogonalGPRegressor
    from orthogp.training import full_bound  # noqa: F401

    watch = Watch()
    watch.start()
    gp = OrthogonalGPRegressor(n_neighbors=0, max_steps=steps, device=device, random_state=0)
    start = time.monotonic()
    if kind == "stream":
        gp.fit(folder, "y")
    else:
        table: pd.DataFrame = pyarrow.dataset.dataset(folder).to_table().to_pandas()
        gp.fit(table[COLUMNS], table["y"])
    first, last = gp.history_[0], gp.history_[-1]
    return {
        "kind": kind,
        "steps_a_second": (last["step"] - first["step"]) / (last["seconds"] - first["seconds"]),
        "memory_mb": watch.peak - watch.base,
        "fit_seconds": time.monotonic() - start,
        "elbo": gp.elbo_,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device")
    parser.add_argument("--kind", choices=["stream", "memory"])
    options = parser.parse_args()
    if options.kind is not None:
        print(json.dumps(fit(options.kind, options.folder, options.steps, options.device)))
        return
    write(options.folder, options.rows)
    found = {}
    for kind in ("memory", "stream"):
        completed = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--kind", kind],
            check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        found[kind] = json.loads(completed.stdout.splitlines()[-1])
        print(found[kind], flush=True)
    ratio = found["stream"]["steps_a_second"] / found["memory"]["steps_a_second"]
    print(f"throughput of the stream: {100 * ratio:.0f} % of that in memory")


if __name__ == "__main__":
    main()
