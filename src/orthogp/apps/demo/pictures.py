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


def draw_surface(outcomes: Sequence[DemoResult], grid: int) -> Figure:
    """Above the truth and all means on one scale; below how far off they are, and how far off the
    last model thinks it is."""
    truth = surface(places_2d(WINDOW, grid)).reshape(grid, grid)
    limit = float(np.abs(truth).max())
    figure = Figure(figsize=(4.2 * (1 + len(outcomes)), 10.0), layout="constrained")
    above, below = figure.subplots(2, 1 + len(outcomes), sharex=True, sharey=True)
    _image(above[0], truth, HEIGHTS, "The surface, without noise")
    misses = []
    for ax, outcome in zip(above[1:], outcomes, strict=True):
        plot_posterior_2d(outcome.gp, ax, "mean", WINDOW, grid)
        misses.append(np.abs(np.asarray(ax.images[-1].get_array()) - truth))
        ax.set_title(f"{outcome.method.name} ({outcome.method.points}), mean", loc="left")
    for ax in above:
        ax.images[-1].set(cmap=HEIGHTS, clim=(-limit, limit))
    worst = float(np.quantile(np.stack(misses), 0.99))
    for ax, outcome, miss in zip(below[1:], outcomes, misses, strict=True):
        _image(ax, miss, ERRORS, f"{outcome.method.name}, distance from the surface")
        ax.images[-1].set_clim(0, worst)
    plot_posterior_2d(outcomes[-1].gp, below[0], "std", WINDOW, grid)
    below[0].images[-1].set_cmap(SPREADS)
    below[0].set_title(f"{outcomes[-1].method.name}, standard deviation", loc="left")
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
    """Intervals of the regressors, and probabilities of the classifier."""
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


def draw_intervals(outcome: DemoResult, data: DemoData) -> Figure:
    """The 90 % interval of every row to judge by, in the order of their predictions."""
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    ax = figure.add_subplot()
    mean = outcome.gp.predict(data.X_test)
    low, high = outcome.gp.predict_interval(data.X_test, coverage=0.9)
    order = np.argsort(mean)
    place = np.arange(len(order))
    inside = ((low <= data.y_test) & (data.y_test <= high))[order]
    ax.vlines(place, low[order], high[order], color=outcome.method.colour, alpha=0.35, lw=3)
    ax.plot(place, mean[order], color=outcome.method.colour, label="prediction")
    for chosen, colour, label in ((inside, "#404040", "inside"), (~inside, "#D55E00", "outside")):
        values = data.y_test[order][chosen]
        ax.plot(place[chosen], values, "o", ms=3.5, color=colour, label=f"{label}: {len(values)}")
    ax.set(xlabel="patients, by what is predicted", ylabel="progress of the disease")
    ax.legend(loc="upper left", frameon=False, ncols=3)
    ax.set_title("Diabetes: 90 % intervals of patients not seen", loc="left")
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
