"""The demonstration's data: a rough surface, and two tables that come with scikit-learn."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NOISE = 0.1
LENGTHSCALE, SMOOTHNESS, WAVES = 0.03, 2.5, 500
# Of the places, around the middle: rows thin out to the corners, where a model must be less sure.
SPREAD = 0.22
# What no model can beat: predicting the surface itself.
BEST_LOG_LIKELIHOOD = -0.5 * math.log(2 * math.pi * math.e * NOISE**2)


@dataclass(frozen=True)
class DemoData:
    """Rows to fit and rows to judge by."""

    X: Array
    y: NDArray
    X_test: Array
    y_test: NDArray


def surface(X: Array) -> Array:
    """A draw from a Gaussian process with a Matérn kernel, as a sum of random waves.

    Some fifteen hills a side on the unit square, always the same ones.
    """
    rng = np.random.default_rng(0)
    # The kernel's spectral density is a Student t.
    normal = rng.standard_normal((2, WAVES))
    spread = np.sqrt(2 * SMOOTHNESS / rng.chisquare(2 * SMOOTHNESS, WAVES))
    frequencies = normal * spread / LENGTHSCALE
    phases = rng.uniform(0, 2 * np.pi, WAVES)
    return math.sqrt(2 / WAVES) * np.cos(X @ frequencies + phases).sum(axis=1)


def rough_surface(rows: int, test_rows: int) -> DemoData:
    """Noisy heights at normally distributed places, of which those in the unit square."""
    rng = np.random.default_rng(1)
    places = 0.5 + SPREAD * rng.standard_normal((2 * (rows + test_rows), 2))
    X = places[((places > 0) & (places < 1)).all(axis=1)][: rows + test_rows]
    y = surface(X) + NOISE * rng.standard_normal(len(X))
    return DemoData(X[:rows], y[:rows], X[rows:], y[rows:])


def digits(rows: int, test_rows: int) -> DemoData:
    """Handwritten digits as 64 brightnesses, 0 to 16."""
    from sklearn.datasets import load_digits

    return _shuffled(load_digits(), rows, test_rows)


def diabetes(rows: int) -> DemoData:
    """The progress of the disease of 442 patients within a year, and ten figures of each before.

    All that are not among the rows to fit are to judge by.
    """
    from sklearn.datasets import load_diabetes

    found: Any = load_diabetes(scaled=False)
    return _shuffled(found, rows, len(found.data) - rows)


def _shuffled(found: Any, rows: int, test_rows: int) -> DemoData:
    order = np.random.default_rng(2).permutation(len(found.data))[: rows + test_rows]
    X, y = found.data[order], found.target[order]
    return DemoData(X[:rows], y[:rows], X[rows:], y[rows:])
