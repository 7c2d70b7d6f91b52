"""Files that are not on this machine: URLs of any store that fsspec knows (s3://, gs://, memory://).

`locate` turns what a user names into a `Path` or, for a URL of another store, a `RemotePath`, which
has the few operations of a path that orthogp needs. A file of an object store is put in one
request, so that it is there whole or not at all; stores that write in pieces may keep a part after
a crash, which the checksum of our files tells.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from orthogp.errors import FileError

URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+(::|://)")


def locate(path: "str | Path | RemotePath") -> "Path | RemotePath":
    """The path of a file or folder; a URL of the local file system is a plain path."""
    if isinstance(path, RemotePath) or not isinstance(path, str) or not URL.match(path):
        return path if isinstance(path, RemotePath) else Path(path)
    found = RemotePath(path.rstrip("/"))
    return Path(found.inner) if found.is_local else found


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder of a store that fsspec knows, by its URL."""

    url: str

    @cached_property
    def _store(self) -> tuple[Any, str]:
        # Imported here: it is needed for URLs alone.
        from fsspec.core import url_to_fs

        protocol = self.url.partition("://")[0]
        try:
            return url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FileError(
                f"{self.url} cannot be opened: {reason}; fsspec needs a package for {protocol}://, "
                "s3fs for s3://, gcsfs for gs://, adlfs for az://"
            ) from error

    @property
    def filesystem(self) -> Any:
        return self._store[0]

    @property
    def inner(self) -> str:
        """The path inside of the store."""
        return self._store[1]

    @property
    def is_local(self) -> bool:
        protocol = self.filesystem.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.url.rsplit("/", 1)[0])

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        raise FileError(f"{self.url} is not on this machine; this needs a local file")

    def exists(self) -> bool:
        with self._failing("read"):
            return self.filesystem.exists(self.inner)

    def is_dir(self) -> bool:
        with self._failing("read"):
            return self.filesystem.isdir(self.inner)

    def glob(self, pattern: str) -> "list[RemotePath]":
        """The files of the folder whose names match; none where there is no folder."""
        with self._failing("read"):
            # Another process may have written since the store was listed.
            self.filesystem.invalidate_cache()
            if not self.filesystem.isdir(self.inner):
                return []
            found = self.filesystem.ls(self.inner, detail=False)
        names = [path.rstrip("/").rsplit("/", 1)[-1] for path in found]
        return [self / name for name in names if fnmatch(name, pattern)]

    def files(self) -> list[str]:
        """All files below, as paths inside of the store, sorted."""
        with self._failing("read"):
            return sorted(self.filesystem.find(self.inner))

    def read_bytes(self) -> bytes:
        with self._failing("read"):
            return self.filesystem.cat_file(self.inner)

    def write_bytes(self, data: bytes) -> None:
        with self._failing("written"):
            with contextlib.suppress(NotImplementedError):
                self.filesystem.makedirs(self.parent.inner, exist_ok=True)
            self.filesystem.pipe_file(self.inner, data)

    def unlink(self) -> None:
        with self._failing("removed"):
            self.filesystem.rm_file(self.inner)

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Any error of a store, each of which has its own, as a `FileError`."""
        try:
            yield
        except FileError:
            raise
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if isinstance(error, FileNotFoundError):
                reason = "there is no such file"
            raise FileError(f"{self.url} could not be {what}: {reason:.300}") from error
