"""Pictures of fitted estimators: every function draws on `ax`, or on a figure of its own, and
returns the axes. Nothing is left behind in pyplot."""

from orthogp.plotting.calibration import (
    Reliability,
    coverage_curve,
    plot_calibration,
    reliability_curve,
)
from orthogp.plotting.fits import plot_history, plot_points, points_in_units
from orthogp.plotting.posterior import plot_posterior_1d, plot_posterior_2d

__all__ = [
    "Reliability",
    "coverage_curve",
    "plot_calibration",
    "plot_history",
    "plot_points",
    "plot_posterior_1d",
    "plot_posterior_2d",
    "points_in_units",
    "reliability_curve",
]
