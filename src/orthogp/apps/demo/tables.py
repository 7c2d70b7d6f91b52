"""The figures of the contest, once for the terminal and once for the page."""

from collections.abc import Sequence

from rich.box import ROUNDED
from rich.table import Table as RichTable

from orthogp.apps.demo.contest import DemoResult
from orthogp.apps.demo.problems import BEST_LOG_LIKELIHOOD, NOISE
from orthogp.plotting.pages import Cell, Table

Rows = list[list[str]]

REGRESSION = ("method", "points", "RMSE", "log-likelihood", "90 % covers", "seconds")
CLASSIFICATION = ("method", "points", "accuracy", "log-likelihood", "seconds")


def regression_rows(outcomes: Sequence[DemoResult]) -> Rows:
    """One row a method."""
    return [
        [
            o.method.name, o.method.points, f"{o.rmse:.4g}", _signed(o.log_likelihood),
            f"{100 * o.coverage:.1f} %", f"{o.seconds:.1f}",
        ]
        for o in outcomes
    ]  # fmt: skip


def surface_rows(outcomes: Sequence[DemoResult]) -> Rows:
    """One row a method, and what the noise alone would leave."""
    best = ["only noise", "–", f"{NOISE:.4g}", _signed(BEST_LOG_LIKELIHOOD), "90.0 %", "–"]
    return [*regression_rows(outcomes), best]


def classification_rows(outcomes: Sequence[DemoResult]) -> Rows:
    return [
        [
            o.method.name, o.method.points, f"{100 * o.accuracy:.1f} %",
            _signed(o.log_likelihood), f"{o.seconds:.1f}",
        ]
        for o in outcomes
    ]  # fmt: skip


def rich_table(title: str, columns: Sequence[str], rows: Rows) -> RichTable:
    table = RichTable(title=title, title_justify="left", box=ROUNDED)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < 2 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def page_table(caption: str, columns: Sequence[str], rows: Rows) -> Table:
    return Table(columns, [[_cell(text) for text in row] for row in rows], caption)


def _cell(text: str) -> Cell | None:
    """What is a number sorts as one; a dash is a missing cell."""
    if text == "–":
        return None
    number = text.removesuffix(" %").replace("−", "-")
    try:
        return Cell(text, float(number))
    except ValueError:
        return Cell(text)


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")
