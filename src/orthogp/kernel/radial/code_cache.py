"""Machine code on disk between processes: compiling takes a second of a process's first fit.

In `ORTHOGP_CACHE`, by default `orthogp` in the user's folder for caches; nowhere if that is set to
nothing. What is read here is executed, so a file is used only if it is whole, and if nobody but
the user can have written it: file and folder are the user's own, and no one else may write to
them. Where that cannot be had, or cannot be told, code is compiled and not kept.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from orthogp.errors import FileError
from orthogp.execution.files import write_atomically

CACHE_VARIABLE = "ORTHOGP_CACHE"
DIGEST_BYTES = 32
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cached_code(key: str, compile_code: Callable[[], bytes]) -> bytes:
    """What `compile_code` gave for this key, in this process or an earlier one."""
    folder = _folder()
    if folder is None:
        return compile_code()
    name = f"{hashlib.sha256(key.encode()).hexdigest()}.o"
    found = _read(folder, name)
    if found is None:
        found = compile_code()
        with contextlib.suppress(OSError, FileError):
            _write(folder, name, found)
    return found


def _folder() -> Path | None:
    # Elsewhere owners and modes cannot be looked at, or not without a race.
    if not (hasattr(os, "geteuid") and hasattr(os, "O_DIRECTORY") and hasattr(os, "O_NOFOLLOW")):
        return None
    given = os.environ.get(CACHE_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orthogp"
    except RuntimeError:
        # A user without a home.
        return None


def _read(folder: Path, name: str) -> bytes | None:
    try:
        with (
            _opened(folder, os.O_DIRECTORY) as opened,
            _opened(name, 0, within=opened) as descriptor,
            open(descriptor, "rb", closefd=False) as file,
        ):
            content = file.read()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(folder: Path, name: str, code: bytes) -> None:
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    with _opened(folder, os.O_DIRECTORY):
        content = [hashlib.sha256(code).digest(), code]
        write_atomically(folder / name, content, mode=PRIVATE_FILE)


@contextlib.contextmanager
def _opened(path: str | Path, flags: int, within: int | None = None) -> Iterator[int]:
    """A descriptor of something that is the user's own and that nobody else can write to.

    Anything else, a symbolic link too, is an OSError. It is looked at once it is open: what has the
    name may be exchanged meanwhile.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=within)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & WRITABLE_BY_OTHERS:
            raise PermissionError(f"{path} could have been written by another user")
        yield descriptor
    finally:
        os.close(descriptor)
