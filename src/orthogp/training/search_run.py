"""The search for hyperparameters as a run: the callbacks it calls, and where it can go on from."""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from orthogp.errors import FileError
from orthogp.execution.team import current_team
from orthogp.execution.urls import RemotePath
from orthogp.training.batches import Rows
from orthogp.training.callbacks import Callback, Event, Report
from orthogp.training.checkpoint import Checkpoints
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.state import damaged_otherwise


class SearchRun:
    """Reports of a search, each with the log density of left-out rows, and its checkpoints."""

    def __init__(self, callbacks: Iterable[Callback], checkpoints: Checkpoints | None):
        self.team = current_team()
        self.callbacks = tuple(callbacks) if self.team.leads else ()
        self.checkpoints, self.history = checkpoints, list[Report]()
        self.began, self.reason, self._saved = time.monotonic(), "steps", None

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Callbacks hear of the start and, however the block ends, of the end."""
        self._saved = self._latest()
        self._tell("start")
        try:
            yield
        except BaseException as error:
            self._tell("end", message=str(error))
            raise
        self._tell("end", message=self.reason)

    def report(self, step: int, density: float) -> None:
        seconds = time.monotonic() - self.began
        self.history.append(Report(step, seconds, math.nan, density, math.nan, math.nan))
        self._tell("report", self.history[-1])

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What a run before this one has saved last, if anything."""
        return self._saved

    def _latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        found = None
        if self.checkpoints is not None:
            found = self.team.agree(self.checkpoints.latest() if self.team.leads else None)
        if found is None:
            return None
        with damaged_otherwise():
            self.history = [Report(**row) for row in found.meta["history"]]
            self.began -= self.history[-1].seconds if self.history else 0.0
        return found.tensors, found.meta

    def save(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if self.checkpoints is None or not self.team.leads:
            return
        try:
            history = [asdict(row) for row in self.history]
            self.checkpoints.save(meta["steps"], tensors, {**meta, "history": history})
        except FileError as error:
            warnings.warn(f"{error}; the search goes on without this checkpoint", stacklevel=2)

    def _tell(
        self,
        kind: Literal["start", "report", "end"],
        report: Report | None = None,
        message: str = "",
    ) -> None:
        step = self.history[-1].step if self.history else 0
        history = tuple(self.history) if kind == "start" else ()
        for callback in self.callbacks:
            callback(Event(kind, step, report, message, history))


def search_checkpoints(
    folder: str | Path | RemotePath | None,
    hyperparameters: Hyperparameters,
    rows: Rows,
    max_steps: int | None,
    seed: int,
) -> Checkpoints | None:
    """Those of the search for these rows from these hyperparameters, with these settings."""
    if folder is None:
        return None
    kernel, likelihood = hyperparameters.covariance.kernel, hyperparameters.likelihood
    values = [value.tolist() for value in hyperparameters.values()]
    outline = [repr(kernel), repr(likelihood), values, max_steps, seed, len(rows)]
    digest = hashlib.sha256(json.dumps(outline).encode())
    for part in rows.outline():
        digest.update(part)
    return Checkpoints(folder, digest.hexdigest())
