"""One cell of the grid: load, split, train, measure; it resumes after a kill."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from orthogp import training
from orthogp.apps.paper.datasets import DataSet, Split, load, split_dataset
from orthogp.apps.paper.experiments import EXPERIMENTS, METHODS, OPTIMUM
from orthogp.apps.paper.metrics import model_metrics
from orthogp.apps.paper.models import build_model, run_optimum
from orthogp.apps.paper.own import FitResult, run_boosting, run_default, run_ngboost
from orthogp.apps.paper.records import (
    HistoryRow,
    Job,
    Record,
    provenance,
    read_record,
    write_record,
)
from orthogp.errors import FileError
from orthogp.training import Event, Report, Rows, full_bound


@dataclass(frozen=True)
class Place:
    """Where jobs find their data, leave their records, and run. `steps` None means the paper's.

    `run` fits and measures a job, in a folder that it may leave checkpoints in; None means the
    paper's methods. A function of a module, since it is sent to other processes.
    """

    data_dir: Path
    out: Path
    device: str = "cpu"
    steps: int | None = None
    run: "Callable[[Job, DataSet, Split, Place, Path], FitResult] | None" = None


def finished(job: Job, place: Place) -> Record | None:
    """The record of a job that needs no second run; a failed one, or one of fewer steps, does."""
    path = job.path(place.out)
    try:
        record = read_record(path) if path.exists() else None
    except FileError:
        return None
    if record is None or record.status != "done":
        return None
    if job.method not in METHODS:
        return record
    wanted = place.steps or EXPERIMENTS[job.experiment].training.max_steps
    return record if record.steps >= wanted else None


def perform(job: Job, task: str, place: Place) -> Record | None:
    """Runs a job and writes its record; None when another process is at it.

    What goes wrong is recorded as the reason of a failure, so that a grid goes on.
    """
    with _lock_file(job.path(place.out).with_suffix(".lock")) as acquired:
        if not acquired:
            return None
        done = finished(job, place)
        if done is not None:
            return done
        folder = job.path(place.out).with_suffix("")
        data: dict[str, Any] = {}
        start = time.monotonic()
        try:
            table = load(place.data_dir, task, job.dataset)
            data |= _described(table)
            parts = split_dataset(table, job.split)
            data |= {"train_rows": len(parts.x_train), "test_rows": len(parts.x_test)}
            result = (place.run or run_method)(job, table, parts, place, folder)
            record = Record(job, "done", data=data, **vars(result))
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            record = Record(job, "failed", f"{type(error).__name__}: {reason}", data=data)
        seconds = record.seconds or time.monotonic() - start
        record = replace(record, seconds=seconds, **provenance(place.device))
        write_record(record, place.out)
        shutil.rmtree(folder, ignore_errors=True)
        return record


def run_method(job: Job, table: DataSet, parts: Split, place: Place, folder: Path) -> FitResult:
    """A method of the paper's experiments."""
    experiment, regression = EXPERIMENTS[job.experiment], table.task == "regression"
    if job.method == "Default":
        return run_default(parts, regression, job.split, place.device, folder)
    if job.method == "Boosting":
        return run_boosting(parts, regression, job.split)
    if job.method == "NGBoost":
        return run_ngboost(parts, job.split)
    train = Rows(torch.from_numpy(parts.x_train), torch.from_numpy(parts.y_train))
    test = Rows(torch.from_numpy(parts.x_test), torch.from_numpy(parts.y_test))
    if job.method == OPTIMUM:
        return run_optimum(experiment, train, test, job.split, place.device)
    settings = experiment.model_settings(table.task, job.method)
    model = build_model(settings, train, table.num_classes, job.split, place.device)
    config = experiment.training_config(len(train), job.split, place.steps)
    curve = Curve(folder / "curve.jsonl", len(train), lambda: model_metrics(model, test))
    callbacks = (curve,) if experiment.curves else ()
    result = training.fit(model, train, config, None, callbacks, folder)
    if result.reason == "interrupt":
        raise KeyboardInterrupt
    metrics = model_metrics(model, test) | {"bound": full_bound(model, train) / len(train)}
    history = [history_row(report, len(train)) for report in result.history]
    return FitResult(
        settings={**asdict(settings), "training": config.as_dict()},
        metrics=metrics,
        steps=result.steps,
        recoveries=result.recoveries,
        seconds=result.seconds - curve.overhead,
        history=curve.rows if experiment.curves else history,
    )


def _described(table: DataSet) -> dict[str, Any]:
    rows, inputs = table.X.shape
    return {
        "task": table.task, "rows": rows, "inputs": inputs, "classes": table.num_classes,
        "sha256": table.sha256,
    }  # fmt: skip


def history_row(report: Report, num_rows: int) -> HistoryRow:
    """A report for a record, the bound in nats a row."""
    return {"step": report.step, "seconds": report.seconds, "bound": report.bound / num_rows}


class Curve:
    """A callback that adds `evaluate()` to every report, and does not count its time."""

    def __init__(self, path: Path, num_rows: int, evaluate: Callable[[], dict[str, float]]):
        self.path, self.num_rows, self.evaluate = path, num_rows, evaluate
        self.rows: list[HistoryRow] = []
        self.overhead = 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self._continue(event.step, event.history)
        elif event.report is not None:
            row = history_row(event.report, self.num_rows)
            row["seconds"] -= self.overhead
            start = time.monotonic()
            row |= self.evaluate()
            self.rows.append(row)
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")
            self.overhead += time.monotonic() - start

    def _continue(self, step: int, history: tuple[Report, ...]) -> None:
        """Keeps the rows up to the checkpoint; later ones will be written again."""
        rows = [row for row in _read_rows(self.path) if row["step"] <= step]
        self.rows = rows
        self.overhead = history[-1].seconds - rows[-1]["seconds"] if history and rows else 0.0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _read_rows(path: Path) -> list[HistoryRow]:
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


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[bool]:
    """Whether this process has acquired the lock; that of a killed process is free."""
    # Not there on every system; imported where it is needed.
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it between these two lines.
            acquired = os.fstat(file.fileno()).st_ino == path.stat().st_ino
        except (BlockingIOError, FileNotFoundError):
            acquired = False
        try:
            yield acquired
        finally:
            if acquired:
                path.unlink(missing_ok=True)
