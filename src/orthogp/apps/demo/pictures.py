"""The demonstration's pictures, as Matplotlib figures."""

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from orthogp.apps.demo.contest import DemoResult
from orthogp.apps.demo.problems import DemoData, surface
from orthogp.plotting import (
    coverage_curve,
    plot_calibration,
    plot_history,
    plot_points,
    plot_posterior_2d,
)
from orthogp.plotting.posterior import places_2d

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 130
# From the middle, where rows are dense, to where they are few; in all of the square the hills would
# be too small to compare.
WINDOW = ((0.5, 0.9), (0.5, 0.9))
HEIGHTS, ERRORS, SPREADS = "viridis", "magma", "cividis"


def png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    return content.getvalue()


def draw_surface(coupled: DemoResult, orthogonal: DemoResult, grid: int) -> Figure:
    """Above the truth and both means on one scale; below how far off they are, and how far off
    the orthogonal model thinks it is."""
    truth = surface(places_2d(WINDOW, grid)).reshape(grid, grid)
    limit = float(np.abs(truth).max())
    figure = Figure(figsize=(12.6, 10.0), layout="constrained")
    above, below = figure.subplots(2, 3, sharex=True, sharey=True)
    _image(above[0], truth, HEIGHTS, "The surface, without noise")
    misses = []
    for ax, outcome in zip(above[1:], (coupled, orthogonal), strict=True):
        plot_posterior_2d(outcome.gp, ax, "mean", WINDOW, grid)
        misses.append(np.abs(np.asarray(ax.images[-1].get_array()) - truth))
        ax.set_title(f"{outcome.method.name}, mean", loc="left")
    for ax in above:
        ax.images[-1].set(cmap=HEIGHTS, clim=(-limit, limit))
    worst = float(np.quantile(np.stack(misses), 0.995))
    for ax, outcome, miss in zip(below[1:], (coupled, orthogonal), misses, strict=True):
        _image(ax, miss, ERRORS, f"{outcome.method.name}, distance from the surface")
        ax.images[-1].set_clim(0, worst)
    plot_posterior_2d(orthogonal.gp, below[0], "std", WINDOW, grid)
    below[0].images[-1].set_cmap(SPREADS)
    below[0].set_title(f"{orthogonal.method.name}, standard deviation", loc="left")
    for ax in (*above, *below):
        ax.set_aspect("equal")
        ax.locator_params(nbins=5)
        ax.label_outer()
    _colour_bar(above[-1], above, "height", aspect=60, shrink=0.66)
    _colour_bar(below[0], below[:1], "standard deviation", aspect=20)
    _colour_bar(below[-1], below[1:], "distance", aspect=40, shrink=0.66, extend="max")
    return figure


def draw_points(outcome: DemoResult, grid: int) -> Figure:
    """Where β and γ came to lie, over the surface in grey."""
    figure = Figure(figsize=(6.4, 6.8), layout="constrained")
    ax = figure.add_subplot()
    heights = surface(places_2d(WINDOW, grid)).reshape(grid, grid)
    _image(ax, heights, "Greys", "")
    ax.images[-1].set_alpha(0.45)
    plot_points(outcome.gp, ax)
    ax.set_xlim(*WINDOW[0])
    ax.set_ylim(*WINDOW[1])
    ax.set_aspect("equal")
    return figure


def draw_calibration(
    outcomes: Sequence[DemoResult], data: DemoData, digits: DemoResult, digit_data: DemoData
) -> Figure:
    """Intervals of both regressors, and probabilities of the classifier."""
    figure = Figure(figsize=(9.6, 4.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    *others, last = outcomes
    plot_calibration(last.gp, data.X_test, data.y_test, left)
    left.lines[-1].set(color=last.method.colour, label=last.method.name)
    for other in others:
        nominal, observed = coverage_curve(other.gp, data.X_test, data.y_test)
        left.plot(nominal, observed, "o-", ms=4, color=other.method.colour, label=other.method.name)
    left.legend(loc="upper left", frameon=False)
    left.set_title("Rough surface: intervals", loc="left")
    plot_calibration(digits.gp, digit_data.X_test, digit_data.y_test, right)
    right.lines[-1].set(color=digits.method.colour, label=digits.method.name)
    right.legend(loc="upper left", frameon=False)
    right.set_title("Digits: probabilities (numbers are rows)", loc="left")
    return figure


def draw_bound(outcomes: Sequence[DemoResult]) -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.add_subplot()
    for outcome in outcomes:
        plot_history(outcome.gp, ax)
        ax.lines[-1].set(color=outcome.method.colour, label=outcome.method.name, lw=2)
    # The first reports are so low that the rest would be a flat line.
    settled = [y for outcome in outcomes for _, y in outcome.bound[len(outcome.bound) // 4 :]]
    margin = 0.05 * (max(settled) - min(settled)) or 1.0
    ax.set_ylim(min(settled) - margin, max(settled) + margin)
    ax.set_title("Rough surface: bound on the log evidence", loc="left")
    ax.legend(loc="lower right", frameon=False)
    return figure


def _image(ax: "Axes", values: np.ndarray, colours: str, title: str) -> None:
    ax.imshow(
        values, origin="lower", extent=(*WINDOW[0], *WINDOW[1]), cmap=colours,
        interpolation="bilinear",
    )  # fmt: skip
    ax.set(xlabel="$x_{1}$", ylabel="$x_{2}$")
    ax.set_title(title, loc="left")


def _colour_bar(drawn: "Axes", beneath: "Iterable[Axes]", label: str, **options: Any) -> None:
    drawn.figure.colorbar(
        drawn.images[-1], ax=list(beneath), label=label, location="bottom", pad=0.02, fraction=0.04,
        **options,
    )  # fmt: skip
