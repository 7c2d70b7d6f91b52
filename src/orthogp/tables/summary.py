"""What each column of a table was taken for, as a small table of its own."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from orthogp.tables.arrow import listed
from orthogp.tables.plan import (
    AnyColumn,
    DateColumn,
    DroppedColumn,
    LevelColumn,
    NumberColumn,
    Plan,
    StatisticsColumn,
)

WIDEST = 60
GAPS = re.compile(r"\d+ missing")


class ColumnRow(NamedTuple):
    """A column, what it was taken for, how many inputs of the model it has, which, and why."""

    column: str
    kind: str
    inputs: int
    treatment: str
    reason: str


class ColumnTable:
    """One `ColumnRow` for every column of a table; it prints as one, and becomes a DataFrame."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.rows = tuple(_row(plan, column) for column in plan.columns.values())

    def __iter__(self) -> Iterator[ColumnRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> ColumnRow:
        """The row of a place or of a column's name."""
        if isinstance(key, int):
            return self.rows[key]
        found = next((row for row in self.rows if row.column == key), None)
        if found is None:
            raise KeyError(key)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnTable) and self.rows == other.rows

    def __hash__(self) -> int:
        return hash(self.rows)

    def to_pandas(self) -> Any:
        """A DataFrame; needs pandas."""
        import pandas

        return pandas.DataFrame(list(self.rows), columns=list(ColumnRow._fields))

    def __repr__(self) -> str:
        lines = [ColumnRow._fields, *([_cell(v) for v in row] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(ColumnRow._fields))]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ColumnRow._fields)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(str(v))}</td>' for v in row)}</tr>" for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def transform_notes(plan: Plan) -> list[str]:
    """What was done to columns of numbers besides, in sentences for their owner."""
    found = {c.name: c.transform for c in plan.numbers if c.transform is not None}
    notes = [f"skewed, so transformed: {listed(list(found), found)}"] if found else []
    frequent = {c.name: f"{c.frequent_value:g}" for c in plan.with_frequent_value}
    if frequent:
        notes.append(f"one value is frequent and has an input: {listed(list(frequent), frequent)}")
    return notes


def plan_notes(plan: Plan) -> list[str]:
    """What was done to a table, in sentences for its owner."""
    dropped: dict[str, list[AnyColumn]] = {"constant": [], "identifier": []}
    for column in plan.dropped:
        dropped[column.kind].append(column)
    gaps = [c for c in plan.numbers if GAPS.search(c.reason) or c.indicator]
    marked = [c.name for c in gaps if c.indicator]
    predicted = [c for c in gaps if _is_predicted(plan, c)]
    others = [c for c in gaps if not _is_predicted(plan, c)]
    kinds: list[tuple[str, Sequence[AnyColumn], bool]] = [
        ("constant in the training rows, so left out", dropped["constant"], False),
        ("taken for identifiers, so left out", dropped["identifier"], True),
        ("missing numbers predicted from a row's other numbers", predicted, True),
        ("missing numbers replaced by the median", others, True),
        ("missing text taken for a level of its own", [c for c in plan.levels if c.missing], False),
        (
            "of many levels, the most frequent kept apart and the others pooled",
            [c for c in plan.levels if c.pooled],
            True,
        ),
        ("of many levels, described by a level's mean target", plan.statistics, True),
        ("dates taken apart", plan.dates, True),
    ]
    notes = []
    for what, found, explained in kinds:
        reasons = {column.name: column.reason for column in found}
        if found:
            notes.append(f"{what}: {listed(list(reasons), reasons if explained else None)}")
    if marked:
        notes.append(f"gaps have an input of their own: {listed(marked)}")
    return notes


def _cell(value: str | int) -> str:
    text = str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _is_predicted(plan: Plan, column: NumberColumn) -> bool:
    return plan.imputation is not None and column.name in plan.imputation.names


def _row(plan: Plan, column: AnyColumn) -> ColumnRow:
    name, reason = column.name, column.reason
    if isinstance(column, DroppedColumn):
        return ColumnRow(name, column.kind, 0, "left out", reason)
    if isinstance(column, NumberColumn):
        filled = "from the other numbers" if _is_predicted(plan, column) else "to the median"
        gaps = [f"gaps {filled}"] if GAPS.search(reason) or column.indicator else []
        gaps += ["an indicator of them"] if column.indicator else []
        kind = "boolean" if column.kind == "bool" else "number"
        how = "as it is" if column.transform is None else f"skewed: {column.transform}"
        how = how if column.kind == "number" else "0 and 1"
        frequent = (
            [] if column.frequent_value is None else [f"an indicator of {column.frequent_value:g}"]
        )
        inputs = 1 + column.indicator + len(frequent)
        return ColumnRow(name, kind, inputs, "; ".join([how, *gaps, *frequent]), reason)
    if isinstance(column, LevelColumn):
        how = ["one-hot, one lengthscale"]
        if column.pooled:
            how.append(f"the {len(column.pooled)} rarest levels pooled")
        how += ["missing is a level"] if column.missing else []
        kind = "boolean" if column.kind == "bool" else "category"
        return ColumnRow(name, kind, column.codes, "; ".join(how), reason)
    if isinstance(column, StatisticsColumn):
        how = f"mean target, out of fold; count; {column.marks} marks of the level"
        return ColumnRow(name, "many levels", column.codes, how, reason)
    assert isinstance(column, DateColumn)
    parts = [*column.parts, *(["an indicator of gaps"] if column.indicator else [])]
    return ColumnRow(name, "date", column.codes, ", ".join(parts), reason)
