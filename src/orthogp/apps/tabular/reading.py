"""Tables on a disk: CSV and Parquet, whole or batch after batch, in the order of their rows."""

import csv
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from orthogp.apps.tabular.dialect import sniff
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
from orthogp.tables import listed

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
FORMATS = f"{', '.join((*SEPARATORS, *PARQUET))}"
COLUMN_NUMBER = re.compile(r"CSV column #(\d+)")

# The types as which columns of a CSV file are read, by kind; dates are found by their form.
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
    # What a user should know of how it is read.
    notes: tuple[str, ...] = ()

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


class CsvSource(TableSource):
    def __init__(self, path: Path, separator: str):
        self.path, self.types = path, {}
        with readable(path):
            self.dialect = sniff(path, separator)
            with pyarrow.csv.open_csv(path, **self._options()) as reader:
                self.names = reader.schema.names
        self.notes = self.dialect.notes

    def read(self, columns: Sequence[str]) -> pa.Table:
        with readable(self.path, self.names):
            found = pyarrow.csv.read_csv(self.path, **self._options(columns))
        found = found if columns else found.select([])
        for name in self._grouped(columns):
            place = found.column_names.index(name)
            with readable(self.path, self.names):
                numbers = self.dialect.numbers(found.column(name), name)
            found = found.set_column(place, name, numbers)
        return found

    def batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[pa.RecordBatch]:
        arrow = {name: ARROW_TYPES[k] for name, k in kinds.items() if k in ARROW_TYPES}
        grouped = [name for name in self._grouped(list(kinds)) if kinds[name] == "number"]
        with readable(self.path, self.names):
            options = self._options(list(kinds), arrow)
            with pyarrow.csv.open_csv(self.path, **options) as reader:
                for batch in reader:
                    for name in grouped:
                        place = batch.schema.names.index(name)
                        numbers = self.dialect.numbers(batch.column(name), name)
                        batch = batch.set_column(place, name, numbers)
                    yield from _sliced(batch, rows)

    def _grouped(self, columns: Sequence[str]) -> list[str]:
        return [name for name in self.dialect.grouped if name in columns]

    def _options(
        self, columns: Sequence[str] = (), arrow: Mapping[str, pa.DataType] | None = None
    ) -> dict[str, Any]:
        dialect = self.dialect
        as_text = dict.fromkeys(dialect.grouped, pa.string())
        return {
            "read_options": pyarrow.csv.ReadOptions(
                encoding=dialect.encoding,
                column_names=None if dialect.names is None else list(dialect.names),
                skip_rows=0 if dialect.names is None else 1,
            ),
            "parse_options": pyarrow.csv.ParseOptions(
                delimiter=dialect.separator, newlines_in_values=True
            ),
            "convert_options": pyarrow.csv.ConvertOptions(
                include_columns=list(columns),
                column_types={**(arrow or {}), **as_text},
                decimal_point=dialect.decimal,
            ),
        }


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
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        lines = reason.strip().splitlines() or [type(error).__name__]
        found = COLUMN_NUMBER.search(lines[0])
        if found and int(found[1]) < len(names):
            lines[0] = lines[0].replace(found[0], f"column {names[int(found[1])]!r}")
        raise FileError(f"{path} cannot be read as a table: {lines[0]:.300}") from error
