"""Runs that leave checkpoints, and runs that end too early."""

import os
from pathlib import Path

import pytest
import torch

from orthogp.execution import files
from orthogp.training import fit
from runs import data, model, settings


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def steps(folder: Path) -> list[int]:
    return [int(name.split("-")[1]) for name in names(folder)]


def checkpoints(folder: Path) -> list[Path]:
    return [folder / name for name in names(folder)]


def everything(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the newest checkpoint: parameters, q, optimizers, generators."""
    return files.read(checkpoints(folder)[-1], "checkpoint")[0]


def train(folder, callbacks=(), rows=None, m=None, validation=True, **changes):
    """A run with a checkpoint at every report; the model and the result."""
    rows = data() if rows is None else rows
    m = model(rows) if m is None else m
    held_out = data(seed=1) if validation else None
    return m, fit(m, rows, settings(**changes), held_out, callbacks, folder, 0.0)


class StopAt:
    """Ends a run as a crash of the process would, after the report of a step."""

    def __init__(self, step: int):
        self.step = step

    def __call__(self, event):
        if event.kind == "report" and event.step == self.step:
            raise ZeroDivisionError


def crash(folder, step, **options) -> None:
    with pytest.raises(ZeroDivisionError):
        train(folder, [StopAt(step)], **options)
