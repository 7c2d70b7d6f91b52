"""Processes killed (SIGKILL) at random moments, and processes that share one folder.

    python benchmarks/torture/kills.py [--kills 50] [--seed 0]

After every kill, what stands under a final name must be whole; then the work is done again in the
same folder, and must end with the bits of work that nothing disturbed and no unfinished file.
Then two processes do each work at once in one folder, while it is read. One line at the end; the
exit status is 1 where anything was otherwise.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from victims import VICTIMS, Victim, leftovers

from orthogp.errors import FileError

Shown = dict[str, bytes]


def start(work: Callable[[Path], None], folder: Path) -> int:
    """The id of a process that does the work. Forked, so that imports are paid for once; the
    parent itself computes nothing with torch."""
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        work(folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Trials:
    """One kind of work: the folder it starts from, and how it ends undisturbed, and when."""

    def __init__(self, name: str, victim: Victim, base: Path):
        self.name, self.victim = name, victim
        self.base = base / name.replace(" ", "-")
        fresh = self.base / "fresh"
        fresh.mkdir(parents=True)
        assert ended_well(start(victim.prepare, fresh)), f"{name} could not be prepared"
        whole, began = self.folder("undisturbed"), time.monotonic()
        assert ended_well(start(victim.work, whole)), f"{name} fails even undisturbed"
        self.seconds, self.expected = time.monotonic() - began, victim.shown(whole)
        self.halves = self._states(whole)

    def folder(self, name: str) -> Path:
        folder = self.base / name
        shutil.copytree(self.base / "fresh", folder)
        return folder

    def _states(self, whole: Path) -> list[Shown]:
        """What may stand under the final name after a kill: nothing, the end, or, where the work
        writes one file by turns, the other of the two."""
        if self.name != "save":
            return [{}, self.expected]
        other = self.folder("other")
        assert ended_well(start(lambda folder: _save_first(folder), other))
        return [{}, self.expected, self.victim.shown(other)]

    def kill(self, number: int, moment: float) -> Counter[str]:
        """Kills the work after that share of its time, and has it done again."""
        folder, counts = self.folder(f"kill-{number}"), Counter({"kills": 1})
        child = start(self.victim.work, folder)
        time.sleep(moment * self.seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        counts["amid"] += os.WIFSIGNALED(status)
        if not counts["amid"]:
            # It had ended: the machine is quicker now than when it was timed.
            self.seconds *= 0.8
        counts["half-written"] += self._show(folder) not in self.halves
        counts["leftovers"] += leftovers(folder)
        again = ended_well(start(self.victim.work, folder))
        counts["as undisturbed"] += again and self._show(folder) == self.expected
        counts["left behind"] += leftovers(folder)
        shutil.rmtree(folder)
        return counts

    def _show(self, folder: Path) -> Shown | None:
        try:
            return self.victim.shown(folder)
        except FileError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return None

    def share(self) -> bool:
        """Two at once in one folder, while it is read: every look shows something whole, and so
        does the end."""
        folder = self.folder("shared")
        children, whole = {start(self.victim.work, folder) for _ in range(2)}, True
        while children:
            if self.name != "fit":
                whole &= self._show(folder) in self.halves
            for child in list(children):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    children.remove(child)
                    whole &= status == 0
            time.sleep(0.005)
        return whole and self._show(folder) == self.expected and leftovers(folder) == 0


def _save_first(folder: Path) -> None:
    import victims

    victims.SAVES = 1
    victims.save_often(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills work at random moments.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, counts, shared = random.Random(options.seed), Counter(), 0
    with tempfile.TemporaryDirectory() as base:
        trials = [Trials(name, victim, Path(base)) for name, victim in VICTIMS.items()]
        while counts["amid"] < options.kills:
            trial = trials[counts["amid"] % len(trials)]
            counts += trial.kill(counts["kills"], rng.random())
        shared = sum(trial.share() for trial in trials)
    print(
        f"kills: {counts['amid']} amid the work and {counts['kills'] - counts['amid']} just after "
        "it, "
        f"{counts['as undisturbed']} ended as undisturbed ones bit for bit, "
        f"{counts['half-written']} half-written files, "
        f"{counts['leftovers']} temporary files left by kills and {counts['left behind']} after "
        f"the next run; two processes in one folder: {shared} of {len(trials)} kinds of work "
        "unharmed"
    )
    right = counts["as undisturbed"] == counts["kills"] and shared == len(trials)
    return int(not right or counts["half-written"] > 0 or counts["left behind"] > 0)


if __name__ == "__main__":
    sys.exit(main())
