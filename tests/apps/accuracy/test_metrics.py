"""Metrics of predictive distributions, against closed forms."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from orthogp.apps.accuracy.metrics import INTERVAL_LEVELS, crps, predictive_metrics
from orthogp.apps.accuracy.predictive import (
    FunctionsPredictive,
    GaussianPredictive,
    HeldOutPredictive,
)

LEVELS = (0.05, 0.5, 0.95)


def gaussian_crps(y, mean, deviation):
    """σ (z (2 Φ(z) − 1) + 2 φ(z) − 1/√π)."""
    z = (y - mean) / deviation
    return deviation * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))


def test_the_crps_of_a_gaussian() -> None:
    rng = np.random.default_rng(0)
    mean, deviation = rng.standard_normal(500), rng.uniform(0.2, 2.0, 500)
    y = mean + 1.5 * deviation * rng.standard_normal(500)
    found = crps(GaussianPredictive(mean, deviation), y)
    assert found == pytest.approx(gaussian_crps(y, mean, deviation).mean(), rel=2e-3)


def test_the_crps_of_a_certain_prediction_is_the_absolute_error(monkeypatch) -> None:
    """Also where the rows come in several chunks."""
    monkeypatch.setattr("orthogp.apps.accuracy.metrics.CHUNK_ROWS", 7)
    y = np.linspace(-1, 2, 30)
    certain = GaussianPredictive(np.zeros(30), np.zeros(30))
    assert crps(certain, y) == pytest.approx(np.abs(y).mean())


def test_a_gaussian_by_its_own_formulas() -> None:
    y, mean, deviation = np.array([0.0, 3.0]), np.array([0.5, 0.0]), np.array([1.0, 1.5])
    found = predictive_metrics(GaussianPredictive(mean, deviation), y)
    assert found["rmse"] == pytest.approx(math.sqrt((0.25 + 9) / 2))
    assert found["log_likelihood"] == pytest.approx(
        np.mean([-0.5 * math.log(2 * math.pi) - 0.125, -0.5 * math.log(2 * math.pi * 2.25) - 2.0])
    )
    assert found["width"] == pytest.approx(2 * 1.6448536 * 1.25)
    # The second lies two deviations away.
    assert found["coverage"] == 50.0


def test_held_out_residuals_give_width_and_conformal_quantiles() -> None:
    residuals = np.random.default_rng(1).permutation(np.arange(1.0, 20.0)) - 10.0
    found = HeldOutPredictive(np.array([100.0, 0.0]), residuals)
    # Of 19 the ⌊20 · 0.05⌋ = 1st, the 10th and the ⌈20 · 0.95⌉ = 19th.
    np.testing.assert_allclose(found.quantiles(LEVELS), [[91, 100, 109], [-9, 0, 9]])
    deviation = math.sqrt(np.mean(residuals**2))
    y = np.array([101.0, -2.0])
    np.testing.assert_allclose(found.log_density(y), norm.logpdf([1.0, -2.0], 0.0, deviation))
    # Beyond what so few residuals can say, the outermost.
    assert found.quantiles([0.001])[1] == -9


def test_conformal_intervals_cover_what_they_promise() -> None:
    """On average over draws of the residuals, for a distribution that is not Gaussian."""
    rng = np.random.default_rng(2)
    covered = []
    for _ in range(300):
        residuals, y = rng.exponential(size=39), rng.exponential(size=200)
        low, high = HeldOutPredictive(np.zeros(200), residuals).quantiles(INTERVAL_LEVELS).T
        covered.append(np.mean((low <= y) & (y <= high)))
    # Between two of 40 equally likely places, 2 and 38: exactly 36 of 40.
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)


def test_a_librarys_own_functions_are_taken_as_they_are() -> None:
    found = FunctionsPredictive(
        np.zeros(3), lambda y: -np.abs(y), lambda levels: np.tile(norm.ppf(levels), (3, 1))
    )
    metrics = predictive_metrics(found, np.array([1.0, -1.0, 4.0]))
    assert metrics["log_likelihood"] == -2.0
    assert metrics["coverage"] == pytest.approx(200 / 3)
