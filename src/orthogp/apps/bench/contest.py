"""Runs contestants, each in its own process, one after the other, round after round."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

from orthogp.apps.bench.contestants import Entry

SCRIPT = Path(__file__).with_name("worker.py")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Say = Callable[[str], None]


def quiet(message: str) -> None:
    """Prints no progress."""


class ContestantError(Exception):
    """Why a contestant cannot go on."""


class Process:
    """A worker process; `stderr_file` is a file for what its libraries print, read if it dies."""

    def __init__(self, python: str, threads: int | None, stderr_file: IO[str]):
        limits = {} if threads is None else dict.fromkeys(THREAD_VARIABLES, str(threads))
        self.stderr_file = stderr_file
        self.process = subprocess.Popen(
            [python, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr_file,
            text=True,
            env=os.environ | limits,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            raise ContestantError(f"its process ended with code {code}{self.last_line()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContestantError(answer["error"])
        return answer

    def last_line(self) -> str:
        self.stderr_file.seek(0)
        lines = self.stderr_file.read().strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class BenchResult:
    """Medians by contestant, and why some have none."""

    values: dict[str, float] = field(default_factory=dict)
    peak_mb: dict[str, float | None] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def compete(
    entries: Mapping[str, Entry],
    pythons: Mapping[str, str],
    warm_up: dict[str, Any],
    task: dict[str, Any],
    key: str,
    repeats: int,
    say: Say = quiet,
) -> BenchResult:
    """Builds every contestant, then gives each its task in turn, `repeats` times.

    `key` names the figure of an answer whose median is the result. A contestant that fails is left
    out of the rounds that follow, with its reason among the skipped.
    """
    outcome, figures = BenchResult(), {name: [] for name in entries}
    processes: dict[str, Process] = {}
    with ExitStack() as stack:

        def attempt(name: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
            try:
                return [processes[name].ask(**message) for message in messages]
            except ContestantError as failure:
                processes.pop(name)
                outcome.skipped[name] = str(failure)
                return []

        for name, entry in entries.items():
            say(f"{name}: builds and warms up")
            python = pythons.get(entry.library, sys.executable)
            stderr_file = stack.enter_context(tempfile.TemporaryFile("w+"))
            try:
                processes[name] = Process(python, entry.setup.threads, stderr_file)
            except OSError as error:
                outcome.skipped[name] = f"{python} could not be started: {error.strerror}"
                continue
            stack.callback(processes[name].close)
            build = {"do": "build", "model": entry.model, "setup": asdict(entry.setup)}
            for answer in attempt(name, build, warm_up)[:1]:
                outcome.versions |= answer["versions"]
        for k in range(repeats):
            for name in list(processes):
                say(f"{name}: round {k + 1} of {repeats}")
                figures[name] += [answer[key] for answer in attempt(name, task)]
        for name in list(processes):
            outcome.values[name] = median(figures[name])
            for answer in attempt(name, {"do": "finish"}):
                outcome.peak_mb[name] = answer["peak_mb"]
    return outcome
