"""Sortable tables: a cell has a text, a value to sort by, and a hint."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orthogp.errors import DataError
from orthogp.plotting.pages.markup import Markup, element, escaped, joined

Tone = Literal["", "best", "good", "bad", "missing"]


@dataclass(frozen=True)
class Cell:
    """`value` is what a number sorts by; a text sorts by itself, a missing cell comes last.

    `below` is a second, smaller line. `hint` shows on hover, focus and tap, line by line.
    `anchor` makes the cell a link to that anchor of the page.
    """

    text: str
    value: float | None = None
    below: str = ""
    hint: str = ""
    tone: Tone = ""
    anchor: str = ""

    @property
    def sorts_as(self) -> float | None:
        return self.value if self.value is not None and math.isfinite(self.value) else None


MISSING = Cell("–", tone="missing")
# A text of more characters wraps: into about LINES lines, of at most LINE characters.
LONG, LINES, LINE = 60, 3.2, 44
# Narrow and not breaking: 20 000 stays on one line.
THOUSANDS = "\u202f"
Content = Cell | str | float | int | None


@dataclass(frozen=True)
class Table:
    """Rows of cells; a plain number, text or None in a row stands for a cell of it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Content]]
    caption: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise DataError(
                    f"a row has {len(row)} cells and the table {len(self.columns)} columns; "
                    "give None for a missing cell"
                )


def number(value: float, digits: int = 6) -> str:
    """At most so many significant digits, with a minus sign and thousands separators."""
    if not math.isfinite(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace(",", THOUSANDS).replace("-", "−")


def as_cell(content: Content) -> Cell:
    if isinstance(content, Cell):
        return content
    if isinstance(content, str):
        return Cell(content) if content else MISSING
    if content is None or not math.isfinite(content):
        return MISSING
    return Cell(number(float(content)), float(content))


def table_markup(table: Table) -> Markup:
    rows = [[as_cell(content) for content in row] for row in table.rows]
    numeric = [any(row[i].sorts_as is not None for row in rows) for i in range(len(table.columns))]
    columns = zip(table.columns, numeric, strict=True)
    head = [
        element("th", _breakable(name), scope="col", class_=is_number and "number")
        for name, is_number in columns
    ]
    body = [_row(row, numeric) for row in rows]
    # The caption is outside of the part that scrolls, which a phone scrolls with its columns.
    caption = element("figcaption", table.caption) if table.caption else ""
    grid = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *body),
        aria_label=table.caption or None,
    )
    box = element(
        "div", grid, class_="scroll", role="region", tabindex=0, aria_label=table.caption or "table"
    )
    notes = element("div", *(element("p", note) for note in table.notes), class_="notes")
    return element("figure", caption, box, notes if table.notes else "", class_="table")


def _breakable(name: str) -> Markup:
    """CamelCase300 may go on a second line before a capital or a number."""
    parts = re.split(r"(?<=[a-z])(?=[A-Z0-9])", name)
    return Markup("<wbr>".join(map(escaped, parts)))


def _row(row: list[Cell], numeric: list[bool]) -> Markup:
    pairs = enumerate(zip(row, numeric, strict=True))
    return element("tr", *(_cell(cell, is_number, i == 0) for i, (cell, is_number) in pairs))


def _cell(cell: Cell, numeric: bool, first: bool) -> Markup:
    content = element("a", cell.text, href=f"#{cell.anchor}") if cell.anchor else cell.text
    below = element("small", cell.below) if cell.below else ""
    classes = ["number"] * numeric + [cell.tone]
    width = min(len(cell.text) / LINES, LINE)
    return element(
        "th" if first else "td",
        joined(content, below),
        scope="row" if first else None,
        class_=" ".join(filter(None, classes)) or None,
        style=f"min-width:{width:.0f}ch" if len(cell.text) > LONG else None,
        data_value=cell.sorts_as,
        title=cell.hint or None,
    )
