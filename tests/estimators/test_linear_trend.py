"""Fits with a linear trend: where they have one, and that all answers know of it."""

import numpy as np
import pytest
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import LinearMean

from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError
from orthogp.estimators import near_rows
from orthogp.training import objectives

FAR = np.array([[300.0, 0.0], [-250.0, 0.5]])
# Lengthscales stay short, as a wave in the rows between would have them.
SETTINGS = {"random_state": 0, "train_hyperparameters": False}


def long_tailed(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A function that is linear in an input with a long tail, in units far from one."""
    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_t(2.5, n), rng.normal(size=n)]
    return X, 1000.0 + 50.0 * (2.0 * X[:, 0] + np.sin(X[:, 1]) + 0.1 * rng.normal(size=n))


X, Y = long_tailed(900)
AT_FAR = 1000.0 + 50.0 * (2.0 * FAR[:, 0] + np.sin(FAR[:, 1]))


@pytest.fixture(scope="module", params=["exact", "near", "learned noise"])
def fitted(request) -> OrthogonalGPRegressor:
    settings = {"noise": "learned" if request.param == "learned noise" else "constant"}
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "exact":
            for module in (objectives, near_rows):
                patch.setattr(module, "MOST_EXACT", {"cpu": 0})
            settings |= {"n_inducing": 30, "n_residual": 0, "n_neighbors": 40}
        return OrthogonalGPRegressor(**SETTINGS, **settings).fit(X[:700], Y[:700])


def test_far_rows_follow_it(fitted):
    assert isinstance(fitted.model_.mean, LinearMean)
    np.testing.assert_allclose(fitted.predict(FAR), AT_FAR, rtol=0.03)
    plain = OrthogonalGPRegressor(**SETTINGS, linear_trend=None).fit(X[:700], Y[:700])
    np.testing.assert_allclose(plain.predict(FAR), Y[:700].mean(), rtol=0.03)
    errors = [np.mean((gp.predict(X[700:]) - Y[700:]) ** 2) for gp in (fitted, plain)]
    assert errors[0] < 0.5 * errors[1]


def test_all_answers_know_of_it(fitted):
    mean, _, quantiles = fitted.predict_summary(FAR, [0.5])
    np.testing.assert_allclose(quantiles[:, 0], mean, rtol=1e-4)
    np.testing.assert_allclose(fitted.predict_latent(FAR)[0], mean)
    draws = fitted.sample_y(FAR, 400)
    error = draws.std(axis=1) / np.sqrt(400)
    assert np.all(np.abs(draws.mean(axis=1) - mean) < 5 * error)
    gradient, step = fitted.predict_gradient(FAR), np.array([0.01, 0.0])
    slope = (fitted.predict(FAR + step) - fitted.predict(FAR - step)) / 0.02
    np.testing.assert_allclose(gradient[:, 0], slope, rtol=1e-4)
    np.testing.assert_allclose(slope, 100.0, rtol=0.03)


def test_it_is_saved_with_the_model(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    loaded = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(loaded.predict(FAR), fitted.predict(FAR))


def test_rows_that_join_are_seen_above_it(fitted):
    found = fitted.condition_on(FAR, AT_FAR + 60.0)
    moved = found.predict(FAR) - fitted.predict(FAR)
    np.testing.assert_allclose(moved, AT_FAR + 60.0 - fitted.predict(FAR), rtol=0.2)
    np.testing.assert_allclose(found.predict(X[700:]), fitted.predict(X[700:]), rtol=1e-3)


def test_where_there_is_none():
    kernel = ScaleKernel(MaternKernel(nu=2.5))
    for settings, y in (({"kernel": kernel}, Y), ({}, np.c_[Y, Y]), ({"n_neighbors": 0}, Y)):
        gp = OrthogonalGPRegressor(**SETTINGS, **settings, max_steps=5).fit(X[:300], y[:300])
        assert not isinstance(gp.model_.mean, LinearMean)
    with pytest.raises(ConfigurationError, match="linear_trend is 'always'"):
        OrthogonalGPRegressor(linear_trend="always").fit(X[:30], Y[:30])
