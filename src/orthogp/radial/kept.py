"""Machine code between processes: compiling takes about a second of every process's first fit.

In `ORTHOGP_CACHE`, by default `orthogp` in the user's folder for caches; nowhere if that is set to
nothing. A file is used only if it is the user's own and whole; where none can be had or written,
code is compiled.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from orthogp.errors import FileError
from orthogp.files import write_atomically

CACHE_VARIABLE = "ORTHOGP_CACHE"
DIGEST_BYTES = 32


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """What `make` made for this key, in this process or an earlier one."""
    folder = _folder()
    if folder is None:
        return make()
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.o"
    found = _read(path)
    if found is not None:
        return found
    made = make()
    with contextlib.suppress(FileError):
        write_atomically(path, [hashlib.sha256(made).digest(), made])
    return made


def _folder() -> Path | None:
    given = os.environ.get(CACHE_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orthogp"
    except RuntimeError:
        # A user without a home.
        return None


def _read(path: Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            # Code of someone else's is not for us to run.
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            content = file.read()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None
