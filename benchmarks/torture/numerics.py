"""Runs that numbers make hard, with the estimators' default settings: every one must end finite.

    python benchmarks/torture/numerics.py [--data-dir DIR] [--seeds 5] [--synthetic-seeds 50]
        [--cases NAME,...] [--dtypes float32,float64] [--workers 2] [--device cpu|cuda]
        [--out FILE.jsonl]

Every table of the directory (DIR/TASK/NAME.npz; at most 20 000 rows, 300 steps) and the synthetic
cases of `hard_cases.py`. One line of JSON a run goes to FILE; runs that it has already are not done
again. A table of the cases comes at the end, then one line; the exit status is 1 where a run did
not end finite.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Before torch is imported, here and in the workers.
os.environ["OMP_NUM_THREADS"] = "1"

STEPS = 300
KEY = ("case", "dtype", "seed")


def attempt(case: str, dtype: str, seed: int, data_dir: str, device: str) -> dict[str, Any]:
    """One run and what became of it; nothing that goes wrong in it is raised."""
    import warnings

    import torch
    from hard_cases import problem

    torch.set_num_threads(1)
    record: dict[str, Any] = {"case": case, "dtype": dtype, "seed": seed, "device": device}
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record |= _fitted(problem(case, seed, data_dir), dtype, seed, device)
    except Exception as error:
        record |= {"finite": False, "reason": f"{type(error).__name__}: {error}"}
    return record | {"seconds": round(time.monotonic() - began, 2)}


def _fitted(hard, dtype: str, seed: int, device: str) -> dict[str, Any]:
    import numpy as np

    from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

    recoveries: list[str] = []

    def listen(event) -> None:
        if event.kind == "recovery":
            recoveries.append(event.message)

    settings = {"max_steps": STEPS, "dtype": dtype, "device": device, "random_state": seed}
    kind = OrthogonalGPClassifier if hard.classifies else OrthogonalGPRegressor
    gp = kind(**settings, **hard.settings, callbacks=[listen]).fit(hard.X, hard.y)
    state = [*gp.model_.parameters(), *gp.model_.buffers()]
    checks = {"bound": bool(np.isfinite(gp.elbo_))}
    # The bounds of a constraint may be infinite, and a count is no float.
    names = [*dict(gp.model_.named_parameters()), *dict(gp.model_.named_buffers())]
    own = [v for name, v in zip(names, state, strict=True) if not name.endswith("_bound")]
    checks["parameters"] = all(bool(v.isfinite().all()) for v in own)
    if isinstance(gp, OrthogonalGPClassifier):
        p = gp.predict_proba(hard.X_test)
        checks["predictions"] = bool(np.isfinite(p).all() and (p >= 0).all() and (p <= 1).all())
        quality = {"error": float(np.mean(gp.predict(hard.X_test) != hard.y_test))}
    else:
        mean, std = gp.predict(hard.X_test, return_std=True)
        interval = gp.predict_interval(hard.X_test)
        checks["predictions"] = bool(np.isfinite(mean).all() and np.isfinite(interval).all())
        checks["variances"] = bool(np.isfinite(std).all() and (std >= 0).all())
        spread = float(np.std(hard.y_test)) or 1.0
        quality = {"rmse": float(np.sqrt(np.mean((mean - hard.y_test) ** 2))) / spread}
    wrong = [name for name, right in checks.items() if not right]
    end = {"finite": not wrong, "reason": f"not finite: {', '.join(wrong)}" if wrong else ""}
    return end | {"recoveries": len(recoveries), "causes": recoveries, **quality}


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    from hard_cases import SYNTHETIC

    tables = []
    if options.data_dir:
        from orthogp.apps.paper.datasets import TASKS, available

        root = Path(options.data_dir)
        tables = [f"{task}/{name}" for task in TASKS for name in available(root, task)]
    chosen = options.cases.split(",") if options.cases else [*tables, *SYNTHETIC]
    for case in chosen:
        seeds = options.synthetic_seeds if case in SYNTHETIC else options.seeds
        for dtype in options.dtypes.split(","):
            yield from ((case, dtype, seed) for seed in range(seeds))


def records(path: Path) -> list[dict[str, Any]]:
    """What a run before this one left; a line that it was killed in is not counted."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def run_all(options: argparse.Namespace, path: Path) -> None:
    done = {tuple(r[key] for key in KEY) for r in records(path)}
    jobs = [job for job in wanted(options) if job not in done]
    spawn = multiprocessing.get_context("spawn")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        _gpu(options.device),
        ProcessPoolExecutor(options.workers, mp_context=spawn) as pool,
        open(path, "a") as out,
    ):
        data = options.data_dir or ""
        waiting = [pool.submit(attempt, *job, data, options.device) for job in jobs]
        for number, future in enumerate(as_completed(waiting), 1):
            record = future.result()
            out.write(json.dumps(record) + "\n")
            out.flush()
            if not record["finite"]:
                print(json.dumps(record), file=sys.stderr)
            if number % 50 == 0:
                print(f"{number} of {len(jobs)} runs", file=sys.stderr)


def _gpu(device: str) -> contextlib.AbstractContextManager[Any]:
    if device != "cuda":
        return contextlib.nullcontext()
    from orthogp.apps.paper.runner import shared_gpu

    return shared_gpu("cuda")


def table(found: list[dict[str, Any]]) -> str:
    """A line of Markdown for every case and dtype."""
    lines = [
        "| case | dtype | runs | finite | with recoveries | recoveries | median RMSE or error |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, dtype in dict.fromkeys((r["case"], r["dtype"]) for r in found):
        own = [r for r in found if (r["case"], r["dtype"]) == (case, dtype)]
        counts = [r.get("recoveries", 0) for r in own]
        quality = sorted(r[name] for r in own for name in ("rmse", "error") if name in r)
        middle = f"{quality[len(quality) // 2]:.3f}" if quality else "–"
        share = f"{100 * sum(r['finite'] for r in own) / len(own):.0f} %"
        troubled = sum(count > 0 for count in counts)
        lines.append(
            f"| {case} | {dtype} | {len(own)} | {share} | {troubled} | {sum(counts)} | {middle} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fits that numbers make hard.")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--seeds", type=int, default=5, help="of every table")
    parser.add_argument("--synthetic-seeds", type=int, default=50)
    parser.add_argument("--cases", default="", help="only these; TASK/NAME for a table")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", default="build/torture/numerics.jsonl")
    options = parser.parse_args()
    path = Path(options.out)
    run_all(options, path)
    done = {tuple(r[key] for key in KEY): r for r in records(path)}
    found = [done[job] for job in wanted(options) if job in done]
    print(table(found))
    finite = sum(r["finite"] for r in found)
    print(
        f"numerics: {len(found)} runs of {len({r['case'] for r in found})} cases, {finite} ended "
        f"finite, {sum(r.get('recoveries', 0) > 0 for r in found)} after recoveries "
        f"({sum(r.get('recoveries', 0) for r in found)} in all), "
        f"{sum(r['seconds'] for r in found) / 60:.0f} minutes of work"
    )
    return int(finite < len(found) or not found)


if __name__ == "__main__":
    sys.exit(main())
