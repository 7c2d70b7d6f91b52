"""Transforms of the target: formulas against SciPy, and answers that are in the units of y."""

import numpy as np
import pytest
from scipy import integrate, stats

from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, DataError, FileError
from orthogp.estimators.target_transform import TargetTransform, learn_transform, moments

SMALL = {"random_state": 0, "device": "cpu", "max_steps": 30}
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(240, 1))
Y = np.exp(np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=240))
EXPONENTS = [0.0, 0.3, 1.0, 1.6, 2.0]


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_yeo_johnson_is_that_of_scipy(exponent):
    y = np.linspace(-6, 8, 57)
    transform = TargetTransform("yeo-johnson", 2.0, exponent)
    z = transform.forward(y)
    np.testing.assert_allclose(z, stats.yeojohnson(y / 2.0, lmbda=exponent), atol=1e-12)
    np.testing.assert_allclose(transform.inverse(z), y, atol=1e-9)
    step = 1e-6
    slope = (transform.forward(y + step) - transform.forward(y - step)) / (2 * step)
    np.testing.assert_allclose(transform.log_slope(y), np.log(slope), atol=1e-5)


def test_the_moments_of_a_log_are_those_of_a_lognormal():
    mean, std = np.array([0.0, 1.0]), np.array([0.3, 0.7])
    found = moments(TargetTransform("log", 1.0, 0.0), mean, std)
    expected = stats.lognorm(s=std, scale=np.exp(mean))
    np.testing.assert_allclose(found[0], expected.mean(), rtol=1e-8)
    np.testing.assert_allclose(found[1], expected.std(), rtol=1e-6)


def test_a_gaussian_sample_is_left_as_it_is():
    y = np.random.default_rng(1).normal(size=5000)
    found = learn_transform("yeo-johnson", y, None)
    assert found.exponent == pytest.approx(1.0, abs=0.1)
    assert found.mean_log_slope == pytest.approx(found.log_slope(y).mean())


@pytest.fixture(scope="module")
def fitted():
    return OrthogonalGPRegressor(**SMALL, target_transform="log").fit(X, Y)


def test_it_is_the_fit_to_the_logarithm_in_other_units(fitted):
    plain = OrthogonalGPRegressor(**SMALL).fit(X, np.log(Y))
    quantiles = plain.predict_quantiles(X, [0.1, 0.5, 0.9])
    np.testing.assert_allclose(fitted.predict_quantiles(X, [0.1, 0.5, 0.9]), np.exp(quantiles))
    density = plain.log_density(X, np.log(Y)) - np.log(Y)
    np.testing.assert_allclose(fitted.log_density(X, Y), density)
    mean, std = plain.predict(X, return_std=True)
    np.testing.assert_allclose(fitted.predict(X), np.exp(mean + std**2 / 2), rtol=1e-6)
    np.testing.assert_allclose(fitted.predict_latent(X), plain.predict_latent(X))
    assert fitted.elbo_ == pytest.approx(plain.elbo_ - np.log(Y).sum(), rel=1e-9)
    assert (fitted.sample_y(X[:5], 20) > 0).all()
    assert fitted.target_transform_ == "log"


@pytest.mark.parametrize("kind", ["log", "yeo-johnson"])
def test_the_density_of_y_integrates_to_one(kind):
    gp = OrthogonalGPRegressor(**SMALL, target_transform=kind).fit(X, Y)
    point = np.array([[0.4]])
    grid = np.linspace(-5 if kind == "yeo-johnson" else 1e-4, 40, 20001)
    density = np.exp(gp.log_density(np.repeat(point, len(grid), axis=0), grid))
    assert integrate.trapezoid(density, grid) == pytest.approx(1.0, abs=2e-3)


def test_what_cannot_be_has_no_density(fitted):
    assert fitted.log_density(X[:2], np.array([-1.0, 1.0]))[0] == -np.inf


def test_it_is_saved(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    again = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(again.log_density(X, Y), fitted.log_density(X, Y))
    good = TargetTransform("log", 1.0, 0.0).as_json()
    assert TargetTransform.from_json(good) == TargetTransform("log", 1.0, 0.0)
    for wrong in ({"kind": "exp"}, {"unit": 0.0}, {"exponent": 3.0}, {"unit": float("nan")}):
        with pytest.raises(FileError):
            TargetTransform.from_json(good | wrong)


def test_auto_takes_a_transform_where_it_gains_and_none_where_not():
    skewed = OrthogonalGPRegressor(**SMALL, target_transform="auto").fit(X, Y)
    assert skewed.target_transform_ != "none"
    plain = OrthogonalGPRegressor(**SMALL).fit(X, Y)
    new = RNG.uniform(-2, 2, size=(200, 1))
    y = np.exp(np.sin(2 * new[:, 0]) + 0.3 * RNG.normal(size=200))
    assert skewed.log_density(new, y).mean() > plain.log_density(new, y).mean() + 0.05
    symmetric = OrthogonalGPRegressor(**SMALL, target_transform="auto").fit(X, np.log(Y))
    assert symmetric.target_transform_ == "none"
    # Skewed by its function, with noise that is the same everywhere: a logarithm would not help.
    rare = (X[:, 0] > 1.6) * 5.0 + 0.1 * RNG.normal(size=240)
    assert stats.skew(rare) > 1
    gp = OrthogonalGPRegressor(**SMALL, target_transform="auto").fit(X, rare)
    assert gp.target_transform_ == "none"


def test_what_does_not_go_is_said(fitted, tmp_path):
    with pytest.raises(DataError, match="not positive"):
        OrthogonalGPRegressor(**SMALL, target_transform="log").fit(X, Y - 2)
    with pytest.raises(ConfigurationError, match="target_transform is 'cube'"):
        OrthogonalGPRegressor(**SMALL, target_transform="cube").fit(X, Y)
    with pytest.raises(ConfigurationError, match="one target"):
        OrthogonalGPRegressor(**SMALL, target_transform="log").fit(X, np.stack([Y, Y], 1))
    with pytest.raises(ConfigurationError, match="target_transform"):
        fitted.predict(X, return_cov=True)
    with pytest.raises(ConfigurationError, match="target_transform"):
        fitted.export_onnx(tmp_path / "m.onnx")
