"""The likelihood of the logarithm of a noise variance, against integrals on dense grids."""

import itertools

import numpy as np
import pytest
import torch

import reference_likelihoods as reference
from orthogp.errors import DataError
from orthogp.likelihoods.log_noise import LogNoise

ROWS = torch.tensor(
    list(itertools.product((0.0, 0.5, 9.0), (-2.0, 0.3, 3.0), (0.01, 0.5, 2.0))),
    dtype=torch.float64,
)
SQUARES, MEAN, VARIANCE = ROWS[:, 0], ROWS[:, 1][None], ROWS[:, 2][None]


def log_normal(square: float, g: np.ndarray) -> np.ndarray:
    return -0.5 * (np.log(2 * np.pi) + g + square * np.exp(-g))


def test_expected_log_prob_is_the_integral():
    found = LogNoise().expected_log_prob(SQUARES, MEAN, VARIANCE)
    truth = [reference.expected_log_prob(log_normal, *row) for row in ROWS.tolist()]
    np.testing.assert_allclose(found, truth, rtol=1e-7)


def test_log_density_is_the_integral():
    found = LogNoise().log_density(SQUARES, MEAN, VARIANCE)
    truth = [reference.log_density(log_normal, *row) for row in ROWS.tolist()]
    np.testing.assert_allclose(found, truth, rtol=1e-3, atol=1e-3)


def test_gradients_are_finite_differences_and_the_variance_never_helps():
    mean, variance = MEAN.clone().requires_grad_(), VARIANCE.clone().requires_grad_()
    value, step = LogNoise().expected_log_prob, 1e-6
    grads = torch.autograd.grad(value(SQUARES, mean, variance).sum(), [mean, variance])
    with torch.no_grad():
        by_mean = value(SQUARES, mean + step, variance) - value(SQUARES, mean - step, variance)
        by_variance = value(SQUARES, mean, variance + step) - value(SQUARES, mean, variance - step)
    for grad, difference in zip(grads, (by_mean, by_variance), strict=True):
        torch.testing.assert_close(grad[0], difference / (2 * step), rtol=1e-5, atol=1e-7)
    assert bool((grads[1] <= 0).all())


def test_outputs_add_up():
    mean, variance = MEAN.expand(2, -1), VARIANCE.expand(2, -1)
    both = LogNoise(2).expected_log_prob(torch.stack([SQUARES, SQUARES], 1), mean, variance)
    torch.testing.assert_close(both, 2 * LogNoise().expected_log_prob(SQUARES, MEAN, VARIANCE))


def test_squares_that_are_none_are_refused():
    with pytest.raises(DataError, match="negative; squares"):
        LogNoise().check_targets(-SQUARES)
    with pytest.raises(DataError, match="missing or infinite"):
        LogNoise().check_targets(SQUARES / 0.0)
