"""How a fit went: the bound against time or steps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sklearn.utils.validation import check_is_fitted

from orthogp.errors import ConfigurationError, DataError
from orthogp.plotting.common import GAMMA, MEAN, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    judged = [row for row in history if row.get("held_out") is not None]
    if judged:
        right = ax.twinx()
        right.plot(
            [row[x] for row in judged], [row["held_out"] for row in judged], color=GAMMA, ls="--",
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
