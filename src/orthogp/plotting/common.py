"""What the pictures share: axes, colours, names of columns, and what an estimator must be."""

from typing import TYPE_CHECKING, Any

from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Hues that a colour-blind reader can tell apart, on white and on black.
MEAN, BETA, GAMMA, DATA = "#0072B2", "#0072B2", "#D55E00", "0.55"


def axes_or_new(ax: "Axes | None", size: tuple[float, float] = (6.0, 4.0)) -> "Axes":
    """The axes given, or those of a new figure, which pyplot does not manage."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").add_subplot()


def tidy(ax: "Axes") -> None:
    ax.grid(color="0.9", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def require_columns(gp: Any, count: int, function: str) -> None:
    """Refuses an estimator of other than `count` input columns."""
    check_is_fitted(gp)
    if gp.n_features_in_ != count:
        raise DataError(
            f"{function} needs a model of {count} input column(s); this one has "
            f"{gp.n_features_in_}: fit on {count}, or draw its points with plot_points"
        )


def require_one_number(gp: Any, function: str) -> None:
    """Refuses classifiers and regressors of several targets."""
    check_is_fitted(gp)
    if is_classifier(gp):
        raise ConfigurationError(
            f"{function} draws a regressor; this is a classifier: see plot_calibration"
        )
    count = gp.model_.basis.num_latents
    if count != 1:
        raise ConfigurationError(
            f"{function} draws one target; this model has {count}: fit it on one of them"
        )


def column_name(gp: Any, column: int) -> str:
    """The column's name in the DataFrame of the fit, or x₁, x₂, …"""
    names = getattr(gp, "feature_names_in_", None)
    return f"$x_{{{column + 1}}}$" if names is None else str(names[column])
