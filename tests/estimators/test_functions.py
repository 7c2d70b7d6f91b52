"""Functions and gradients in the units of the user."""

import numpy as np
import pandas as pd
import pytest

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError
from orthogp.estimators import near_rows
from orthogp.training import objectives, predictive

RNG = np.random.default_rng(0)
X = RNG.uniform(-3.0, 3.0, size=(80, 3)) * [1.0, 100.0, 1.0] + [5.0, 0.0, 0.0]
F = 50.0 + 7.0 * np.sin(X[:, 0]) + 0.02 * X[:, 1]
Y = F + 0.3 * RNG.normal(size=len(X))
NEW = X[:6] + 0.1
DRAWS = 400


@pytest.fixture(scope="module", params=["exact", "near", "two targets", "steps"])
def gp(request):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EVIDENCE_STEPS", "PATCH_STEPS", "LEAVE_ONE_OUT_STEPS"):
            patch.setattr(predictive, name, 60)
        if request.param == "near":
            for part in (near_rows, objectives):
                patch.setattr(part, "MOST_EXACT", {"cpu": 0})
        settings = {"random_state": 0, "device": "cpu", "n_inducing": 10, "dtype": "float64"}
        if request.param == "steps":
            settings |= {"likelihood": "laplace", "max_steps": 50, "n_residual": 10}
        else:
            settings |= {"n_neighbors": 15}
        y = np.stack([Y, -2.0 * Y], 1) if request.param == "two targets" else Y
        return OrthogonalGPRegressor(**settings).fit(X, y)


def test_functions_have_the_moments_of_the_latents(gp):
    functions = gp.sample_functions(DRAWS, random_state=1)
    assert len(functions) == DRAWS
    draws, (mean, std) = functions(NEW), gp.predict_latent(NEW)
    assert draws.shape == (*mean.shape, DRAWS)
    assert np.abs((draws.mean(-1) - mean) / std).max() < 5.0 / np.sqrt(DRAWS)
    np.testing.assert_allclose(draws.std(-1), std, rtol=6.0 / np.sqrt(2 * DRAWS))


def test_two_calls_see_the_same_functions(gp):
    functions = gp.sample_functions(3)
    whole = functions(NEW)
    np.testing.assert_allclose(functions(NEW[2:3]), whole[2:3], rtol=1e-7)
    np.testing.assert_array_equal(gp.sample_functions(3)(NEW), whole)
    assert np.abs(gp.sample_functions(3, random_state=1)(NEW) - whole).max() > 1e-3


def test_the_gradient_is_that_of_the_mean(gp):
    gradient = gp.predict_gradient(NEW)
    assert gradient.shape == (*gp.predict(NEW).shape, 3)
    for d, step in enumerate((1e-4, 1e-2, 1e-4)):
        moved = np.zeros(3)
        moved[d] = step
        up, down = (gp.predict_latent(NEW + sign * moved)[0] for sign in (1.0, -1.0))
        np.testing.assert_allclose(gradient[..., d], (up - down) / (2 * step), rtol=1e-2, atol=1e-2)


def test_the_standard_deviation_is_that_of_the_gradients_of_functions(gp):
    """Of differences between points so close that the function is straight between them."""
    functions = gp.sample_functions(DRAWS)
    std = gp.predict_gradient(NEW, return_std=True)[1]
    for d, step in enumerate((1e-3, 1e-1, 1e-3)):
        moved = np.zeros(3)
        moved[d] = step
        slopes = (functions(NEW + moved) - functions(NEW - moved)) / (2 * step)
        found = slopes.std(-1)
        np.testing.assert_allclose(found, std[..., d], rtol=6.0 / np.sqrt(2 * DRAWS), atol=1e-3)


def test_a_table_with_categories_has_functions_and_no_gradient():
    table = pd.DataFrame({"a": X[:, 0], "kind": np.where(X[:, 1] > X[:, 1].mean(), "high", "low")})
    gp = OrthogonalGPRegressor(random_state=0, device="cpu", max_steps=5).fit(table, Y)
    assert gp.sample_functions(2)(table[:4]).shape == (4, 2)
    with pytest.raises(ConfigurationError, match="numbers"):
        gp.predict_gradient(table[:4])


def test_names_and_numbers_are_checked():
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    gp = OrthogonalGPRegressor(random_state=0, device="cpu", max_steps=5).fit(table, Y)
    functions = gp.sample_functions(2)
    with pytest.raises(ValueError, match="names"):
        functions(table[["b", "a", "c"]])
    with pytest.raises(ConfigurationError, match="n_samples"):
        gp.sample_functions(0)


def test_functions_of_a_classifier_are_its_latents():
    classifier = OrthogonalGPClassifier(max_steps=20, random_state=0, device="cpu").fit(X, Y > 50.0)
    draws = classifier.sample_functions(DRAWS)(NEW)
    mean, std = classifier.predict_latent(NEW)
    assert draws.shape == (len(NEW), DRAWS)
    assert np.abs((draws.mean(-1) - mean) / std).max() < 5.0 / np.sqrt(DRAWS)
    np.testing.assert_allclose(draws.std(-1), std, rtol=7.0 / np.sqrt(2 * DRAWS))
