"""Which columns of a table a model can use, and the plan for them, learned from training rows."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from orthogp.apps.tabular.encoding import Matrix, finite_numbers, missing_refused
from orthogp.apps.tabular.plan import LevelColumn, NumberColumn, Plan
from orthogp.apps.tabular.reading import Column, as_numbers, as_texts, kind_of, listed
from orthogp.errors import DataError

# The most frequent levels have a column each, the others one together.
MOST_LEVELS = 30
# From this share of distinct values on, a column of text names its rows rather than describes them.
NAMES_ROWS = 0.5


def require_usable(schema: Mapping[str, pa.DataType]) -> None:
    """Refuses types that a model cannot use as they are."""
    kinds = {name: kind_of(kind) for name, kind in schema.items()}
    times = [name for name, kind in kinds.items() if kind == "time"]
    if times:
        raise DataError(
            f"the columns {listed(times)} hold dates or times; derive numbers from them (year, "
            "month, weekday, hour, days since a date) or leave them out with --drop"
        )
    others = [name for name, kind in kinds.items() if kind == "other"]
    if others:
        raise DataError(
            f"the columns {listed(others, schema)} are neither numbers, text nor truth values; "
            "convert them or leave them out with --drop"
        )


def require_complete(table: pa.Table) -> None:
    """Refuses missing values, by column and count."""
    counts = {name: _count_missing(table.column(name)) for name in table.column_names}
    gaps = {name: count for name, count in counts.items() if count}
    if gaps:
        raise DataError(missing_refused(gaps))


def _count_missing(column: Column) -> int:
    if kind_of(column.type) == "number":
        return int(np.isnan(as_numbers(column)).sum())
    return as_texts(column).null_count


def learn(table: pa.Table, missing: str) -> tuple[Plan, list[str]]:
    """The plan for every column of the training rows, and notes on it for the user."""
    names = table.column_names
    kinds = {name: kind_of(table.schema.field(name).type) for name in names}
    found = {
        name: finite_numbers(table.column(name), name) for name in names if kinds[name] == "number"
    }
    levels = {name: _levels(name, kinds[name], table.column(name)) for name in names
              if kinds[name] in ("text", "bool")}  # fmt: skip
    constant = [name for name in names if _is_constant(name, found, levels)]
    plan = Plan(
        tuple(_number(name, values) for name, values in found.items() if name not in constant),
        tuple(column for name, column in levels.items() if name not in constant),
        missing,
    )
    if not plan.sources:
        raise DataError("no column is left to learn from: every one is constant or left out")
    return plan, _notes(plan, constant, found, table)


def _number(name: str, values: Matrix) -> NumberColumn:
    return NumberColumn(name, float(np.nanmedian(values)), bool(np.isnan(values).any()))


def _levels(name: str, kind: str, column: Column) -> LevelColumn:
    strings = as_texts(column)
    counts = strings.drop_null().value_counts().to_pylist()
    # By frequency, and where that is equal by name: the order of rows must not matter.
    ordered = [c["values"] for c in sorted(counts, key=lambda c: (-c["counts"], c["values"]))]
    frequent, pooled = sorted(ordered[:MOST_LEVELS]), sorted(ordered[MOST_LEVELS:])
    return LevelColumn(name, kind, tuple(frequent), tuple(pooled), strings.null_count > 0)


def _is_constant(name: str, found: Mapping[str, Matrix], levels: Mapping[str, LevelColumn]) -> bool:
    if name in levels:
        return levels[name].codes < 2
    if name not in found:
        return True
    values = found[name][~np.isnan(found[name])]
    # Whether the number is missing may still be informative.
    return len(values) == 0 or (
        len(values) == len(found[name]) and bool((values == values[0]).all())
    )


def _notes(
    plan: Plan, constant: Sequence[str], found: Mapping[str, Matrix], table: pa.Table
) -> list[str]:
    notes = []
    if constant:
        notes.append(f"constant in the training rows, so left out: {listed(constant)}")
    gaps = {c.name: int(np.isnan(found[c.name]).sum()) for c in plan.numbers if c.indicator}
    if gaps:
        named = listed(list(gaps), gaps)
        notes.append(f"missing numbers replaced by the median and marked: {named}")
    with_missing = [column.name for column in plan.levels if column.missing]
    if with_missing:
        notes.append(f"missing text taken for a level of its own: {listed(with_missing)}")
    for column in plan.levels:
        count = len(column.levels) + len(column.pooled)
        if column.pooled:
            notes.append(
                f"{column.name!r:.60} has {count} levels: the {MOST_LEVELS} most frequent are kept "
                "apart, the others pooled"
            )
        if count > max(MOST_LEVELS, NAMES_ROWS * table.num_rows):
            notes.append(
                f"{column.name!r:.60} hardly repeats; if it names the rows, pass it as --id or "
                "--drop"
            )
    return notes
