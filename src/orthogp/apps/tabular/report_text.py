"""The report of a fit for a terminal."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orthogp.apps.tabular.measures import Row
from orthogp.apps.tabular.report import FIGURES, FitReport

MOST_ROWS = 10


def print_report(report: FitReport, console: Console) -> None:
    console.print(Text(report.about))
    figures = [
        {"figure": FIGURES[name][0], "value": value, "meaning": FIGURES[name][1]}
        for name, value in report.measures.figures.items()
    ]
    print_rows("On the test rows", figures, console)
    calibration = report.measures.calibration
    stride = math.ceil(len(calibration) / MOST_ROWS)
    print_rows("Calibration: stated and observed shares", calibration[::stride], console)
    print_rows("Residuals, from small predictions to large", report.measures.residuals, console)
    print_rows("Classes, in rows", report.measures.classes, console)
    print_rows("Most frequent confusions", report.measures.confusions, console)
    if report.relevance:
        rows = [
            {"column": name, "1/lengthscale": value} for name, value in report.relevance[:MOST_ROWS]
        ]
        print_rows("Most relevant columns", rows, console)


def print_rows(title: str, rows: Sequence[Row], console: Console) -> None:
    """A table with the keys of the first row as its head; nothing where there are no rows."""
    if not rows:
        return
    table = Table(title=Text(title), title_justify="left")
    for name, value in rows[0].items():
        justify = "left" if isinstance(value, str) else "right"
        table.add_column(name.replace("_", " "), justify=justify)
    for row in rows:
        table.add_row(*(Text(printable(value)) for value in row.values()))
    console.print(table)


def printable(value: str | int | float) -> str:
    """Text from a table may hold anything, and a terminal obeys what it is sent."""
    if isinstance(value, str):
        return value if value.isprintable() else repr(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
