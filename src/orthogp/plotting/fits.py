"""How a fit went: the bound against time or steps, and where β and γ came to lie."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from orthogp.errors import ConfigurationError, DataError
from orthogp.plotting.common import BETA, GAMMA, MEAN, axes_or_new, column_name, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = NDArray[np.float64]
LABELS = {"seconds": "seconds of training", "step": "step"}


def plot_history(
    gp_or_history: Any, ax: "Axes | None" = None, x: Literal["seconds", "step"] = "seconds"
) -> "Axes":
    """The bound of every report, in nats of the model's units, against seconds or steps.

    Takes an estimator or its `history_`. Where rows were held out to stop early, their mean log
    density is drawn too, on an axis of its own at the right.
    """
    if x not in LABELS:
        raise ConfigurationError(f"x is {x!r}; expected 'seconds' or 'step'")
    history = _history(gp_or_history)
    ax = axes_or_new(ax)
    ax.plot(
        [row[x] for row in history], [row["bound"] for row in history], color=MEAN, label="bound"
    )
    ax.set_xlabel(LABELS[x])
    ax.set_ylabel("bound, nats")
    tidy(ax)
    reports = [row for row in history if row.get("held_out") is not None]
    if reports:
        right = ax.twinx()
        right.plot(
            [row[x] for row in reports], [row["held_out"] for row in reports], color=GAMMA, ls="--",
            label="held-out log density",
        )  # fmt: skip
        right.set_ylabel("held-out log density, nats a row (dashed)")
        right.spines["top"].set_visible(False)
    return ax


def _history(gp_or_history: Any) -> Sequence[Mapping[str, Any]]:
    if hasattr(gp_or_history, "fit"):
        check_is_fitted(gp_or_history)
        gp_or_history = gp_or_history.history_
    rows = list(gp_or_history)
    if not rows or not all(isinstance(row, Mapping) and "bound" in row for row in rows):
        raise DataError(
            "there is no report to draw; pass a fitted estimator or its history_, a list of dicts"
        )
    return rows


def points_in_units(gp: Any) -> tuple[Points, Points]:
    """β `(m, d)` and γ `(g, d)` of a fitted estimator, in the units of its X.

    The coupled basis has no γ: `(0, d)`.
    """
    check_is_fitted(gp)
    scaling = gp._fitted.units.inputs

    def in_units(points: Tensor) -> Points:
        return scaling.in_units(points.detach().double().cpu().numpy())

    return in_units(gp.model_.basis.beta), in_units(gp.model_.basis.gamma)


def plot_points(gp: Any, ax: "Axes | None" = None, dims: Sequence[int] = (0, 1)) -> "Axes":
    """β and γ over two of the input columns, in the units of X."""
    beta, gamma = points_in_units(gp)
    columns = beta.shape[1]
    if len(dims) != 2 or not all(0 <= dim < columns for dim in dims):
        raise ConfigurationError(
            f"dims is {tuple(dims)}; expected two of the columns 0 to {columns - 1} of X"
        )
    first, second = dims
    ax = axes_or_new(ax, (5.0, 5.0))
    if len(gamma):
        ax.plot(
            gamma[:, first], gamma[:, second], ls="", marker="o", ms=3, mew=0, color=GAMMA,
            label=f"γ, {len(gamma)} points of the mean alone",
        )  # fmt: skip
    ax.plot(
        beta[:, first], beta[:, second], ls="", marker="D", ms=4, mew=0.5, mec="white", color=BETA,
        label=f"β, {len(beta)} points of mean and covariance",
    )  # fmt: skip
    ax.set_xlabel(column_name(gp, first))
    ax.set_ylabel(column_name(gp, second))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False, fontsize=9)
    return ax
