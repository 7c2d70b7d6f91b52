"""Near rows of tables that no memory holds: time and memory of a fit and of predictions against N.

    python benchmarks/hundred_million.py --folder DIR [--rows 1e5,1e6,1e7,1e8] [--device cuda]
    python benchmarks/hundred_million.py --picture scaling.png --records records.jsonl

A table of 8 inputs and one target is written to DIR once for every N, as NumPy arrays; its function
is a sum of waves, too rough for some hundred points. Each N is fitted in a process of its own from
memory maps, and predicts `--predict` new rows. Records are JSON lines, appended to `--records`.

Memory is the peak resident set of the process (`ru_maxrss`), with the interpreter and the pages of
the table's memory maps that it touched; `anonymous_gb` is the largest `RssAnon` seen, without pages
of files, which the system takes back when it needs them. The rows in `rows_dir` are read and not
mapped: they are in neither. `--points` also fits the variational posterior alone (`n_neighbors=0`).
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

INPUTS, WAVES, NOISE, BLOCK = 8, 24, 0.05, 2**20


def function(x: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(7)
    frequencies = 2.0 * rng.normal(size=(INPUTS, WAVES)).astype(np.float32)
    phases = rng.uniform(0, 2 * np.pi, WAVES).astype(np.float32)
    return np.sin(x @ frequencies + phases).sum(1) / np.sqrt(WAVES / 2)


def write(folder: Path, rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    if done.exists():
        return
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, INPUTS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows,))
    for number, start in enumerate(range(0, rows, BLOCK)):
        rng = np.random.default_rng([1, number])
        part = rng.uniform(-1, 1, (min(BLOCK, rows - start), INPUTS)).astype(np.float32)
        x[start : start + BLOCK] = part
        noise = NOISE * rng.standard_normal(len(part), dtype=np.float32)
        y[start : start + BLOCK] = function(part) + noise
    done.touch()


class Watch(threading.Thread):
    """The most memory of its own, without pages of files, that the process has held."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0.0

    def run(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
            self.peak = max(self.peak, int(status.split()[0]) / 2**20)
            time.sleep(0.05)


def trial(folder: Path, rows: int, options: argparse.Namespace) -> dict:
    import torch

    from orthogp import OrthogonalGPRegressor
    from orthogp.estimators import streamed

    # Smaller tables too: the law is that of one way.
    streamed.LOADED_BYTES = 0
    watch = Watch()
    watch.start()
    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    place = folder / "rows"
    shutil.rmtree(place, ignore_errors=True)
    settings = {"n_neighbors": 0} if options.points else {"rows_dir": place}
    gp = OrthogonalGPRegressor(device=options.device, random_state=0, **settings)
    start, processor = time.monotonic(), time.process_time()
    gp.fit(x, y)
    fit_seconds, fit_processor = time.monotonic() - start, time.process_time() - processor
    new = np.random.default_rng(99).uniform(-1, 1, (options.predict, INPUTS))
    start, processor = time.monotonic(), time.process_time()
    mean, std = gp.predict(new, return_std=True)
    seconds, predict_processor = time.monotonic() - start, time.process_time() - processor
    truth = function(new.astype(np.float32))
    observed = truth + NOISE * np.random.default_rng(5).normal(size=len(truth))
    near = gp.model_.near
    found = {} if near is None else {
        "near": near.count, "on_beta": near.on_beta, "cells": near.store.num_cells,
        "probes": near.probes, "recall": near.recall, "disk_gb": near.store.nbytes / 1e9,
    }  # fmt: skip
    record = {
        "rows": rows, "kind": "points" if options.points else "near rows",
        "device": torch.cuda.get_device_name() if gp._fitted.predictor.device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads of {os.cpu_count()} cores",
        "fit_seconds": fit_seconds, "fit_processor_seconds": fit_processor,
        "predicted": options.predict, "predict_seconds": seconds,
        "predict_processor_seconds": predict_processor,
        "resident_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "anonymous_gb": watch.peak, "rmse": float(np.sqrt(np.mean((mean - truth) ** 2))),
        "coverage_90": float(np.mean(np.abs(mean - observed) < 1.645 * std)),
        "commit": commit(), **found,
    }  # fmt: skip
    if torch.cuda.is_available():
        record["cuda_gb"] = torch.cuda.max_memory_allocated() / 2**30
    shutil.rmtree(place, ignore_errors=True)
    return record


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def law(records: list[dict], name: str) -> tuple[float, float]:
    """a and b of a + b N, by least squares of relative errors, neither below zero."""
    from scipy.optimize import nnls

    rows, values = (np.array([float(r[key]) for r in records]) for key in ("rows", name))
    design = np.stack([np.ones_like(rows), rows], axis=1) / values[:, None]
    scale = design.max(0)
    return tuple(nnls(design / scale, np.ones_like(rows))[0] / scale)


def root_law(records: list[dict], name: str) -> tuple[float, float]:
    """a and b of a + b √N, likewise."""
    return law([{"rows": float(r["rows"]) ** 0.5, name: r[name]} for r in records], name)


def picture(path: Path, records: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for device in sorted({r["device"] for r in records}):
        found = sorted(
            (r for r in records if r["device"] == device and r["kind"] == "near rows"),
            key=lambda r: r["rows"],
        )
        for r in found:
            r["us_a_row"] = 1e6 * r["predict_seconds"] / r["predicted"]
        rows = np.array([float(r["rows"]) for r in found])
        line = np.geomspace(rows.min(), rows.max(), 50)
        laws = (("fit_seconds", law, line), ("us_a_row", root_law, line**0.5),
                ("resident_gb", law, line))  # fmt: skip
        for axis, (name, fitted, x) in zip(axes, laws, strict=True):
            (points,) = axis.loglog(rows, [r[name] for r in found], "o", label=device)
            if len(found) > 2:
                a, b = fitted(found, name)
                root = "√" if fitted is root_law else ""
                label = f"{a:.3g} + {b:.3g} {root}N"
                axis.loglog(line, a + b * x, color=points.get_color(), label=label)
    titles = ("fit, seconds", "prediction, µs a row", "peak resident memory, GB")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xlabel="rows", title=title)
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rows", default="1e5,1e6,1e7,1e8")
    parser.add_argument("--predict", type=int, default=1_000_000)
    parser.add_argument("--device")
    parser.add_argument("--points", action="store_true")
    parser.add_argument("--records", type=Path, default=Path("hundred_million.jsonl"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(trial(options.folder / str(options.one), options.one, options)))
        return
    if options.folder is not None:
        for rows in (int(float(text)) for text in options.rows.split(",")):
            write(options.folder / str(rows), rows)
            completed = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--one", str(rows)],
                check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            line = completed.stdout.splitlines()[-1]
            print(line, flush=True)
            with open(options.records, "a") as file:
                file.write(line + "\n")
    if options.picture is not None:
        lines = options.records.read_text().splitlines()
        picture(options.picture, [json.loads(line) for line in lines])


if __name__ == "__main__":
    main()
