"""The posterior over one or two input columns."""

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import ConfigurationError, DataError
from orthogp.plotting.common import (
    BETA,
    DATA,
    GAMMA,
    MEAN,
    axes_or_new,
    column_name,
    require_columns,
    require_one_number,
    tidy,
)
from orthogp.plotting.fits import points_in_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bounds = tuple[tuple[float, float], tuple[float, float]]

CURVE_POINTS = 400
MOST_DATA_POINTS = 1000
MAPS = {"mean": ("viridis", "mean"), "std": ("magma", "standard deviation")}


def plot_posterior_1d(
    gp: Any,
    X: ArrayLike,
    y: ArrayLike | None = None,
    ax: "Axes | None" = None,
    coverage: float = 0.9,
) -> "Axes":
    """Mean and central interval of a new observation over the range of X.

    With `y` the data are drawn, evenly thinned where there are many. Ticks along the bottom are β,
    the row above them γ.
    """
    require_one_number(gp, "plot_posterior_1d")
    require_columns(gp, 1, "plot_posterior_1d")
    x = _one_column(X)
    curve = np.linspace(x.min(), x.max(), CURVE_POINTS)
    mean = _without_name_warning(gp.predict, curve[:, None])
    low, high = _without_name_warning(gp.predict_interval, curve[:, None], coverage=coverage)
    ax = axes_or_new(ax)
    if y is not None:
        targets = np.asarray(y, dtype=np.float64)
        if targets.shape != x.shape:
            raise DataError(f"y has shape {targets.shape}; expected {x.shape}, a number a row of X")
        stride = -(-len(x) // MOST_DATA_POINTS)
        ax.plot(x[::stride], targets[::stride], ".", ms=3, color=DATA, label="data", zorder=1)
    label = f"{coverage:.0%} interval"
    ax.fill_between(curve, low, high, color=MEAN, alpha=0.2, lw=0, label=label)
    ax.plot(curve, mean, color=MEAN, label="mean")
    for height, points, colour, name in zip(
        (0.02, 0.06), points_in_units(gp), (BETA, GAMMA), "βγ", strict=True
    ):
        if len(points):
            ax.plot(
                points[:, 0], np.full(len(points), height), "|", color=colour, ms=7, label=name,
                transform=ax.get_xaxis_transform(),
            )  # fmt: skip
    ax.set_xlim(curve[0], curve[-1])
    ax.set_xlabel(column_name(gp, 0))
    tidy(ax)
    ax.legend(frameon=False, fontsize=9)
    return ax


def plot_posterior_2d(
    gp: Any,
    ax: "Axes | None" = None,
    what: Literal["mean", "std"] = "mean",
    bounds: Bounds | None = None,
    grid: int = 100,
) -> "Axes":
    """Mean or standard deviation of a new observation, as an image of `grid` × `grid` places.

    `bounds` are the ranges of the two columns; by default the range of the model's points. The
    image is `ax.images[-1]`; on a figure of its own it has a colour bar.
    """
    if what not in MAPS:
        raise ConfigurationError(f"what is {what!r}; expected 'mean' or 'std'")
    require_one_number(gp, "plot_posterior_2d")
    require_columns(gp, 2, "plot_posterior_2d")
    bounds = _bounds(gp, bounds)
    mean, std = _without_name_warning(gp.predict, places_2d(bounds, grid), return_std=True)
    colours, label = MAPS[what]
    own_figure, ax = ax is None, axes_or_new(ax, (5.4, 4.4))
    image = ax.imshow(
        (mean if what == "mean" else std).reshape(grid, grid), origin="lower", aspect="auto",
        extent=(*bounds[0], *bounds[1]), cmap=colours, interpolation="bilinear",
    )  # fmt: skip
    ax.set_xlabel(column_name(gp, 0))
    ax.set_ylabel(column_name(gp, 1))
    if own_figure:
        ax.figure.colorbar(image, ax=ax, label=label)
    return ax


def places_2d(bounds: Bounds, grid: int) -> NDArray[np.float64]:
    """The middles of `grid` × `grid` cells, `(grid², 2)`, the first column fastest."""
    if grid < 2:
        raise ConfigurationError(f"grid is {grid}; expected at least 2 places a side")
    middles = (np.arange(grid) + 0.5) / grid
    first, second = (low + (high - low) * middles for low, high in bounds)
    return np.stack([part.ravel() for part in np.meshgrid(first, second)], axis=1)


def _bounds(gp: Any, bounds: Bounds | None) -> Bounds:
    if bounds is None:
        points = np.concatenate(points_in_units(gp))
        low, high = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        return (low[0], high[0]), (low[1], high[1])
    given = np.asarray(bounds, dtype=np.float64)
    if given.shape != (2, 2) or not (given[:, 0] < given[:, 1]).all():
        raise ConfigurationError(
            f"bounds is {bounds!r}; expected ((low, high), (low, high)) of the two columns"
        )
    (a, b), (c, d) = given.tolist()
    return (a, b), (c, d)


def _one_column(X: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(X, dtype=np.float64)
    if x.ndim == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 1 or len(x) < 2:
        raise DataError(f"X has shape {x.shape}; expected (n, 1) or (n,) with at least two rows")
    return x


def _without_name_warning(predict: Any, *args: Any, **options: Any) -> Any:
    """Predicts without scikit-learn's warning that the grid has no column names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return predict(*args, **options)
