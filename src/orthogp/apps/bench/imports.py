"""Seconds of an import in a fresh process."""

import subprocess
import sys
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from orthogp.apps.bench.checks import require_positive
from orthogp.apps.bench.contest import Say, quiet
from orthogp.apps.machine import describe_machine
from orthogp.errors import ConfigurationError

BASE = "torch_gpytorch"
STATEMENTS = {
    BASE: "import torch, gpytorch",
    "orthogp": "import orthogp",
    "orthogp_regressor": "from orthogp import OrthogonalGPRegressor",
}
TIMED = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


@dataclass(frozen=True)
class ImportsConfig:
    repeats: int = 7

    def __post_init__(self) -> None:
        require_positive(self, "repeats")


def imports(config: ImportsConfig, say: Say = quiet) -> dict[str, Any]:
    """The medians of interleaved processes; `ratio` is over torch and GPyTorch alone."""
    figures = {name: [] for name in STATEMENTS}
    # One round more than counted: the first reads files that later ones find in memory.
    for k in range(config.repeats + 1):
        for name, statement in STATEMENTS.items():
            say(f"{name}: round {k} of {config.repeats}")
            seconds = seconds_of(statement)
            if k:
                figures[name].append(seconds)
    ms = {name: 1e3 * median(seconds) for name, seconds in figures.items()}
    return {
        "config": asdict(config) | {"statements": STATEMENTS},
        "ms": ms,
        "ratio": {name: ms[name] / ms[BASE] for name in ms if name != BASE},
        "machine": describe_machine("cpu"),
    }


def seconds_of(statement: str) -> float:
    code = TIMED.format(statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ConfigurationError(f"{statement!r} failed: {said[-1] if said else 'without a word'}")
    return float(done.stdout)
