"""What the owner of a table should look at before trusting a model of it."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orthogp.tables import as_numbers, as_texts, kind_of, listed

# Numbers that people write for "no value"; a column may have others.
SENTINELS = (-1.0, -9.0, -99.0, -200.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)
# How often one must occur, and how far from the others it must lie, in units of their spread.
LEAST_ROWS, FAR = 3, 2.0
# A column that is the target but for this share of its variance, or of its rows, gives it away.
GIVES_AWAY = 1e-4
MOST_LEVELS = 1000


def without_values(table: pa.Table, values: Sequence[float]) -> pa.Table:
    """The table with these numbers missing, wherever they occur."""
    for place, name in enumerate(table.column_names if values else []):
        column = table.column(name)
        if kind_of(column.type) != "number":
            continue
        numbers = as_numbers(column)
        found = np.isin(numbers, list(values))
        if found.any():
            filled = pc.if_else(pa.array(found), pa.scalar(None, column.type), column)  # pyright: ignore
            table = table.set_column(place, name, filled)
    return table


def sentinel_notes(table: pa.Table) -> list[str]:
    """Numbers that may stand for missing values, by column."""
    found: dict[str, str] = {}
    for name in table.column_names:
        if kind_of(table.column(name).type) != "number":
            continue
        values = as_numbers(table.column(name))
        values = values[~np.isnan(values)]
        for sentinel in SENTINELS:
            others = values[values != sentinel]
            count = len(values) - len(others)
            if count < LEAST_ROWS or len(others) < LEAST_ROWS:
                continue
            spread = float(np.ptp(others))
            distance = max(others.min() - sentinel, sentinel - others.max())
            if spread > 0 and distance > FAR * spread:
                found[name] = f"{sentinel:g} in {count} rows"
    if not found:
        return []
    values = sorted({text.split()[0] for text in found.values()})
    return [
        f"numbers far from all others, in {listed(list(found), found)}: if they stand for missing "
        f"values, fit with --missing={','.join(values)}"
    ]


def giveaway_notes(table: pa.Table, target: NDArray, task: str) -> list[str]:
    """Columns that tell the target itself, with the figure."""
    found = {}
    for name in table.column_names:
        column = table.column(name)
        if task == "regression" and kind_of(column.type) == "number":
            share = _correlation(as_numbers(column), target.astype(np.float64))
            if 1 - share**2 < GIVES_AWAY:
                found[name] = f"correlation {share:.5f}"
        elif task == "classification" and kind_of(column.type) in ("text", "bool", "number"):
            share = _share_explained(column, target)
            if share is not None and 1 - share < GIVES_AWAY:
                found[name] = f"tells {share:.2%} of the classes"
    if not found:
        return []
    return [
        f"columns that give the target away: {listed(list(found), found)}; if they are not known "
        "when you predict, leave them out with --drop"
    ]


def _correlation(x: NDArray, y: NDArray) -> float:
    present = ~np.isnan(x)
    if present.sum() < 10 or np.ptp(x[present]) == 0 or np.ptp(y[present]) == 0:
        return 0.0
    return float(np.corrcoef(x[present], y[present])[0, 1])


def _share_explained(column: pa.ChunkedArray, labels: NDArray) -> float | None:
    """The share of rows whose class is the commonest of their level; None for many levels."""
    levels = np.asarray(as_texts(column).fill_null("").to_numpy(zero_copy_only=False), dtype=str)
    names, codes = np.unique(levels, return_inverse=True)
    classes, places = np.unique(labels, return_inverse=True)
    if len(names) > min(MOST_LEVELS, len(labels) / 10) or len(names) < 2:
        return None
    counts = np.zeros((len(names), len(classes)))
    np.add.at(counts, (codes, places), 1)
    return float(counts.max(axis=1).sum() / len(labels))
