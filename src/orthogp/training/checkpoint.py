"""Checkpoints of a run: the last two, each written whole or not at all."""

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from orthogp import files
from orthogp.errors import FileError
from orthogp.model import VariationalGP
from orthogp.training.batches import Rows
from orthogp.training.config import TrainingConfig

KIND = "checkpoint"
SUFFIX = ".orthogp-checkpoint"
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run in one directory, recognised by the run's fingerprint."""

    def __init__(self, directory: str | Path, fingerprint: str):
        self.directory, self.fingerprint = Path(directory), fingerprint

    def save(self, step: int, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        meta = {**meta, "fingerprint": self.fingerprint}
        files.write(self.directory / f"step-{step:09d}{SUFFIX}", KIND, tensors, meta)
        for old in self._paths()[KEPT:]:
            old.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """The newest that is whole and belongs to this run; others are named and passed over."""
        for path in self._paths():
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

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob(f"step-*{SUFFIX}"), reverse=True)


def fingerprint(model: VariationalGP, rows: Rows, config: TrainingConfig) -> str:
    """What a checkpoint of this run must agree with: settings, shapes, the data's outline."""
    settings = config.as_dict()
    # How long to wait is not part of what is computed.
    settings.pop("max_time")
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    sample = [float(part.double().sum()) for part in (rows.x[::997], rows.y[::997])]
    outline = {"settings": settings, "shapes": shapes, "rows": len(rows), "sample": sample}
    return hashlib.sha256(json.dumps(outline, sort_keys=True).encode()).hexdigest()
