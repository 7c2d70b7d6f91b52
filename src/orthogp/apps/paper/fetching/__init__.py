"""Download the paper's data sets, convert them, and compare them with the paper's counts."""

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from orthogp.apps.paper import published
from orthogp.apps.paper.datasets import DataSet, checked
from orthogp.apps.paper.fetching.sources import SOURCES, DataSource
from orthogp.errors import ConfigurationError, FileError
from orthogp.execution.files import write_atomically

MAX_DOWNLOAD = 2**30
CHUNK = 2**20
# What a reader meets in content that is not what its source was.
UNREADABLE = (
    ValueError, LookupError, EOFError, OSError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class FetchResult:
    """What became of a data set: `detail` has what differs from the paper, or why it failed."""

    name: str
    task: str
    status: Literal["fetched", "kept", "failed"]
    detail: tuple[str, ...] = ()


def fetch(
    names: Iterable[str],
    data_dir: Path,
    say: Callable[[str], None],
    sources: tuple[DataSource, ...] = SOURCES,
    timeout: float = 60.0,
) -> list[FetchResult]:
    """DIR/TASK/NAME.npz of every name, with a description in NAME.json; existing ones stay.

    The sources of a name are tried in order. One that fails does not stop the others. `timeout`
    is in seconds, of silence.
    """
    by_name: dict[str, list[DataSource]] = {}
    for source in sources:
        by_name.setdefault(source.name, []).append(source)
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise ConfigurationError(
            f"no source is known for {', '.join(unknown)}; expected some of {', '.join(by_name)}"
        )
    downloads = _Downloads(timeout)
    return [_fetch_one(by_name[name], data_dir, say, downloads) for name in wanted]


class _Downloads:
    """Remembers the latest content: many data sets of a collection are in one file."""

    def __init__(self, timeout: float):
        self.timeout = timeout
        self.urls: tuple[str, ...] = ()
        self.content = b""

    def get(self, urls: tuple[str, ...]) -> bytes:
        if urls != self.urls:
            self.urls, self.content = (), b""
            self.content = b"".join(download(url, self.timeout) for url in urls)
            self.urls = urls
        return self.content


def download(url: str, timeout: float) -> bytes:
    """The whole content at an address, or a FileError that says what went wrong."""
    request = Request(url, headers={"User-Agent": "orthogp"})
    try:
        with urlopen(request, timeout=timeout) as response:
            return _body(response, url)
    except HTTPError as error:
        raise FileError(f"{url} answered {error.code} {error.reason}") from error
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FileError(f"{url} could not be fetched: {reason}") from error


def _body(response: Any, url: str) -> bytes:
    announced = response.headers.get("Content-Length")
    content = bytearray()
    while part := response.read(CHUNK):
        content += part
        if len(content) > MAX_DOWNLOAD:
            raise FileError(f"{url} has more than {MAX_DOWNLOAD} bytes; no set of the paper has")
    if announced is not None and len(content) != int(announced):
        raise FileError(f"{url} broke off: {len(content)} of {announced} bytes came; try again")
    return bytes(content)


def _fetch_one(
    candidates: list[DataSource], data_dir: Path, say: Callable[[str], None], downloads: _Downloads
) -> FetchResult:
    name, task = candidates[0].name, candidates[0].task
    path = data_dir / task / f"{name}.npz"
    if path.exists():
        say(f"{name}: {path} is there already; delete it to fetch it again")
        return FetchResult(name, task, "kept")
    reasons = []
    for source in candidates:
        say(f"{name}: {' and '.join(source.urls)}")
        try:
            content = downloads.get(source.urls)
            table = _table(source, content)
        except UNREADABLE as error:
            reasons.append(_reason(source, error))
            say(f"{name}: {reasons[-1]}")
            continue
        return _stored(source, content, table, path, say)
    return FetchResult(name, task, "failed", tuple(reasons))


def _stored(
    source: DataSource, content: bytes, table: DataSet, path: Path, say: Callable[[str], None]
) -> FetchResult:
    name, differences = table.name, differences_from_paper(table)
    try:
        _store(table, path, _description(source, content, table, differences))
    except FileError as error:
        say(f"{name}: {error}")
        return FetchResult(name, table.task, "failed", (str(error),))
    say(f"{name}: {'; '.join(differences) or 'rows, inputs and classes as in the paper'}")
    say(f"{name}: {source.note}")
    return FetchResult(name, table.task, "fetched", differences)


def _table(source: DataSource, content: bytes) -> DataSet:
    X, y = source.read(content)
    return checked(source.name, source.task, X, y, source.urls[0], "")


def _reason(source: DataSource, error: Exception) -> str:
    text = str(error) or type(error).__name__
    named = any(url in text for url in source.urls)
    return text if named else f"{' and '.join(source.urls)} could not be read: {text}"


def differences_from_paper(table: DataSet) -> tuple[str, ...]:
    """Counts that differ from the paper's, as sentences; none for a set it does not have."""
    size = published.sizes(table.task).get(table.name)
    if size is None:
        return ()
    # The paper counts a column that is no feature among the inputs of its classification sets.
    inputs = size.inputs - (table.task == "classification")
    counts = (
        ("rows", len(table.X), size.rows),
        ("inputs", table.X.shape[1], inputs),
        ("classes", table.num_classes, size.classes),
    )
    return tuple(
        f"{found} {what} where the paper has {expected}"
        for what, found, expected in counts
        if found != expected
    )


def _description(
    source: DataSource, content: bytes, table: DataSet, differences: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "addresses": source.urls,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "N": len(table.X),
        "D": table.X.shape[1],
        "K": table.num_classes,
        "differences": differences,
        "note": source.note,
    }


def _store(table: DataSet, path: Path, description: dict[str, Any]) -> None:
    """X in float32; targets in float32, labels in int64."""
    buffer = io.BytesIO()
    y = table.y.astype(np.float32) if table.task == "regression" else table.y
    np.savez_compressed(buffer, X=table.X.astype(np.float32), y=y)
    text = json.dumps(description, indent=1, ensure_ascii=False)
    write_atomically(path.with_suffix(".json"), [text.encode(), b"\n"])
    write_atomically(path, [buffer.getvalue()])
