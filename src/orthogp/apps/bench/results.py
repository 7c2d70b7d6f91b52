"""Results shown: a table for the terminal, bars of contestants, growth against |γ|.

Drawing needs Matplotlib.
"""

from pathlib import Path
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
        cells = [formatted(result[key].get(name)) for key in shown]
        out.add_row(name, *cells, *([skipped.get(name, "")] if skipped else []))
    return out


def formatted(value: float | None) -> str:
    """Three digits, more of a large number, never an exponent."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def draw_bars(result: dict[str, Any], key: str, label: str, path: Path) -> None:
    """One bar a contestant, ours in another colour."""
    from matplotlib.figure import Figure

    figures = result[key]
    figure = Figure(figsize=(7, 0.6 + 0.4 * len(figures)), layout="constrained")
    axes = figure.subplots()
    colours = ["C0" if name.startswith("orthogp") else "C7" for name in figures]
    bars = axes.barh(list(figures), list(figures.values()), color=colours)
    axes.bar_label(bars, [formatted(value) for value in figures.values()], padding=3)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    figure.savefig(path, dpi=150)


def draw_scaling(result: dict[str, Any], path: Path) -> None:
    """Milliseconds and memory against |γ|, with a line of slope one through the last size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = (("ms", "ms a step"), ("peak_mb", "peak memory, MiB"))
    for axes, (key, label) in zip(figure.subplots(1, 2), panels, strict=True):
        measured = {int(n): v for n, v in result[key].items() if v is not None and int(n) > 0}
        if measured:
            sizes, values = list(measured), list(measured.values())
            axes.loglog(sizes, values, "o-", label="orthogp")
            linear = [values[-1] * size / sizes[-1] for size in sizes]
            axes.loglog(sizes, linear, ":", color="C7", label="linear")
            axes.legend()
        axes.set_xlabel("residual points |γ|")
        axes.set_ylabel(label)
    figure.savefig(path, dpi=150)
