"""A linear trend: the regression, how it is judged, and when it is taken."""

import gpytorch
import numpy as np
import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.posterior.observations import Observations
from orthogp.training.linear_trend import (
    FOLDS,
    PENALTIES,
    fit_trends,
    gain_of_second,
    learn_trend,
    left_out_errors,
)


def regression(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(2.0, [1.0, 5.0, 0.1], (n, 3))
    y = x @ [1.0, -0.3, 2.0] + rng.normal(size=n)
    return x, y, rng.uniform(0.5, 2.0, n), rng.permutation(n) % FOLDS


def ridge(x, y, weight, center, scale, penalty):
    """By least squares with a row more for every weight."""
    rows = np.sqrt(weight)[:, None] * np.c_[(x - center) / scale, np.ones(len(x))]
    more = np.c_[np.sqrt(penalty) * np.eye(x.shape[1]), np.zeros(x.shape[1])]
    target = np.r_[np.sqrt(weight) * y, np.zeros(x.shape[1])]
    w = np.linalg.lstsq(np.r_[rows, more], target)[0]
    return lambda z: np.c_[(z - center) / scale, np.ones(len(z))] @ w


def test_it_is_the_ridge_regression_that_predicts_other_folds_best():
    x, y, weight, fold = regression()
    center, scale = x.mean(axis=0), x.std(axis=0)
    losses = []
    for penalty in PENALTIES:
        parts = [(fold == k, fold != k) for k in range(FOLDS)]
        losses.append(
            sum(
                (weight[own] * (y[own] - ridge(x[other], y[other], weight[other], center, scale,
                                               penalty)(x[own])) ** 2).sum()
                for own, other in parts
            )
        )  # fmt: skip
    best = PENALTIES[np.argmin(losses)]
    assert PENALTIES[0] < best < PENALTIES[-1]
    trend, of_others = fit_trends(x, y, weight, fold)
    np.testing.assert_allclose(trend(x), ridge(x, y, weight, center, scale, best)(x))
    for k, found in enumerate(of_others):
        other = fold != k
        expected = ridge(x[other], y[other], weight[other], center, scale, best)
        np.testing.assert_allclose(found(x), expected(x))
    mean = trend.mean()(torch.from_numpy(x))
    np.testing.assert_allclose(mean.numpy(), trend(x))


def test_a_constant_input_has_no_weight():
    x, y, weight, fold = regression()
    x[:, 1] = 0.1
    # By rounding its mean is another number.
    assert x[:, 1].std() > 0
    trend, _ = fit_trends(x, y, weight, fold)
    assert abs(trend.weights[1]) < 1e-8
    assert np.isfinite(trend(x)).all()


def test_a_row_has_no_part_in_its_own_errors():
    """The trend and the rows near it are of others: each error is y less what they predict."""
    x, y, weight, fold = regression()
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 2.0
    noise = torch.from_numpy(0.1 / weight)[None]
    _, trends = fit_trends(x, y, weight, fold)
    ys = np.stack([y, *(y - t(x) for t in trends)])
    targets = Observations(torch.from_numpy(x), torch.from_numpy(ys), noise)
    chosen = torch.tensor([3, 41])
    with torch.no_grad():
        errors, variance = left_out_errors(Covariance(kernel), targets, chosen, fold)
        K = kernel(targets.x).to_dense().numpy()
    for i, row in enumerate(chosen.tolist()):
        other = np.arange(len(x)) != row
        weights = np.linalg.solve(K[other][:, other] + np.diag(noise[0, other]), K[other, row])
        less = trends[fold[row]](x)
        np.testing.assert_allclose(errors[0, i], y[row] - weights @ y[other])
        np.testing.assert_allclose(errors[1, i], (y - less)[row] - weights @ (y - less)[other])
        expected = K[row, row] - weights @ K[other, row] + noise[0, row].item()
        np.testing.assert_allclose(variance[i], expected)


def test_the_gain_and_its_error_by_leaving_rows_out():
    rng = np.random.default_rng(0)
    errors, variance = rng.normal(size=(2, 12)) * [[2.0], [1.0]], rng.uniform(0.5, 2.0, 12)

    def gain(errors, variance):
        own = [-0.5 * (np.log(2 * np.pi * variance) + e**2 / variance) for e in errors]
        alike = []
        for e in errors:
            one = np.mean(e**2)
            alike.append(-0.5 * (np.log(2 * np.pi * one) + e**2 / one).mean())
        return 0.5 * (np.mean(own[1] - own[0]) + alike[1] - alike[0])

    without = [gain(np.delete(errors, i, 1), np.delete(variance, i)) for i in range(12)]
    expected = np.sqrt(11 / 12 * np.sum((without - np.mean(without)) ** 2))
    np.testing.assert_allclose(gain_of_second(errors, variance), (gain(errors, variance), expected))
    assert np.isfinite(gain_of_second(np.zeros((2, 12)), variance)).all()


def table(linear: bool, n=1000):
    """A target that is linear, or a wave, in an input with a long tail."""
    rng = np.random.default_rng(0)
    x = np.c_[rng.standard_t(2.5, n), rng.normal(size=n)]
    f = x[:, 0] if linear else np.sin(x[:, 0])
    y = f + 0.1 * rng.normal(size=n)
    noise = torch.full((1, n), 0.01, dtype=torch.float64)
    return Observations(torch.from_numpy(x), torch.from_numpy(y)[None], noise)


def taken(rows, lengthscale=1.0, variance=1.0):
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale, variance
    return learn_trend(Covariance(kernel), rows, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("linear", [True, False])
def test_it_is_taken_where_far_rows_are_on_a_line(linear):
    found = taken(table(linear))
    assert (found is not None) == linear
    if found is not None:
        np.testing.assert_allclose(found(np.array([[50.0, 0.0]])), 50.0, rtol=0.02)


def test_it_is_not_taken_where_the_kernel_does_as_well():
    assert taken(table(linear=True), lengthscale=200.0, variance=4e4) is None


def test_few_rows_and_several_targets_have_none():
    rows = table(linear=True)
    some = Observations(rows.x[:150], rows.y[:, :150], rows.noise[:, :150])
    assert taken(some) is None
    assert taken(Observations(rows.x, rows.y.repeat(2, 1), rows.noise)) is None
