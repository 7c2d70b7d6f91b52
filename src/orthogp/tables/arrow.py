"""Tables of pandas, polars and pyarrow as Arrow tables, and what a column of one is to a model."""

from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from orthogp.errors import DataError

Kind = Literal["number", "text", "bool", "time", "empty", "other"]
Column: TypeAlias = pa.Array | pa.ChunkedArray
Matrix = NDArray[np.float64]

# Names in a message, at most.
MOST_NAMES = 12
# What a column of Python objects may mix; it is then taken for text.
PLAIN = (str, bool, int, float, Decimal, date, time, timedelta, np.generic)


def is_table(X: Any) -> bool:
    """Whether its columns have types of their own: a table of pandas, polars, pyarrow, others."""
    has_columns = hasattr(X, "__arrow_c_stream__") or hasattr(X, "iloc")
    return has_columns and len(getattr(X, "shape", ())) == 2


def as_table(X: Any) -> pa.Table:
    """The columns of a table by name, without an index; a table of Arrow's is itself."""
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    if hasattr(X, "iloc"):
        names = [str(name) for name in X.columns]
        columns = [_from_pandas(X.iloc[:, i], name) for i, name in enumerate(names)]
        found = pa.Table.from_arrays(columns, names=names)
    else:
        try:
            found = X if isinstance(X, pa.Table) else pa.table(X)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"X cannot be read as a table: {error!s:.200}") from error
    names = found.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"X has several columns called {listed(twice)}; rename them")
    return _without_views(found)


def _without_views(table: pa.Table) -> pa.Table:
    """The table with strings in the place of string views, of which Arrow takes no rows."""
    for i, field in enumerate(table.schema):
        if types.is_string_view(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(pa.large_string()))
    return table


def array_table(X: NDArray, names: Sequence[str]) -> pa.Table:
    """The columns of an array under these names, of objects each by the values it has."""
    columns = [_from_objects(X[:, i], name) for i, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=list(names))


def _from_pandas(series: Any, name: str) -> pa.Array:
    if series.dtype == np.dtype(object):
        return _from_objects(series.to_numpy(), name)
    if type(series.dtype).__name__ == "SparseDtype":
        return pa.array(series.to_numpy(), from_pandas=True)
    try:
        found = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the column {name!r} cannot be used: {error!s:.200}") from error
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _from_objects(values: NDArray, name: str) -> pa.Array:
    """A column of Python objects; of several types that do not go together it is text."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        missing = pa.array(values == values, from_pandas=True).to_numpy(zero_copy_only=False)
        present = [v for v, is_one in zip(values, missing, strict=True) if v is not None and is_one]
        other = next((v for v in present if not isinstance(v, PLAIN)), None)
        if other is not None:
            raise DataError(
                f"the column {name!r} has values of type {type(other).__name__}; expected numbers, "
                "text, truth values, dates or times"
            ) from error
    wanted = [None if v is None or v != v else str(v) for v in values]
    return pa.array(wanted, pa.string())


def listed(names: Sequence[str], details: Mapping[str, object] | None = None) -> str:
    """Names for a sentence, each followed by its detail in parentheses, if there are any."""
    shown = [f"{name!r:.60}" for name in names[:MOST_NAMES]]
    if details is not None:
        pairs = zip(names, shown, strict=False)
        shown = [f"{text} ({details[name]})" for name, text in pairs]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(shown)}{more}"


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


def decoded(column: Column) -> Column:
    """The values of a column of categories; any other column as it is."""
    if not types.is_dictionary(column.type):
        return column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    kind = column.type.value_type
    # Arrow decodes no string views.
    kind = pa.string() if types.is_string_view(kind) else kind
    return pa.chunked_array([c.dictionary.cast(kind).take(c.indices) for c in chunks], kind)


def as_numbers(column: Column) -> Matrix:
    """Missing values are NaN; whole numbers beyond 2⁵³ are rounded; durations are seconds."""
    column = decoded(column)
    if types.is_duration(column.type):
        column = column.cast(pa.duration("us"), safe=False).cast(pa.int64())
        return as_numbers(column) / 1e6
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def finite_numbers(column: Column, name: str) -> Matrix:
    """Numbers with NaN where they are missing; an infinite one is refused."""
    values = as_numbers(column)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise DataError(f"the column {name!r} has {infinite} infinite values; mend or drop them")
    return values


def as_texts(column: Column) -> pa.Array:
    """Strings, with the empty one missing; truth values are `true` and `false`."""
    strings = decoded(column).cast(pa.string())
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    if isinstance(strings, pa.ChunkedArray):
        # What one array of 32-bit offsets cannot hold stays in chunks.
        strings = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in strings.chunks])
    empty = pc.equal(strings, "")  # pyright: ignore
    return pc.if_else(empty, pa.scalar(None, strings.type), strings)  # pyright: ignore


def as_levels(column: Column, kind: str) -> pa.Array:
    """The levels of a column as text; a number is the same text whatever its type."""
    if kind == "number":
        numbers = as_numbers(column)
        column = pa.array(numbers, from_pandas=True)
    return as_texts(column)
