"""A run in a process of its own that is killed, at the moments named on the command line.

    python killed_run.py FOLDER MOMENT...

Every moment has a checkpoint folder FOLDER/MOMENT. The children are forked before torch has
computed anything, so that importing it is paid for once.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from orthogp.training import fit
from orthogp.training.step import Step
from runs import data, model, settings

MOMENTS = ("report", "step", "rename", "written")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(moment: str):
    """A callback, or a trap in what the run calls."""
    if moment == "report":
        return lambda event: die() if event.kind == "report" and event.step == 15 else None
    count = iter(range(1, 10**6))
    run, replace = Step._run, os.replace

    def step(self):
        if next(count) == 13:
            die()
        run(self)

    def rename(source, target):
        # Before the rename the new checkpoint is a temporary file, after it the newest one.
        third = next(count) == 3
        if third and moment == "rename":
            die()
        replace(source, target)
        if third:
            die()

    if moment == "step":
        Step._run = step
    else:
        os.replace = rename
    return lambda event: None


def run(folder: Path, moment: str) -> None:
    torch.manual_seed(12345)
    rows = data()
    callback = arrange(moment)
    fit(model(rows), rows, settings(), data(seed=1), [callback], folder / moment, 0.0)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        child = os.fork()
        if child == 0:
            run(Path(sys.argv[1]), name)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), name
        assert os.WTERMSIG(status) == signal.SIGKILL, name
