"""Parquet files and directories of them; a block is a row group."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orthogp.errors import DataError, FileError
from orthogp.execution.urls import RemotePath, locate
from orthogp.sources.blocks import RowBlock, Source

if TYPE_CHECKING:
    from pyarrow import Schema, Table, dataset

SUFFIXES = (".parquet", ".pq")


class ParquetTable(Source):
    """A Parquet file, or a directory of them that share their columns.

    `target` is the column to predict, or several of them; `columns` are the inputs, by default all
    others; `weight` is a column of row weights.
    """

    concurrent = True

    def __init__(
        self,
        path: str | Path,
        target: str | Sequence[str],
        columns: Sequence[str] | None = None,
        weight: str | None = None,
    ):
        from pyarrow import ArrowException, types

        self.path = locate(path)
        if self.path.is_dir() and not _file_names(self.path):
            raise DataError(f"{path} has no Parquet files (*.parquet)")
        if not self.path.exists():
            raise FileError(f"{path} is not there; expected a Parquet file or a directory of them")
        try:
            table = open_parquet(self.path)
            groups = row_groups(table)
        except (ArrowException, OSError) as error:
            raise FileError(f"{path} cannot be read as Parquet: {error}") from error
        self.schema, self.groups = table.schema, groups
        self.sizes = tuple(group.row_groups[0].num_rows for group in groups)
        if not sum(self.sizes):
            raise DataError(f"{path} has no rows in Parquet files")
        self.target, self.weight = target, weight
        targets = [target] if isinstance(target, str) else list(target)
        used = [*targets, *([] if weight is None else [weight])]
        self.columns = [n for n in table.schema.names if n not in used]
        self.columns = self.columns if columns is None else list(columns)
        self._require([*used, *self.columns])
        if not self.columns:
            raise DataError(f"{self.path} has no column beside those to predict")
        kinds = [table.schema.field(name).type for name in self.columns]
        tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
        self.numbers = all(any(test(kind) for test in tests) for kind in kinds)

    def read(self, number: int) -> RowBlock:
        import pyarrow as pa

        group, target, weight = self.groups[number], self.target, self.weight
        targets = [target] if isinstance(target, str) else list(target)
        wanted = [*self.columns, *targets, *([] if weight is None else [weight])]
        try:
            table = read_group(group, self.schema, wanted)
        except (pa.ArrowException, OSError) as error:
            raise FileError(f"{self.place(number)} cannot be read: {error}") from error
        X = table.select(self.columns)
        if self.numbers:
            X = pa.table({name: X[name].cast(pa.float64(), safe=False) for name in self.columns})
        y = [table[name].to_numpy() for name in targets]
        return RowBlock(
            X,
            y[0] if isinstance(target, str) else np.stack(y, axis=1),
            None if weight is None else table[weight].to_numpy(),
        )

    def place(self, number: int) -> str:
        group = self.groups[number]
        return f"row group {group.row_groups[0].id} of {group.path}"

    def outline(self) -> Iterator[bytes]:
        """The files' own statistics of every column that is read, and their row counts."""
        yield str([self.columns, self.target, self.weight]).encode()
        for group in self.groups:
            yield group_outline(group)

    def _require(self, names: list[str]) -> None:
        absent = [name for name in names if name not in self.schema.names]
        if absent:
            have = ", ".join(self.schema.names)
            raise DataError(f"{self.path} has no column {', '.join(absent)}; it has {have}")


def parquet_files(folder: Path) -> list[Path]:
    """All Parquet files in a folder and its subfolders, sorted by name."""
    return sorted(part for suffix in SUFFIXES for part in folder.rglob(f"*{suffix}"))


def _file_names(path: Path | RemotePath) -> list[str]:
    """The Parquet files of a folder, or the file itself, as its file system names them."""
    if isinstance(path, RemotePath):
        found = path.files() if path.is_dir() else [path.inner]
        return [name for name in found if name.endswith(SUFFIXES) or name == path.inner]
    return list(map(str, parquet_files(path) if path.is_dir() else [path]))


def open_parquet(path: Path | RemotePath) -> "dataset.FileSystemDataset":
    """A file or a folder of them, in an order that does not depend on the file system.

    Files without a Parquet suffix are ignored.
    """
    from pyarrow import dataset

    folder = path if path.is_dir() else path.parent
    # Folders called YEAR=2020 are a column of their own.
    return dataset.dataset(
        _file_names(path), format="parquet", partitioning="hive",
        partition_base_dir=folder.inner if isinstance(folder, RemotePath) else str(folder),
        filesystem=path.filesystem if isinstance(path, RemotePath) else None,
    )  # fmt: skip


def row_groups(
    table: "dataset.FileSystemDataset",
) -> "list[dataset.ParquetFileFragment]":
    return [group for file in table.get_fragments() for group in file.split_by_row_group()]


def read_group(
    group: "dataset.ParquetFileFragment", schema: "Schema", columns: Sequence[str]
) -> "Table":
    # Threads would take the cores from the training step that runs at the same time.
    return group.to_table(columns=list(columns), schema=schema, use_threads=False)


def group_outline(group: "dataset.ParquetFileFragment") -> bytes:
    """The file's own statistics of a row group's columns, and its size."""
    found: Any = group.row_groups[0]
    return str([found.num_rows, found.total_byte_size, found.statistics]).encode()
