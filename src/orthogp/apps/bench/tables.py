"""A result as a table for the terminal."""

from typing import Any

from rich.table import Table

# The figures of a result that are shown, and their headings.
FIGURES = {"ms": "ms", "rows_per_s": "rows/s", "ratio": "ratio", "peak_mb": "peak MiB"}


def table(title: str, first: str, result: dict[str, Any]) -> Table:
    """One row a contestant; "–" where nothing was measured, and why in the last column."""
    out = Table(title=title)
    out.add_column(first)
    shown = [key for key in FIGURES if key in result]
    for key in shown:
        out.add_column(FIGURES[key], justify="right")
    skipped = result.get("skipped", {})
    if skipped:
        out.add_column("why not")
    measured = result[shown[0]]
    for name in [*measured, *(name for name in skipped if name not in measured)]:
        cells = [written(result[key].get(name)) for key in shown]
        out.add_row(name, *cells, *([skipped.get(name, "")] if skipped else []))
    return out


def written(value: float | None) -> str:
    """Three digits, more of a large number, never an exponent."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
