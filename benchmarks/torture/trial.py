"""One file, tried: loaded and asked for predictions, watched for what a file must never cause."""

import contextlib
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from originals import LOADERS, Predictions

from orthogp import OrthogpError
from orthogp.errors import FileError

# What data have no business to cause. Writing is allowed where the trial itself is.
FORBIDDEN = (
    "import", "exec", "compile", "pickle.find_class", "marshal.", "os.system", "os.exec",
    "os.posix_spawn", "os.fork", "subprocess.", "ctypes.dlopen", "socket.", "webbrowser.",
)  # fmt: skip
CHANGING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "shutil.")


@dataclass(frozen=True)
class Verdict:
    """`outcome` is refused, refused later, equal or another model, or what went wrong (crashed,
    hung, executed, not finite), and then `detail` says more."""

    outcome: str
    detail: str = ""


class Hung(BaseException):
    """Past every `except Exception` on its way out."""


class Watch:
    """Notes forbidden deeds of this process while it is armed; it cannot be taken off again."""

    def __init__(self, scratch: Path):
        self.scratch, self.armed, self.deeds = str(scratch), False, []
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        # The process itself, opened as a library, is how training asks for its allocator.
        if not self.armed or (event, arguments) == ("ctypes.dlopen", (None,)):
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
        changes = event.startswith(CHANGING)
        inside = (writes or changes) and str(arguments[0]).startswith(self.scratch)
        if event.startswith(FORBIDDEN) or ((writes or changes) and not inside):
            self.deeds.append(f"{event} {arguments!s:.120}")

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self.deeds, self.armed = [], True
        try:
            yield
        finally:
            self.armed = False


def try_file(path: Path, expected: Predictions, watch: Watch, seconds: float) -> Verdict:
    kind = path.name.partition("-")[0]
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with watch.on(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            verdict = _tried(kind, path, expected)
    except Hung:
        verdict = Verdict("hung", traceback.format_exc())
    except Exception:
        verdict = Verdict("crashed", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Verdict("executed", "; ".join(watch.deeds)) if watch.deeds else verdict


def _tried(kind: str, path: Path, expected: Predictions) -> Verdict:
    try:
        loaded = LOADERS[kind](path)
    except FileError:
        return Verdict("refused")
    except OrthogpError:
        # A run that goes on from a checkpoint may still find that its numbers lead nowhere.
        if kind != "checkpoint":
            raise
        return Verdict("refused later")
    try:
        found = loaded.predictions()
    except OrthogpError:
        return Verdict("refused later")
    if not loaded.used:
        return Verdict("refused")
    if len(found) == len(expected) and all(map(_equal, found, expected)):
        return Verdict("equal")
    numbers = [part for part in found if part.dtype.kind == "f"]
    if not all(np.isfinite(part).all() for part in numbers):
        return Verdict("not finite", str(found))
    return Verdict("another model")


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.all(one == other))


def limit_memory(extra: int) -> None:
    """From here on the process can take no more than `extra` bytes of addresses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _ring(*_: Any) -> None:
    raise Hung
