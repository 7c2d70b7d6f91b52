"""One file, data only: a magic line, a checksum, and tensors with JSON.

Nothing in such a file is ever imported or executed; a file that is not whole is refused.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from orthogp.errors import FileError
from orthogp.execution.urls import RemotePath

try:
    import fcntl
except ImportError:
    fcntl = None

DIGEST_LENGTH = 64
# JSON takes up to twenty times its length in memory: more than this is no description of a model.
LARGEST_HEADER = 2**24
TOKEN_BYTES = 6
# What a payload with a matching checksum can still fail with; JSON nested too deep for Python is a
# RecursionError, which is a RuntimeError.
UNREADABLE = (
    SafetensorError, ValueError, LookupError, TypeError, RuntimeError, AssertionError,
)  # fmt: skip


def write(
    path: Path | RemotePath, kind: str, tensors: dict[str, Tensor], meta: dict[str, Any]
) -> None:
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    payload = save(plain, metadata={"orthogp": json.dumps(meta, allow_nan=True)})
    length = int.from_bytes(payload[:8], "little")
    if length > LARGEST_HEADER:
        raise FileError(
            f"{path} could not be written: what describes it takes {length} bytes, and "
            f"{LARGEST_HEADER} is the most; names of columns or levels may be too many"
        )
    digest = hashlib.sha256(payload).hexdigest().encode()
    write_atomically(path, [_magic(kind), digest, b"\n", payload])


def write_atomically(path: Path | RemotePath, parts: Iterable[bytes], mode: int = 0o666) -> None:
    """The file is either the old one or the whole new one, never a part.

    It has the permissions of `mode`, less those that the process's umask withholds. Other stores
    than the local one have their own, and are as atomic as they put a file in one request.
    """
    if isinstance(path, RemotePath):
        path.write_bytes(b"".join(parts))
        return
    try:
        with whole_file(path, mode) as file:
            file.writelines(parts)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} could not be written: {reason}") from error


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file to write to, which has its name when the block ends well, and is gone if not.

    Any number of writers, in threads or in processes, may write the same file: the last to end has
    it, whole. What a process left that was killed while it wrote, the next writer removes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, glob.escape(path.name))
    temporary, file = _new_file(path, mode)
    try:
        # Renamed while it is open and locked, so that nobody takes it for a leftover.
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                # Windows renames no open file; without locks nobody takes it for a leftover.
                file.close()
            os.replace(temporary, path)
        _sync_directory(path.parent)
    finally:
        # Whatever came between, an interrupt too; after a success there is none.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path | RemotePath, names: str) -> None:
    """Removes unfinished files whose writer is gone; `names` is a pattern of the finished ones."""
    if isinstance(folder, RemotePath):
        return
    for path in folder.glob(f".{names}.{'[0-9a-f]' * (2 * TOKEN_BYTES)}.tmp"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if _locked(file, wait=False):
                path.unlink()


def _new_file(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    while True:
        # Unique among threads too, and among machines that share a disk; never an existing file.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(TOKEN_BYTES)}.tmp")
        file = open(temporary, "xb", opener=partial(os.open, mode=mode))  # noqa: SIM115
        _locked(file, wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        # Removed by another before it was locked.
        file.close()


def _locked(file: BinaryIO, wait: bool) -> bool:
    """Whether this process now holds the file's lock, which ends with the process at the latest."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def read(path: Path | RemotePath, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON of a file of this kind; anything else is a `FileError`."""
    try:
        if isinstance(path, RemotePath):
            return _read(BytesIO(path.read_bytes()), path, kind)
        # A pipe would be waited for, and a device may never end.
        if path.exists() and not path.is_file():
            raise FileError(f"{path} could not be read: it is not a regular file")
        with open(path, "rb") as file:
            return _read(file, path, kind)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} could not be read: {reason}") from error
    except MemoryError as error:
        reason = os.strerror(errno.ENOMEM)
        raise FileError(f"{path} could not be read: {reason}") from error


def _read(
    file: BinaryIO | BytesIO, path: Path | RemotePath, kind: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    magic = _magic(kind)
    if file.read(len(magic)) != magic:
        raise FileError(f"{path} is not an orthogp {kind}")
    digest = file.read(DIGEST_LENGTH + 1)
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    try:
        header = _header(file, size)
        file.seek(start)
        payload = file.read(size)
        if hashlib.sha256(payload).hexdigest().encode() + b"\n" != digest:
            raise FileError(f"{path} is damaged: its checksum does not match")
        return load(payload), _parse(header["__metadata__"]["orthogp"])
    except FileError:
        raise
    except UNREADABLE as error:
        raise FileError(f"{path} is damaged: {error!s:.200}") from error


def _header(file: BinaryIO | BytesIO, size: int) -> dict[str, Any]:
    """The table of tensors, after a check that the file is long enough for them."""
    length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"its header claims {length} bytes")
    header = _parse(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if 8 + length + max(ends, default=0) != size:
        raise ValueError("it is not as long as its header says")
    return header


def _parse(text: str | bytes) -> dict[str, Any]:
    """The JSON object in the text; other JSON, and a key given twice, is a ValueError."""
    value = json.loads(text, object_pairs_hook=_distinct)
    if not isinstance(value, dict):
        raise ValueError("its JSON is not an object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("its JSON has a key twice")
    return values


def _magic(kind: str) -> bytes:
    return f"orthogp {kind} 1\n".encode()


def _sync_directory(directory: Path) -> None:
    # Windows opens no folders.
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
