"""Test metrics while a run goes on, in a file that a killed run continues."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from orthogp.training import Event, Report

Row = dict[str, int | float]


def history_row(report: Report, num_rows: int) -> Row:
    """A report as records keep it, the bound in nats a row."""
    return {"step": report.step, "seconds": report.seconds, "bound": report.bound / num_rows}


class Curve:
    """A callback that adds `look()` to every report and takes its time off the clock."""

    def __init__(self, path: Path, num_rows: int, look: Callable[[], dict[str, float]]):
        self.path, self.num_rows, self.look = path, num_rows, look
        self.rows: list[Row] = []
        self.looking = 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self._continue(event.step, event.history)
        elif event.report is not None:
            row = history_row(event.report, self.num_rows)
            row["seconds"] -= self.looking
            start = time.monotonic()
            row |= self.look()
            self.rows.append(row)
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")
            self.looking += time.monotonic() - start

    def _continue(self, step: int, history: tuple[Report, ...]) -> None:
        """Keeps the rows up to the checkpoint; what was written after it comes again."""
        kept = [row for row in _read(self.path) if row["step"] <= step]
        self.rows = kept
        self.looking = history[-1].seconds - kept[-1]["seconds"] if history and kept else 0.0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            # The line that a kill cut short.
            break
    return rows
