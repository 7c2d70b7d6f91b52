"""Tables written batch after batch: whole at the end, or not there at all."""

import contextlib
import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from orthogp.apps.tabular.reading import FORMATS, PARQUET, SEPARATORS
from orthogp.errors import ConfigurationError, FileError
from orthogp.execution.files import whole_file
from orthogp.tables import kind_of

# A spreadsheet takes a cell that begins with one of these for a formula.
FORMULA = r"^[=+\-@＝＋－＠\t\r\n]"
Write = Callable[[pa.RecordBatch], None]


def require_writable(path: Path) -> None:
    """Refuses a place where nothing can be written, before any work is done for it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; name a file")
    _require_room(path, path.absolute().parent)


def require_folder(path: Path) -> None:
    """Refuses what can be no folder to write files to."""
    if path.exists() and not path.is_dir():
        raise FileError(f"{path} is a file; name a folder")
    _require_room(path, path.absolute())


def _require_room(path: Path, folder: Path) -> None:
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(f"{path} could not be written: {folder} takes no new files")


def require_format(path: Path, safe: bool) -> None:
    name = path.name.lower()
    if not name.endswith((*SEPARATORS, *PARQUET)):
        raise ConfigurationError(f"{path} has no name of a table; expected one ending in {FORMATS}")
    if safe and name.endswith(PARQUET):
        raise ConfigurationError(f"--safe-csv is for CSV files, and {path} is a Parquet file")


@contextlib.contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Write]:
    """Takes batches of the schema; the file has its name when the block ends well."""
    try:
        with whole_file(path) as file, _opened(path, file, schema) as writer:
            yield writer.write_batch
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{path} could not be written: {reason}") from error


@contextlib.contextmanager
def _opened(path: Path, file: BinaryIO, schema: pa.Schema) -> Iterator[Any]:
    name = path.name.lower()
    if name.endswith(PARQUET):
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            yield writer
        return
    separator = next(s for suffix, s in SEPARATORS.items() if name.endswith(suffix))
    options = pyarrow.csv.WriteOptions(delimiter=separator, quoting_style="needed")
    with contextlib.ExitStack() as stack:
        compressed = name.endswith(".gz")
        sink = stack.enter_context(gzip.GzipFile("", "wb", 6, file)) if compressed else file
        yield stack.enter_context(pyarrow.csv.CSVWriter(sink, schema, write_options=options))


def harmless(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a quote before text that a spreadsheet would run, in cells and in names."""
    columns = [_quoted(c) if kind_of(c.type) == "text" else c for c in batch.columns]
    names = _quoted(pa.array(batch.schema.names)).to_pylist()
    return pa.RecordBatch.from_arrays(columns, names=names)


def _quoted(strings: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(strings, FORMULA, r"'\0")  # pyright: ignore
