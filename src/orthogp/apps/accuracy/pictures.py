"""Pictures of the standings: mean ranks with the critical difference, and accuracy against time."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from orthogp.apps.accuracy.job import ON_CUDA
from orthogp.apps.accuracy.standings import (
    FIT_SECONDS,
    RANKED,
    Standings,
    critical_difference,
    indistinguishable,
    mean_ranks,
)
from orthogp.apps.paper.figures import write_figure
from orthogp.apps.paper.tables.model import Metric
from orthogp.plotting.common import tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A hue a library, a square for the tuned model of it, a ring around what ran on a GPU.
COLOURS = {
    "orthogp": "#D55E00",
    "lightgbm": "#009E73",
    "xgboost": "#0072B2",
    "catboost": "#E69F00",
    "ngboost": "#A89B00",
    "realmlp": "#CC79A7",
    "tabm": "#7A4FA0",
    "exact-gp": "#404040",
    "svgp": "#808080",
    "gpboost": "#8C564B",
    "tabpfn": "#56B4E9",
}
TUNED = "-tuned"
PANELS_A_ROW = 3


def draw_pictures(standings: Standings, out: Path) -> list[Path]:
    """TASK-ranks-METRIC and TASK-pareto-METRIC, as SVG and PNG, for the two ranked metrics."""
    written = []
    for metric in RANKED[standings.task]:
        for kind, figure in (
            ("ranks", draw_ranks(standings, metric)),
            ("pareto", draw_pareto(standings, metric)),
        ):
            if figure is not None:
                name = f"{standings.task}-{kind}-{metric.key}".replace("_", "-")
                written += write_figure(figure, out, name)
    return written


def draw_ranks(standings: Standings, metric: Metric) -> "Figure | None":
    """The critical-difference diagram; None where fewer than two models have a rank.

    Models that a bar connects do not differ significantly by Nemenyi's test.
    """
    from matplotlib.figure import Figure

    ranks, _ = mean_ranks(standings, metric)
    if len(ranks) < 2:
        return None
    sets = len(standings.records)
    difference = critical_difference(len(ranks), sets)
    groups = indistinguishable(ranks, difference)
    half = math.ceil(len(ranks) / 2)
    names_from = -1.0 - 0.5 * len(groups)
    figure = Figure(figsize=(8.0, 1.1 + 0.26 * (half + 0.5 * len(groups) + 3)))
    figure.set_layout_engine("constrained")
    ax = figure.add_subplot()
    _rank_axis(ax, len(ranks), difference)
    for place, (model, rank) in enumerate(ranks.items()):
        left = place < half
        height = names_from - (place if left else len(ranks) - 1 - place)
        end = 0.7 if left else len(ranks) + 0.3
        ax.plot([rank, rank, end], [0, height, height], color=_colour(model), lw=1.2)
        ax.annotate(f"{model}  {rank:.2f}" if left else f"{rank:.2f}  {model}", (end, height),
                    xytext=(-4 if left else 4, 0), textcoords="offset points", fontsize=9,
                    ha="right" if left else "left", va="center")  # fmt: skip
    for number, group in enumerate(groups):
        height = -0.5 - 0.5 * number
        ax.plot([ranks[group[0]] - 0.05, ranks[group[-1]] + 0.05], [height] * 2, color="0.2",
                lw=3.5, solid_capstyle="round")  # fmt: skip
    ax.set_ylim(names_from - half, 2.2)
    ax.set_title(f"Mean rank over {sets} data sets: {metric.title}", loc="left", fontsize=10)
    return figure


def _rank_axis(ax: "Axes", models: int, difference: float) -> None:
    """The line of ranks from 1, best, to the number of models, and above it the bar of the
    difference."""
    ax.plot([1, models], [0, 0], color="0.2", lw=1.2)
    for rank in range(1, models + 1):
        ax.plot([rank, rank], [0, 0.25], color="0.2", lw=1.0)
        ax.text(rank, 0.35, str(rank), ha="center", va="bottom", fontsize=8)
    shown = min(1 + difference, models + 0.3)
    ax.plot([1, shown], [1.5, 1.5], color="0.45", lw=2)
    ax.text(shown + 0.1, 1.5, f"critical difference {difference:.2f}", va="center", fontsize=8)
    margin = 0.28 * models
    ax.set_xlim(0.7 - margin, models + 0.3 + margin)
    ax.axis("off")


def draw_pareto(standings: Standings, metric: Metric) -> "Figure | None":
    """A panel a data set: the metric against seconds of fit, and the models that none beats in
    both joined by a line."""
    from matplotlib.figure import Figure

    sets = list(standings.records)
    if not sets:
        return None
    rows, columns = math.ceil(len(sets) / PANELS_A_ROW), min(len(sets), PANELS_A_ROW)
    size = (3.6 * columns + 0.4, 2.7 * rows + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    handles = {}
    for ax, dataset in zip(axes, sets, strict=False):
        _draw_panel(ax, standings, dataset, metric)
        lines, names = ax.get_legend_handles_labels()
        handles |= dict(zip(names, lines, strict=True))
    for ax in axes[len(sets) :]:
        ax.set_visible(False)
    ordered = [model for model in standings.models if model in handles]
    figure.legend([handles[m] for m in ordered], ordered, loc="outside lower center",
                  ncols=2 * columns, frameon=False, fontsize=8)  # fmt: skip
    better = "up" if metric.higher_is_better else "down"
    figure.suptitle(f"{metric.title} ({better} is better) against seconds of fit", fontsize=10)
    return figure


def _draw_panel(ax: "Axes", standings: Standings, dataset: str, metric: Metric) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    points = {}
    for model in standings.records[dataset]:
        seconds = standings.cell(dataset, model, FIT_SECONDS.key).value
        value = standings.cell(dataset, model, metric.key).value
        if seconds is not None and value is not None:
            points[model] = (seconds, value)
    front = pareto_front(points, bool(metric.higher_is_better))
    if front:
        x, y = zip(*(points[model] for model in front), strict=True)
        style = "steps-post"
        ax.plot(x, y, color="0.7", lw=1.2, drawstyle=style, zorder=1)
    for model, (seconds, value) in points.items():
        tuned, cuda = TUNED in model, model.endswith(ON_CUDA)
        ax.plot(seconds, value, "s" if tuned else "o", ms=7, color=_colour(model),
                mec="0.1" if cuda else "white", mew=1.6 if cuda else 0.6, ls="",
                label=model)  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title(dataset, loc="left", fontsize=10)
    tidy(ax)


def pareto_front(points: dict[str, tuple[float, float]], higher_is_better: bool) -> list[str]:
    """Models, by seconds, for which no other is both as quick and better."""
    sign = -1.0 if higher_is_better else 1.0
    front, best = [], math.inf
    for model, (_, value) in sorted(points.items(), key=lambda p: (p[1][0], sign * p[1][1])):
        if sign * value < best:
            front.append(model)
            best = sign * value
    return front


def _colour(model: str) -> str:
    return COLOURS[model.removesuffix(ON_CUDA).removesuffix(TUNED)]
