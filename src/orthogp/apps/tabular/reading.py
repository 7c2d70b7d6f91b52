"""Tables on a disk: CSV and Parquet, whole or batch after batch, in the order of their rows."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
from numpy.typing import NDArray
from pyarrow import types

from orthogp.errors import DataError, FileError
from orthogp.sources.parquet import (
    SUFFIXES as PARQUET,
)
from orthogp.sources.parquet import (
    open_parquet,
    parquet_files,
    read_group,
    row_groups,
)

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
FORMATS = f"{', '.join((*SEPARATORS, *PARQUET))}"
# Names in a message, at most.
MOST_NAMES = 12
COLUMN_NUMBER = re.compile(r"CSV column #(\d+)")

# What a column is to a model.
Kind = Literal["number", "text", "bool", "time", "empty", "other"]
Column: TypeAlias = pa.Array | pa.ChunkedArray

# The types as which columns of a CSV file are read, by kind.
ARROW_TYPES: dict[str, pa.DataType] = {
    "number": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
}


class TableSource(ABC):
    """A table that has been opened: the names of its columns, and their types where the file
    itself has them."""

    path: Path
    names: list[str]
    types: dict[str, pa.DataType]

    @abstractmethod
    def read(self, columns: Sequence[str]) -> pa.Table:
        """These columns, of types found by looking at all of their values."""

    @abstractmethod
    def batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[pa.RecordBatch]:
        """These columns, in that order, at most so many rows at a time.

        Columns of a CSV file are read as the kind says, those of a Parquet file as they are.
        """


def open_table(path: Path) -> TableSource:
    """The table at a path, by its suffix; a folder is one of Parquet files."""
    if not path.exists():
        raise FileError(f"{path} does not exist")
    name = path.name.lower()
    separator = next((s for suffix, s in SEPARATORS.items() if name.endswith(suffix)), None)
    if path.is_dir() or name.endswith(PARQUET):
        source = ParquetSource(path, _parquet(path))
    elif separator is not None:
        source = CsvSource(path, separator)
    else:
        raise FileError(
            f"{path} has no name of a table; expected one that ends in {FORMATS}, or a folder of "
            "Parquet files"
        )
    duplicates = sorted({name for name in source.names if source.names.count(name) > 1})
    if duplicates:
        raise DataError(f"{path} has several columns called {listed(duplicates)}; rename them")
    return source


def listed(names: Sequence[str], details: Mapping[str, object] | None = None) -> str:
    """Names for a sentence, each followed by its detail in parentheses, if there are any."""
    shown = [f"{name!r:.60}" for name in names[:MOST_NAMES]]
    if details is not None:
        pairs = zip(names, shown, strict=False)
        shown = [f"{text} ({details[name]})" for name, text in pairs]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(shown)}{more}"


class CsvSource(TableSource):
    def __init__(self, path: Path, separator: str):
        self.path, self.separator, self.types = path, separator, {}
        with readable(path), pyarrow.csv.open_csv(path, parse_options=self._parse()) as reader:
            self.names = reader.schema.names

    def read(self, columns: Sequence[str]) -> pa.Table:
        convert = pyarrow.csv.ConvertOptions(include_columns=list(columns))
        with readable(self.path, self.names):
            found = pyarrow.csv.read_csv(
                self.path, parse_options=self._parse(), convert_options=convert
            )
        return found if columns else found.select([])

    def batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[pa.RecordBatch]:
        arrow = {name: ARROW_TYPES[kind] for name, kind in kinds.items()}
        convert = pyarrow.csv.ConvertOptions(include_columns=list(kinds), column_types=arrow)
        with readable(self.path, self.names):
            options = {"parse_options": self._parse(), "convert_options": convert}
            with pyarrow.csv.open_csv(self.path, **options) as reader:
                for batch in reader:
                    yield from _sliced(batch, rows)

    def _parse(self) -> pyarrow.csv.ParseOptions:
        return pyarrow.csv.ParseOptions(delimiter=self.separator, newlines_in_values=True)


class ParquetSource(TableSource):
    def __init__(self, path: Path, dataset: pyarrow.dataset.FileSystemDataset):
        self.path, self.dataset = path, dataset
        self.names = dataset.schema.names
        self.types = dict(zip(self.names, dataset.schema.types, strict=True))

    def files(self) -> "Iterator[ParquetSource]":
        """Each file as a table of its own, with the columns it has and those of its folders."""
        dataset = self.dataset
        for fragment in dataset.get_fragments():
            with readable(Path(fragment.path)):
                keys = pyarrow.dataset.get_partition_keys(fragment.partition_expression)
                folders = [dataset.schema.field(name) for name in keys]
                schema = pa.schema([*fragment.physical_schema, *folders])
                one = pyarrow.dataset.FileSystemDataset(
                    [fragment], schema, dataset.format, dataset.filesystem
                )
            yield ParquetSource(Path(fragment.path), one)

    def read(self, columns: Sequence[str]) -> pa.Table:
        with readable(self.path):
            return self.dataset.to_table(columns=list(columns))

    def groups(self) -> list[pyarrow.dataset.ParquetFileFragment]:
        """Its row groups, each a fragment, in their order."""
        with readable(self.path):
            return row_groups(self.dataset)

    def read_group(
        self, group: pyarrow.dataset.ParquetFileFragment, columns: Sequence[str]
    ) -> pa.Table:
        with readable(Path(group.path)):
            return read_group(group, self.dataset.schema, columns)

    def stored_bytes(self) -> int:
        """What its values take before they are compressed."""
        return sum(group.row_groups[0].total_byte_size for group in self.groups())

    def batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[pa.RecordBatch]:
        with readable(self.path):
            # Nothing is read ahead: memory is that of a row group, not of the file.
            found = self.dataset.to_batches(
                columns=list(kinds), batch_size=rows, batch_readahead=1, fragment_readahead=1,
                fragment_scan_options=pyarrow.dataset.ParquetFragmentScanOptions(pre_buffer=False),
            )  # fmt: skip
            for batch in found:
                yield from _sliced(batch, rows)


def _parquet(path: Path) -> pyarrow.dataset.FileSystemDataset:
    if path.is_dir() and not parquet_files(path):
        raise FileError(f"{path} has no Parquet files in it ({' or '.join(PARQUET)})")
    with readable(path):
        return open_parquet(path)


def _sliced(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


@contextmanager
def readable(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Turns an error of Arrow or of the disk into a `FileError` of one sentence."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        lines = reason.strip().splitlines() or [type(error).__name__]
        found = COLUMN_NUMBER.search(lines[0])
        if found and int(found[1]) < len(names):
            lines[0] = lines[0].replace(found[0], f"column {names[int(found[1])]!r}")
        raise FileError(f"{path} cannot be read as a table: {lines[0]:.300}") from error


def kind_of(kind: pa.DataType) -> Kind:
    if types.is_null(kind):
        return "empty"
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_dictionary(kind):
        inner = kind_of(kind.value_type)
        return "text" if inner in ("number", "text", "bool") else inner
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    # Dates, times, timestamps, durations and intervals.
    return "time" if types.is_temporal(kind) else "other"


def as_numbers(column: Column) -> NDArray[np.float64]:
    """Missing values are NaN; whole numbers beyond 2⁵³ are rounded."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def as_texts(column: Column) -> pa.Array:
    """Strings, with the empty one missing; truth values are `true` and `false`."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    strings = column.cast(pa.string())
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    if isinstance(strings, pa.ChunkedArray):
        # What one array of 32-bit offsets cannot hold stays in chunks.
        strings = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in strings.chunks])
    empty = pc.equal(strings, "")  # pyright: ignore
    return pc.if_else(empty, pa.scalar(None, strings.type), strings)  # pyright: ignore
