"""`orthogp` under torchrun in tests: a checkpoint at every report, and accidents if asked for.

    python -m torch.distributed.run … tests/support/group_worker.py ACCIDENT FOLDER COMMAND…

ACCIDENT is none, refuse (the second process refuses the table) or kill (the second process of the
first attempt dies as soon as there is a checkpoint under FOLDER). The first process leaves
`started-ATTEMPT` in FOLDER, with the step that its training began at, and each `threads-RANK`, with
the names of the threads that are left when its command has ended.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from orthogp import training
from orthogp.apps.cli import main
from orthogp.apps.tabular import preparing
from orthogp.errors import DataError
from orthogp.training import Event

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SECOND = os.environ["RANK"] == "1"


def checkpoint_always(folder: Path) -> None:
    fit = training.fit

    def note_start(event: Event) -> None:
        if event.kind == "start":
            (folder / f"started-{ATTEMPT}").write_text(str(event.step))

    def eager_fit(model, rows, config, validation, callbacks, checkpoint_dir):
        callbacks = (*callbacks, note_start)
        return fit(model, rows, config, validation, callbacks, checkpoint_dir, 0.0)

    training.fit = eager_fit


def refuse(*_: object) -> None:
    raise DataError("the second process cannot read its table")


def die_in_the_middle(folder: Path) -> None:
    while not list(folder.rglob("step-*")):
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    accident, place, *sys.argv[1:] = sys.argv[1:]
    checkpoint_always(Path(place))
    if accident == "refuse" and SECOND:
        preparing.open_table = refuse
    if accident == "kill" and not SECOND:
        # It shall end by itself, not because torchrun has seen the other die.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if accident == "kill" and SECOND and ATTEMPT == 0:
        threading.Thread(target=die_in_the_middle, args=[Path(place)], daemon=True).start()
    try:
        main()
    finally:
        names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
        (Path(place) / f"threads-{os.environ['RANK']}").write_text("".join(names))
