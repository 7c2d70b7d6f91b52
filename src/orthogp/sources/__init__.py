"""Tables larger than memory: what `fit` takes in place of arrays."""

from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from orthogp.errors import DataError
from orthogp.sources.blocks import ArrayTable, DatasetTable, RowBlock, Source
from orthogp.sources.parquet import ParquetTable
from orthogp.sources.shards import Shards

__all__ = [
    "ArrayTable", "DatasetTable", "ParquetTable", "RowBlock", "Shards", "Source", "as_source",
]  # fmt: skip


def as_source(X: Any, y: Any, sample_weight: Any) -> Source | None:
    """X and y as a table in blocks where they are not arrays in memory; None where they are.

    A path is that of a Parquet file or directory, with the names of columns for y and
    sample_weight; a memory map comes with arrays; a dataset or a source comes alone.
    """
    if isinstance(X, str | Path):
        names = [y] if isinstance(y, str) else y
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise DataError(
                f"X is a path and y is {type(y).__name__}; expected the name of the column to "
                "predict, or a list of names"
            )
        if not isinstance(sample_weight, str | None):
            raise DataError("X is a path; expected the name of a column as sample_weight")
        return ParquetTable(X, y, weight=sample_weight)
    if isinstance(X, np.memmap):
        if y is None:
            raise DataError("X is a memory map and y is None; expected as many targets as rows")
        return ArrayTable(X, y, sample_weight)
    if not isinstance(X, Source | Dataset):
        return None
    if y is not None or sample_weight is not None:
        raise DataError(f"a {type(X).__name__} has its own targets and weights; pass it alone")
    return X if isinstance(X, Source) else DatasetTable(X)
