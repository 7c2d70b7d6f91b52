"""Results drawn: bars of contestants, and growth against |γ|. Needs Matplotlib."""

from pathlib import Path
from typing import Any


def draw_bars(result: dict[str, Any], key: str, label: str, path: Path) -> None:
    """One bar a contestant, on a logarithmic axis."""
    from matplotlib.figure import Figure

    figures = result[key]
    figure = Figure(figsize=(7, 0.6 + 0.4 * len(figures)), layout="constrained")
    axes = figure.subplots()
    ours = [name.startswith("orthogp") for name in figures]
    colours = ["C0" if mine else "C7" for mine in ours]
    bars = axes.barh(list(figures), list(figures.values()), color=colours)
    axes.bar_label(bars, fmt="{:,.3g}", padding=3)
    axes.set_xscale("log")
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
        known = {int(n): v for n, v in result[key].items() if v is not None and int(n) > 0}
        if known:
            sizes, values = list(known), list(known.values())
            axes.loglog(sizes, values, "o-", label="orthogp")
            linear = [values[-1] * size / sizes[-1] for size in sizes]
            axes.loglog(sizes, linear, ":", color="C7", label="linear")
            axes.legend()
        axes.set_xlabel("residual points |γ|")
        axes.set_ylabel(label)
    figure.savefig(path, dpi=150)
