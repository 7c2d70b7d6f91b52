"""Figures by data set: a dot for ours, a ring for the paper's, a scale of its own for each set."""

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from orthogp.apps.paper.experiments import DASHED, colour_of
from orthogp.apps.paper.tables.appendix import remarks
from orthogp.apps.paper.tables.grid import Grid
from orthogp.apps.paper.tables.model import METRICS, Metric, ResultCell
from orthogp.apps.paper.tables.summary import NOT_COMPARABLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches a method takes of a data set's strip.
LANE = 0.1
# A method is drawn at the edge where the others then have this many times the room.
SQUASHED = 2.5
MOST_CLIPPED = 2


@dataclass(frozen=True)
class Strip:
    """The cells of one data set and metric, by method; the paper's figures only if comparable."""

    cells: dict[str, ResultCell]

    def points(self) -> dict[str, list[float]]:
        both = {m: [c.value, c.original] for m, c in self.cells.items()}
        present = {m: [v for v in values if v is not None] for m, values in both.items()}
        return {m: values for m, values in present.items() if values}


def draw_dots(grid: Grid) -> "Figure | None":
    """A strip a data set with a figure of ours, a column a metric; None where there is none."""
    from matplotlib.figure import Figure

    metrics, methods = METRICS[grid.task], (*grid.paper_methods, *grid.own_methods)
    datasets = [
        d for d in grid.found
        if any(grid.cell(d, m, k.key).value is not None for m in methods for k in metrics)
    ]  # fmt: skip
    if not datasets:
        return None
    strip_height = LANE * len(methods) + 0.25
    size = (10.0, strip_height * len(datasets) + 1.3)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(datasets), len(metrics), squeeze=False)
    for row, dataset in zip(axes, datasets, strict=True):
        for ax, metric in zip(row, metrics, strict=True):
            _draw_strip(ax, _strip(grid, dataset, methods, metric), methods, metric)
        row[0].set_ylabel(dataset, rotation=0, ha="right", va="center", fontsize=10)
    for ax, metric in zip(axes[0], metrics, strict=True):
        better = "right" if metric.higher_is_better else "left"
        ax.set_title(f"{metric.title} ({better} is better)", fontsize=10, pad=8)
    _add_legend(figure, methods)
    notes = remarks(datasets)
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=8, color="0.35")
    return figure


def _strip(grid: Grid, dataset: str, methods: tuple[str, ...], metric: Metric) -> Strip:
    get_cell = grid.cell if dataset in NOT_COMPARABLE else grid.with_paper_value
    return Strip({method: get_cell(dataset, method, metric.key) for method in methods})


def clipped_range(points: dict[str, list[float]]) -> tuple[float, float]:
    """The least and greatest of the points, without up to two methods that squash the others."""
    remaining = dict(points)
    for _ in range(MOST_CLIPPED):
        if len(remaining) < 4:
            break
        middle = median(v for values in remaining.values() for v in values)
        farthest = max(remaining, key=lambda m: max(abs(v - middle) for v in remaining[m]))
        rest = {m: values for m, values in remaining.items() if m != farthest}
        if _span(remaining) <= SQUASHED * _span(rest):
            break
        remaining = rest
    values = [v for found in remaining.values() for v in found]
    return min(values), max(values)


def _span(points: dict[str, list[float]]) -> float:
    values = [v for found in points.values() for v in found]
    return max(values) - min(values)


def _draw_strip(ax: "Axes", strip: Strip, methods: tuple[str, ...], metric: Metric) -> None:
    from matplotlib.ticker import MaxNLocator

    points = strip.points()
    if points:
        low, high = clipped_range(points)
        margin = 0.1 * (high - low) or 0.05 * abs(high) or 0.1
        ax.set_xlim(low - margin, high + margin)
        for lane, method in enumerate(methods):
            if method in points:
                _draw_lane(ax, lane, method, strip.cells[method], (low, high), metric)
    ax.set_ylim(len(methods) - 0.2, -0.8)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.tick_params(axis="x", labelsize=7, length=2, pad=1, color="0.6")
    ax.grid(axis="x", color="0.9", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color("0.6")


def _draw_lane(
    ax: "Axes",
    lane: int,
    method: str,
    cell: ResultCell,
    limits: tuple[float, float],
    metric: Metric,
) -> None:
    """Ours and the paper's joined by a line; what is off the scale as an arrow and its figure."""
    colour, (low, high) = colour_of(method), limits
    inside = [v for v in (cell.original, cell.value) if v is not None and low <= v <= high]
    if len(inside) == 2:
        ax.plot(inside, [lane, lane], color=colour, lw=0.9, alpha=0.7)
    for value, face in ((cell.original, "white"), (cell.value, colour)):
        if value in inside:
            ax.plot(value, lane, marker=marker_of(method), ms=4.5, mfc=face, mec=colour, mew=0.9)
    off = [v for v in (cell.value, cell.original) if v is not None and v not in inside]
    if off:
        _draw_arrow(ax, lane, colour, off, off[0] < low, metric.digits)


def _draw_arrow(
    ax: "Axes", lane: int, colour: str, values: list[float], left: bool, digits: int
) -> None:
    edge, shift = (0.0, 7) if left else (1.0, -7)
    where = ax.get_yaxis_transform()
    ax.plot(edge, lane, marker="<" if left else ">", ms=4.5, color=colour, transform=where,
            clip_on=False)  # fmt: skip
    text = f"{values[0]:.{digits - 1}f}"
    if len(values) == 2:
        text += f" (paper {values[1]:.{digits - 1}f})"
    ax.annotate(
        text, (edge, lane), xycoords=where, xytext=(shift, 0), textcoords="offset points",
        ha="left" if left else "right", va="center", fontsize=6.5, color=colour,
    )  # fmt: skip


def marker_of(method: str) -> str:
    """Circles for natural steps and columns of our own, diamonds for Adam alone."""
    return "D" if method in DASHED else "o"


def _add_legend(figure: "Figure", methods: tuple[str, ...]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], ls="", marker=marker_of(m), color=colour_of(m), ms=5, label=m)
        for m in methods
    ]
    ring = Line2D([], [], ls="", marker="o", mfc="white", mec="0.3", ms=5, label="the paper's")
    figure.legend(
        handles=[*handles, ring], loc="outside upper center", ncols=6, frameon=False, fontsize=9
    )
