"""The paper's figures from records: curves against steps or time, and figures by data set."""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orthogp.apps.paper.experiments import COLOURS, DASHED, OPTIMUM, colour_of
from orthogp.apps.paper.figures.dots import draw_dots
from orthogp.apps.paper.records import Record
from orthogp.apps.paper.tables.grid import FULL_STEPS, build_grid
from orthogp.apps.paper.tables.model import METRICS
from orthogp.errors import ConfigurationError
from orthogp.execution.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = ("illustration", "wall-clock")
LABELS = {
    "bound": "bound, nats a row",
    "log_likelihood": "test log-likelihood, nats a row",
    "rmse": "test RMSE",
    "accuracy": "test accuracy, percent",
    "step": "step",
    "seconds": "seconds of training",
}
PNG_DPI = 150


@dataclass(frozen=True)
class Panel:
    """Which key of the histories is drawn against which, of which records."""

    title: str
    x: str
    y: str
    records: tuple[Record, ...]


def draw_figures(
    records: Iterable[Record], experiment: str, out: Path, full_steps: int = FULL_STEPS
) -> list[Path]:
    """EXPERIMENT.svg and EXPERIMENT.png under `out`; none where no record has anything to draw.

    Of "regression" and "classification" the figures that count (see `tables`) are drawn, with the
    paper's; of "illustration" and "wall-clock" the curves of every run that ended well.
    """
    if experiment in METRICS:
        figure = draw_dots(build_grid(records, experiment, full_steps))
    elif experiment in CURVES:
        figure = _draw_panels(_panels(records, experiment), log_x=experiment == "illustration")
    else:
        experiments = ", ".join((*CURVES, *METRICS))
        raise ConfigurationError(f"there are figures of {experiments} only, none of {experiment!r}")
    return [] if figure is None else write_figure(figure, out, experiment)


def _panels(records: Iterable[Record], experiment: str) -> list[list[Panel]]:
    """Of the illustration one panel a data set, of the wall-clock comparison a row of three."""
    done = [r for r in records if r.job.experiment == experiment and r.status == "done"]
    order = {method: place for place, method in enumerate(COLOURS)}
    done.sort(key=lambda r: (order.get(r.job.method, len(order)), r.job.method, r.job.split))
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in done:
        task = "classification" if "accuracy" in record.metrics else "regression"
        groups.setdefault((task, record.job.dataset), []).append(record)
    rows = []
    for (task, dataset), group in sorted(groups.items(), reverse=True):
        if experiment == "wall-clock":
            keys = ("bound", "log_likelihood", "rmse" if task == "regression" else "accuracy")
            rows.append([Panel(dataset, "seconds", key, tuple(group)) for key in keys])
        else:
            key = "rmse" if task == "regression" else "log_likelihood"
            rows.append(Panel(f"{dataset}, {task}", "step", key, tuple(group)))
    return rows if experiment == "wall-clock" else [rows]


def _draw_panels(rows: Sequence[Sequence[Panel]], log_x: bool) -> "Figure | None":
    from matplotlib.figure import Figure

    if not any(_points(r, p.x, p.y) for row in rows for p in row for r in p.records):
        return None
    width, height = max(map(len, rows)), len(rows)
    figure = Figure(figsize=(4.6 * width, 3.3 * height + 0.6), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False)
    handles = {}
    for drawn, row in zip(axes, rows, strict=True):
        for panel, ax in zip(row, drawn, strict=True):
            _draw_panel(panel, ax, log_x)
            lines, names = ax.get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
    columns = min(len(handles), 4 * width)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False
    )
    return figure


def _draw_panel(panel: Panel, ax: "Axes", log_x: bool) -> None:
    seen, curves = set(), []
    for record in panel.records:
        method = record.job.method
        label = None if method in seen else method
        colour, style = colour_of(method), "--" if method in DASHED else "-"
        points = _points(record, panel.x, panel.y)
        if method == OPTIMUM and panel.y in record.metrics:
            ax.axhline(record.metrics[panel.y], color=colour, ls=style, lw=1.4, label=label)
            curves.append([record.metrics[panel.y]])
        elif points:
            x, y = zip(*points, strict=True)
            ax.plot(x, y, color=colour, ls=style, lw=1.6, label=label)
            curves.append(y)
        else:
            continue
        seen.add(method)
    if log_x:
        ax.set_xscale("log")
    limits = sensible_limits(curves)
    if limits:
        ax.set_ylim(*limits)
    ax.set_title(panel.title, loc="left", fontsize=10)
    ax.set_xlabel(LABELS[panel.x])
    ax.set_ylabel(LABELS[panel.y])
    ax.grid(color="0.9", lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _points(record: Record, x: str, y: str) -> list[tuple[float, float]]:
    """What of a history can be drawn; a logarithmic axis has no place for a start at 0."""
    pairs = [(float(row[x]), float(row[y])) for row in record.history if x in row and y in row]
    return [(a, b) for a, b in pairs if a > 0 and math.isfinite(b)]


def sensible_limits(curves: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Where the bulk of the curves and all their ends are; None where that is all there is.

    The first reports of a run can be so far off that the rest would be a flat line.
    """
    import numpy as np

    values = np.concatenate([np.asarray(c, dtype=float) for c in curves]) if curves else []
    if len(values) == 0:
        return None
    ends = [curve[-1] for curve in curves]
    low = min(float(np.quantile(values, 0.05)), *ends)
    high = max(float(np.quantile(values, 0.95)), *ends)
    if np.ptp(values) <= 1.5 * (high - low):
        return None
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def write_figure(figure: "Figure", out: Path, name: str) -> list[Path]:
    """NAME.svg and NAME.png under `out`."""
    from matplotlib import rc_context

    paths = []
    # Without a date, and with fixed names inside, the same records give the same file.
    for kind, metadata in (("svg", {"Date": None}), ("png", {})):
        content = io.BytesIO()
        with rc_context({"svg.hashsalt": name}):
            figure.savefig(content, format=kind, dpi=PNG_DPI, metadata=metadata)
        paths.append(out / f"{name}.{kind}")
        write_atomically(paths[-1], [content.getvalue()])
    return paths
