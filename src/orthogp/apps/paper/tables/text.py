"""Tables and claims for the terminal, and tables as CSV."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from orthogp.apps.paper.tables.claims import Claim
from orthogp.apps.paper.tables.model import ResultCell, ResultTable, Row

if TYPE_CHECKING:
    import rich.console

MISSING = "–"
CSV_HEADER = (
    "method", "value", "standard_error", "splits", "paper", "paper_standard_error", "difference",
    "missing",
)  # fmt: skip
MARKS = {"pass": "[green]✓[/green]", "fail": "[red]✗[/red]", "cannot say": "[yellow]?[/yellow]"}


def lines(row: Row) -> Iterator[tuple[str, list[str]]]:
    """A row as lines of text: ours, then where there are any standard errors, the paper's, the
    difference. A figure that is missing is "–" in the first and empty in the others."""
    digits = row.digits
    yield row.name, [MISSING if c.value is None else f"{c.value:z.{digits}f}" for c in row.cells]
    others = (
        ("standard error", [c.error for c in row.cells], ""),
        ("paper", [c.original for c in row.cells], ""),
        ("paper's standard error", [c.original_error for c in row.cells], ""),
        ("difference", [c.difference for c in row.cells], "+"),
    )
    for name, values, sign in others:
        if any(value is not None for value in values):
            yield name, ["" if v is None else f"{v:{sign}z.{digits}f}" for v in values]


def two_lines(method: str) -> str:
    """CoupledNat300 over two lines: most of a table's width is its headings'."""
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "\n", method, count=1)


def print_table(table: ResultTable, console: "rich.console.Console") -> None:
    """To the console, columns in as many blocks as its width asks for, the notes below."""
    from rich.table import Table as RichTable
    from rich.text import Text

    console.print(Text(table.title, "italic"))
    for columns in _blocks(table, console.width):
        block = RichTable()
        block.add_column(table.heading, no_wrap=True)
        for i in columns:
            block.add_column(two_lines(table.columns[i]), justify="right", no_wrap=True)
        for row in table.rows:
            best = row.best()
            for number, (name, texts) in enumerate(lines(row)):
                style = "dim" if number else ""
                bold = ["bold" if number == 0 and i in best else style for i in columns]
                cells = [Text(texts[i], s) for i, s in zip(columns, bold, strict=True)]
                block.add_row(Text("  " * (number > 0) + name, style), *cells)
        console.print(block)
    for note in table.notes:
        console.print(f"· {note}", markup=False, highlight=False)


def _blocks(table: ResultTable, width: int) -> list[list[int]]:
    """The places of the columns, in groups that fit side by side after the rows' names."""
    texts = [line for row in table.rows for line in lines(row)]
    first = max(len(table.heading), *(len(name) + 2 for name, _ in texts)) + 4
    blocks, used = [[]], first
    for i, method in enumerate(table.columns):
        shown = [*two_lines(method).split("\n"), *(cells[i] for _, cells in texts)]
        wanted = max(map(len, shown)) + 3
        if blocks[-1] and used + wanted > width:
            blocks.append([])
            used = first
        blocks[-1].append(i)
        used += wanted
    return blocks


def print_claims(claims: Sequence[Claim], console: "rich.console.Console") -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable("", "claim", "figures", title="What the results show", title_justify="left")
    for claim in claims:
        table.add_row(MARKS[claim.status], Text(claim.statement), Text(claim.figures))
    console.print(table)


def to_csv(table: ResultTable) -> str:
    """One line a cell, figures in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((table.heading.replace(" ", "_"), *CSV_HEADER))
    for row in table.rows:
        for method, cell in zip_longest(table.columns, row.cells):
            writer.writerow((row.name, method, *_csv_cell(cell)))
    return out.getvalue()


def _csv_cell(cell: ResultCell) -> tuple[object, ...]:
    splits = len(cell.records) or None
    return (
        cell.value, cell.error, splits, cell.original, cell.original_error, cell.difference,
        cell.missing,
    )  # fmt: skip
