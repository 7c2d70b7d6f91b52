"""What a column of a table is to a model, by its Arrow type, and its values as such."""

from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

Kind = Literal["number", "text", "bool", "time", "empty", "other"]
Column: TypeAlias = pa.Array | pa.ChunkedArray

# What a CSV file is to be read as where the kind is known.
ARROW_TYPES: dict[str, pa.DataType] = {
    "number": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
}


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
