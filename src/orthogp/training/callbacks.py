"""What a run tells while it goes: plain callables that take an `Event`."""

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from orthogp.errors import ConfigurationError


@dataclass(frozen=True)
class Report:
    """One row of the history: the bound is the mean estimate of the steps since the last row."""

    step: int
    seconds: float
    bound: float
    held_out: float | None
    learning_rate: float
    natural_step: float


@dataclass(frozen=True)
class Event:
    """`start` comes with the history so far (of a resumed run), `report` with its newest row.

    `end` comes once, with the reason: that of the result, or the error that ended the run.
    """

    kind: Literal["start", "report", "recovery", "end"]
    step: int
    report: Report | None = None
    message: str = ""
    history: tuple[Report, ...] = field(default=())


Callback = Callable[[Event], None]
COLUMNS = tuple(Report.__dataclass_fields__)


class CsvHistory:
    """Writes the history to a CSV file, one row a report; a resumed run continues the same file."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            with open(self.path, "w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(asdict(row) for row in event.history)
        elif event.report is not None:
            with open(self.path, "a", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow(asdict(event.report))


class JsonlHistory:
    """Writes every event to a file of one JSON object a line."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def __call__(self, event: Event) -> None:
        rows: list[dict[str, Any]] = []
        if event.kind == "start":
            self.path.write_text("")
            rows += [{"kind": "report", **asdict(row)} for row in event.history]
        elif event.report is not None:
            rows.append({"kind": event.kind, **asdict(event.report)})
        else:
            rows.append({"kind": event.kind, "step": event.step, "message": event.message})
        with open(self.path, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


class TensorBoard:
    """Writes scalars for TensorBoard; needs the `tensorboard` package."""

    def __init__(self, directory: str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                "the TensorBoard callback needs the tensorboard package: pip install tensorboard"
            ) from error
        self.new_writer, self.directory = SummaryWriter, str(directory)

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            # What a killed process wrote after the checkpoint comes again.
            purge = event.step + 1 if event.step else None
            self.writer = self.new_writer(self.directory, purge_step=purge)
        if event.report is not None:
            for name in COLUMNS[1:]:
                value = getattr(event.report, name)
                if value is not None:
                    self.writer.add_scalar(name, value, event.report.step)
        if event.kind == "end":
            self.writer.close()
