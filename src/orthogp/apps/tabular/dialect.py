"""How a CSV file is written, from its first rows: separator, decimal sign, encoding, thousands."""

import codecs
import csv
import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from orthogp.tables import Column, as_texts, listed

SAMPLE_BYTES, SAMPLE_ROWS = 2**18, 500
SEPARATORS = ",;\t|"
BOMS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# A number with groups of three digits, by the sign between groups.
GROUPED = {
    sign: re.compile(rf"[+-]?\d{{1,3}}(?:{re.escape(sign)}\d{{3}})+(?:[.,]\d+)?")
    for sign in (",", ".", " ", "'", "\N{NO-BREAK SPACE}")
}
PLAIN = re.compile(r"[+-]?\d+(?:[.,]\d+)?")
DECIMAL_COMMA, DECIMAL_POINT = re.compile(r"[+-]?\d*,\d+"), re.compile(r"[+-]?\d*\.\d+")


@dataclass(frozen=True)
class Dialect:
    """`names` are those of the columns, where the header's own will not do; `grouped` has the sign
    between groups of digits of the columns that have one; `notes` are for the user."""

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf8"
    names: tuple[str, ...] | None = None
    grouped: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def numbers(self, column: Column, name: str) -> pa.Array:
        """A column of numbers with groups of digits, which was read as text."""
        plain = pc.replace_substring(as_texts(column), self.grouped[name], "")  # pyright: ignore
        return pc.replace_substring(plain, self.decimal, ".").cast(pa.float64())  # pyright: ignore


def sniff(path: Path, separator: str) -> Dialect:
    """The dialect of a file; `separator` is that of its name, which others may overrule."""
    raw = _first_bytes(path)
    text, encoding, notes = _decoded(raw)
    lines = text.splitlines()
    # The last line may be cut off.
    lines = lines if len(raw) < SAMPLE_BYTES else lines[:-1]
    found = _separator(lines, separator)
    if found != separator:
        notes.append(f"columns are separated by {found!r}")
    rows = list(csv.reader(lines[: SAMPLE_ROWS + 1], delimiter=found))
    rows = [row for row in rows if row]
    if not rows:
        return Dialect(found, encoding=encoding, notes=tuple(notes))
    header, body = rows[0], rows[1:]
    names = _names(header)
    values = {
        name: [row[i].strip() for row in body if i < len(row) and row[i].strip()]
        for i, name in enumerate(names)
    }
    decimal = "," if _has_decimal_comma(values.values(), found) else "."
    if decimal == ",":
        notes.append("decimal commas are read as such")
    grouped = {name: sign for name in names if (sign := _group_sign(values[name], decimal))}
    if grouped:
        notes.append(f"signs between thousands are left out: {listed(list(grouped), grouped)}")
    renamed = tuple(names) if names != header else None
    return Dialect(found, decimal, encoding, renamed, grouped, tuple(notes))


def _first_bytes(path: Path) -> bytes:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as file:
        return file.read(SAMPLE_BYTES)


def _decoded(raw: bytes) -> tuple[str, str, list[str]]:
    """The text, the name of its encoding for Arrow, and notes."""
    for mark, name in BOMS:
        if raw.startswith(mark):
            return raw.decode(name, "ignore"), name, [f"the file is read as {name}"]
    body = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return codecs.getincrementaldecoder("utf8")().decode(body), "utf8", []
    except UnicodeDecodeError:
        note = "the file is not UTF-8: it is read as latin-1, so look at its accents"
        return raw.decode("latin-1"), "latin-1", [note]


def _separator(lines: Sequence[str], default: str) -> str:
    """The one that splits the header and the first rows into as many columns, two or more."""
    some = [line for line in lines[:50] if line.strip()]
    widths = {
        sign: [len(row) for row in csv.reader(some, delimiter=sign)]
        for sign in (default, *SEPARATORS.replace(default, ""))
    }
    even = {s: w[0] for s, w in widths.items() if w and w[0] > 1 and set(w) == {w[0]}}
    if not even or default in even:
        return default
    return max(even, key=lambda sign: even[sign])


def _names(header: Sequence[str]) -> list[str]:
    """The header, with names for columns that have none."""
    return [name if name else f"unnamed: {i}" for i, name in enumerate(header)]


def _has_decimal_comma(columns, separator: str) -> bool:
    """Whether numbers have commas, and none has a point, in columns of numbers alone."""
    if separator == ",":
        return False
    commas = points = False
    for values in columns:
        if not values or not all(PLAIN.fullmatch(v) or GROUPED["."].fullmatch(v) for v in values):
            continue
        commas |= any(DECIMAL_COMMA.fullmatch(v) for v in values)
        points |= any(DECIMAL_POINT.fullmatch(v) and not GROUPED["."].fullmatch(v) for v in values)
    return commas and not points


def _group_sign(values: Sequence[str], decimal: str) -> str:
    """The sign between groups of digits that every large number has; empty for none."""
    for sign, pattern in GROUPED.items():
        some = [v for v in values if pattern.fullmatch(v)]
        others = [v for v in values if not pattern.fullmatch(v)]
        small = all(
            PLAIN.fullmatch(v) and (decimal in v or len(v.lstrip("+-")) <= 3) for v in others
        )
        if sign != decimal and some and small:
            return sign
    return ""
