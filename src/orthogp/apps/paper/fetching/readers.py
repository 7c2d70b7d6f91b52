"""From the bytes of a download to columns: archives, compressed files, separated text, ARFF.

Nothing is unpacked to disk: a member of an archive is read as a stream, up to a limit.
"""

import gzip
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import DataError

# The largest of the paper's sets is about half of this as text.
MAX_UNPACKED = 2 * 2**30
Array = NDArray[np.float64]
Rows = list[list[str]]
Stream = io.BufferedReader | io.BytesIO


class _Limited(io.RawIOBase):
    """A stream that refuses to give more than MAX_UNPACKED bytes."""

    def __init__(self, stream: Any):
        self.stream, self.left = stream, MAX_UNPACKED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.stream.read(len(buffer))
        self.left -= len(part)
        _require_within_limit(self.left >= 0)
        buffer[: len(part)] = part
        return len(part)


def _require_within_limit(within: bool) -> None:
    if not within:
        raise DataError(
            f"the download unpacks to more than {MAX_UNPACKED} bytes; no set of the paper does"
        )


def size_limited(stream: Any) -> Stream:
    return io.BufferedReader(_Limited(stream), 2**20)


def zip_member(content: bytes, name: str) -> Stream:
    """The one member of a zip archive whose path ends in `name`."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile as error:
        raise DataError(
            f"the download is no zip archive: it begins with {content[:16]!r}"
        ) from error
    found = [item for item in archive.infolist() if f"/{item.filename}".endswith(f"/{name}")]
    if len(found) != 1:
        raise DataError(f"the archive has {len(found)} members {name}; expected one")
    _require_within_limit(found[0].file_size <= MAX_UNPACKED)
    return size_limited(archive.open(found[0]))


def gunzip(content: bytes) -> Stream:
    """What gzip files, one after another, hold."""
    return size_limited(gzip.GzipFile(fileobj=io.BytesIO(content)))


def uncompress(content: bytes) -> Stream:
    """What a .Z file of Unix compress holds: LZW with codes of 9 to at most 16 bits."""
    if len(content) < 3 or content[:2] != b"\x1f\x9d" or not 9 <= content[2] & 31 <= 16:
        raise DataError(f"the download is no .Z file: it begins with {content[:16]!r}")
    max_bits, clears = content[2] & 31, content[2] >= 128
    # Where the table can be cleared, code 256 does it.
    table = [bytes([value]) for value in range(256)] + [b""] * clears
    first = len(table)
    out, size, previous = [], 0, b""
    bits, start, position = 9, 24, 24
    while position + bits <= 8 * len(content):
        if len(table) >= 1 << bits and bits < max_bits:
            start = position = _next_group(start, position, bits)
            bits += 1
            continue
        code = _code(content, position, bits)
        position += bits
        if clears and code == 256:
            start = position = _next_group(start, position, bits)
            bits, previous = 9, b""
            del table[first:]
            continue
        if code > len(table) or (code == len(table) and not previous):
            raise DataError(f"the .Z file is damaged before byte {position // 8} of {len(content)}")
        entry = table[code] if code < len(table) else previous + previous[:1]
        if previous and len(table) < 1 << max_bits:
            table.append(previous + entry[:1])
        out.append(entry)
        size += len(entry)
        _require_within_limit(size <= MAX_UNPACKED)
        previous = entry
    return io.BytesIO(b"".join(out))


def _code(content: bytes, position: int, bits: int) -> int:
    byte, shift = divmod(position, 8)
    return int.from_bytes(content[byte : byte + 3], "little") >> shift & (1 << bits) - 1


def _next_group(start: int, position: int, bits: int) -> int:
    """Codes of one width come in groups of eight; a change of width skips the rest of a group."""
    group = 8 * bits
    return start + -(-(position - start) // group) * group


def read_numbers(stream: Stream, delimiter: str | None = ",", skip: int = 0) -> Array:
    """A table of numbers, after `skip` lines of heading; None separates by white space."""
    with io.TextIOWrapper(stream, "utf-8") as text:
        return np.loadtxt(text, delimiter=delimiter, skiprows=skip, ndmin=2, comments=None)


def fields(stream: Stream, delimiter: str = ",") -> Rows:
    """The fields of every line, as text; empty lines and those that begin with | are left out."""
    with io.TextIOWrapper(stream, "utf-8") as text:
        lines = (line.strip() for line in text)
        content = (line for line in lines if line and not line.startswith("|"))
        rows = [[field.strip() for field in line.split(delimiter)] for line in content]
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise DataError(f"the lines have {min(lengths)} to {max(lengths)} fields; expected as many")
    return rows


def coded(rows: Rows, orders: Sequence[Mapping[str, int]] = ()) -> Array:
    """Numbers as they are, categories as integers: by their alphabet, or by the column's order."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    if orders:
        pairs = zip(columns, orders, strict=True)
        return np.array([[order[value] for value in column] for column, order in pairs], float).T
    return np.array([_coded_column(column) for column in columns]).T


def _coded_column(column: list[str]) -> Array:
    try:
        return np.array(column, dtype=np.float64)
    except ValueError:
        return np.unique(column, return_inverse=True)[1].astype(np.float64)


def labels(values: Any) -> NDArray[np.int64]:
    """Classes 0..K − 1, in the order of their sorted names."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def varying(X: Array) -> Array:
    """Without the columns that are constant."""
    return X[:, (X[:1] != X).any(axis=0)]


def arff(content: bytes) -> Array:
    """The table of an ARFF file whose attributes are all numbers."""
    from scipy.io.arff import ArffError, loadarff

    try:
        data, meta = loadarff(io.StringIO(content.decode()))
    except (ArffError, NotImplementedError, StopIteration) as error:
        raise DataError(f"the download is no ARFF file: {error}") from error
    if set(meta.types()) != {"numeric"}:
        raise DataError(f"the ARFF file has {', '.join(sorted(set(meta.types())))} attributes")
    return np.column_stack([data[name] for name in meta.names()])
