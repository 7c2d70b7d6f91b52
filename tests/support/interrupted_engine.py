"""For fits that an engine starts in processes of its own: checkpoints at every report, a kill.

A callback is what such a fit takes along, so the process that unpickles it is the one to change.
"""

import os
import signal
from pathlib import Path

from orthogp import training
from orthogp.training import Event

fit = training.fit


def eager_fit(model, rows, config, validation=None, callbacks=(), checkpoint_dir=None):
    return fit(model, rows, config, validation, callbacks, checkpoint_dir, 0.0)


class KillOnce:
    """Notes the step that each attempt starts at, and kills the first once it has a checkpoint."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        training.fit = eager_fit

    def __deepcopy__(self, memo: dict) -> "KillOnce":
        return self

    def __call__(self, event: Event) -> None:
        started = self.folder / "started"
        if event.kind == "start":
            with started.open("a") as file:
                file.write(f"{event.step}\n")
        first = len(started.read_text().split()) == 1
        if first and list(self.folder.rglob("step-000000050*")):
            os.kill(os.getpid(), signal.SIGKILL)
