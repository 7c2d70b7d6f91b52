"""One file, data only: a magic line, a checksum, and tensors with JSON beside them.

Nothing in such a file is ever imported or executed; a file that is not whole is refused.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from orthogp.errors import FileError

DIGEST_LENGTH = 64
# What a payload with a matching checksum can still fail with; JSON nested too deep for Python is a
# RecursionError, which is a RuntimeError.
UNREADABLE = (
    SafetensorError, struct.error, ValueError, LookupError, TypeError, RuntimeError, AssertionError,
)  # fmt: skip


def write(path: Path, kind: str, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    payload = save(plain, metadata={"orthogp": json.dumps(meta, allow_nan=True)})
    digest = hashlib.sha256(payload).hexdigest().encode()
    write_atomically(path, [_magic(kind), digest, b"\n", payload])


def write_atomically(path: Path, parts: Iterable[bytes]) -> None:
    """The file is either the old one or the whole new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} could not be written: {reason}") from error
    finally:
        # Whatever came between, an interrupt too; after a success there is none.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON of a file of this kind; anything else is a `FileError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} could not be read: {error.strerror}") from error
    magic = _magic(kind)
    if not content.startswith(magic):
        raise FileError(f"{path} is not an orthogp {kind}")
    start = len(magic) + DIGEST_LENGTH + 1
    digest, payload = content[len(magic) : start], content[start:]
    if hashlib.sha256(payload).hexdigest().encode() + b"\n" != digest:
        raise FileError(f"{path} is damaged: its checksum does not match")
    try:
        (length,) = struct.unpack("<Q", payload[:8])
        header = _parse(payload[8 : 8 + length])
        return load(payload), _parse(header["__metadata__"]["orthogp"])
    except UNREADABLE as error:
        raise FileError(f"{path} is damaged: {error}") from error


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
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
