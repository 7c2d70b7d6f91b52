"""Checkpoints of a run: the last two, each written whole or not at all."""

import contextlib
import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from orthogp.errors import FileError
from orthogp.execution import files
from orthogp.execution.urls import RemotePath, locate
from orthogp.model import VariationalGP
from orthogp.model.priors import registered_priors
from orthogp.training.batches import Rows
from orthogp.training.config import TrainingConfig
from orthogp.training.streams import Stream

KIND = "checkpoint"
SUFFIX = ".orthogp-checkpoint"
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run in one directory, recognised by the run's fingerprint."""

    def __init__(self, directory: str | Path | RemotePath, fingerprint: str):
        self.directory, self.fingerprint = locate(directory), fingerprint
        # Runs that share a directory tell their files apart by name, and leave the others' alone.
        self.suffix = f"-{fingerprint[:12]}{SUFFIX}"

    def save(self, step: int, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        meta = {**meta, "fingerprint": self.fingerprint}
        path = self.directory / f"{_stem(step)}{self.suffix}"
        files.write(path, KIND, tensors, meta)
        own = [p for p in self._paths() if p.name.endswith(self.suffix)]
        # What is ahead of this step was damaged: the run went on from behind it.
        recent = [p for p in own if p <= path][:KEPT]
        for old in own:
            if old not in recent:
                with contextlib.suppress(OSError, FileError):
                    old.unlink()
        # A process that was killed while it wrote could not remove what it had written.
        files.remove_leftovers(self.directory, f"step-*{self.suffix}")

    def latest(self, step: int | None = None) -> Checkpoint | None:
        """The newest that is whole and belongs to this run; others are named and passed over.

        Of those at `step`, where that is given.
        """
        paths = self._paths()
        if step is not None:
            paths = [path for path in paths if path.name.startswith(_stem(step))]
        for path in paths:
            try:
                tensors, meta = files.read(path, KIND)
            except FileError as error:
                warnings.warn(f"{error}; it is passed over", stacklevel=2)
                continue
            if meta.get("fingerprint") != self.fingerprint:
                warnings.warn(
                    f"{path} belongs to a run with other data or settings; it is passed over",
                    stacklevel=2,
                )
                continue
            return Checkpoint(tensors, meta)
        return None

    def _paths(self) -> list[Any]:
        return sorted(self.directory.glob(f"step-*{SUFFIX}"), reverse=True)


def _stem(step: int) -> str:
    return f"step-{step:09d}"


def fingerprint(model: VariationalGP, rows: Rows | Stream, config: TrainingConfig) -> str:
    """What a checkpoint of this run must agree with: settings, shapes, the data's outline."""
    settings = config.as_dict()
    # How long to wait is not part of what is computed.
    settings.pop("max_time")
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    outline = {"settings": settings, "model": repr(model), "shapes": shapes, "rows": len(rows)}
    priors = {prior.name: prior.outline() for prior in registered_priors(model)}
    if priors:
        outline["priors"] = priors
    digest = hashlib.sha256(json.dumps(outline, sort_keys=True).encode())
    for part in rows.outline():
        digest.update(part)
    return digest.hexdigest()
