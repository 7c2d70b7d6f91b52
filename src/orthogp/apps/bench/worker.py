"""The process of a contestant: builds and runs it on request, over lines of JSON.

Run by path, with another environment's Python where need be: a peer's environment has neither
orthogp nor, perhaps, a NumPy that suits it.
"""

import importlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

MIB = 2**20
SMALLEST_CHUNK = 256


class Worker:
    """What can be asked of this process: `build` first, then `train` or `predict`, and `finish`."""

    def build(self, model: str, setup: dict[str, Any]) -> dict[str, Any]:
        if setup["threads"] is not None and hasattr(os, "sched_setaffinity"):
            # Every library's threads follow the cores they may use; not all have a setting.
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setup["threads"]])
        # With the folder of this file on the path, as it is for a script.
        contract = importlib.import_module("contestants.contract")
        module, _, name = model.partition(":")
        make = getattr(importlib.import_module(f"contestants.{module}"), name)
        self.setup = contract.Setup(**setup)
        data = contract.make_data(self.setup)
        reset_peak()
        self.resident = memory("VmRSS")
        self.model = make(self.setup, data)
        return {"versions": self.model.versions}

    def train(self, steps: int) -> dict[str, Any]:
        """Seconds a step, after one that fills the caches again."""
        self.model.train(1)
        start = time.perf_counter()
        bound = self.model.train(steps)
        seconds = (time.perf_counter() - start) / steps
        if not math.isfinite(bound):
            raise FloatingPointError("its bound is not finite any more")
        return {"seconds": seconds}

    def predict(self) -> dict[str, Any]:
        """Rows a second, mean and variance of each back in NumPy."""
        chunk = self.model.chunk_rows or self.fastest_chunk()
        self.model.chunk_rows = chunk
        # Whole chunks only: a ragged one would be compiled anew by some.
        rows = self.setup.test_rows // chunk * chunk
        return {"rows_per_s": self.rate(chunk, rows)}

    def rate(self, chunk: int, rows: int) -> float:
        start = time.perf_counter()
        pieces = [self.model.predict(first, first + chunk) for first in range(0, rows, chunk)]
        rate = rows / (time.perf_counter() - start)
        for mean, variance in pieces:
            if not (math.isfinite(mean.sum()) and variance.min() > 0):
                raise FloatingPointError("its predictions are not finite, or a variance is not > 0")
        return rate

    def fastest_chunk(self) -> int:
        """Four times as many rows as long as that is faster."""
        chunk, best = min(SMALLEST_CHUNK, self.setup.test_rows), 0.0
        while chunk <= self.setup.test_rows:
            self.rate(chunk, chunk)
            rate = max(self.rate(chunk, chunk) for _ in range(3))
            if rate < best:
                break
            best, chunk = rate, 4 * chunk
        return chunk // 4

    def finish(self) -> dict[str, Any]:
        peak, resident = self.model.peak_bytes(), self.resident
        if peak is None and resident is not None:
            peak = (memory("VmHWM") or resident) - resident
        return {"peak_mb": None if peak is None else peak / MIB}


def memory(field: str) -> int | None:
    """VmRSS (now) or VmHWM (at most) of this process in bytes; None where /proc lacks it.

    Not getrusage's: the peak of a child begins there at its parent's.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(found[0]) if found else None


def reset_peak() -> None:
    """Forgets the peak of the imports, which is not the model's."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def main() -> None:
    # Whatever libraries print goes to stderr: stdout is for the answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        message = json.loads(line)
        try:
            answer = getattr(worker, message.pop("do"))(**message)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            answer = {"error": f"{type(error).__name__}: {reason}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
