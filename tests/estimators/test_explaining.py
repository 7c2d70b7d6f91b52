"""Contributions of columns: they add up, and are those of every order where there are few."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from sklearn.inspection import partial_dependence

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError
from orthogp.estimators.explaining import shapley_values

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=150),
        "idle": RNG.normal(size=150),
        "kind": RNG.choice(["x", "y", "z"], 150),
        "same": 1.0,
    }
)
Y = FRAME["a"].to_numpy() + 2.0 * (FRAME["kind"] == "x").to_numpy()
SMALL = {"random_state": 0, "device": "cpu", "max_steps": 60}


@pytest.fixture(scope="module")
def regressor():
    return OrthogonalGPRegressor(**SMALL).fit(FRAME, Y)


def function(x):
    return x[:, 0] * x[:, 1] + np.sin(x[:, 2]) * x[:, 0]


def test_many_samples_come_to_the_values_by_definition():
    x, b = np.array([[1.0, 2.0, 0.5]]), np.array([0.3, -1.0, 0.2])
    expected = np.zeros(3)
    for order in permutations(range(3)):
        mixed = b.copy()
        for j in order:
            before = function(mixed[None])[0]
            mixed[j] = x[0, j]
            expected[j] += (function(mixed[None])[0] - before) / 6
    parts = [np.array([j]) for j in range(3)]
    background = np.repeat(b[None], 400, axis=0)
    values, base = shapley_values(function, x, background, parts, np.random.default_rng(0))
    np.testing.assert_allclose(values[0], expected, atol=0.05)
    assert base == pytest.approx(function(b[None])[0])


def test_an_additive_function_has_its_summands():
    x = RNG.normal(size=(4, 3))
    background = RNG.normal(size=(6, 3))
    values, _ = shapley_values(
        lambda z: 2 * z[:, 0] + z[:, 1] ** 2, x, background, [np.array([0]), np.array([1, 2])], RNG
    )
    np.testing.assert_allclose(values[:, 0], 2 * (x[:, 0] - background[:, 0].mean()))
    np.testing.assert_allclose(values[:, 1], x[:, 1] ** 2 - (background[:, 1] ** 2).mean())


def test_contributions_add_up_to_the_prediction(regressor):
    found = regressor.explain(FRAME[:7], n_samples=4)
    assert found.columns == tuple(FRAME.columns)
    assert found.values.shape == (7, 4)
    np.testing.assert_allclose(found.base + found.values.sum(1), regressor.predict(FRAME[:7]))
    assert not found.values[:, 3].any()
    again = regressor.explain(FRAME[:7], n_samples=4)
    np.testing.assert_array_equal(again.values, found.values)
    given = regressor.explain(FRAME[:7], background=FRAME[:1])
    np.testing.assert_allclose(given.base, regressor.predict(FRAME[:1])[0])
    np.testing.assert_allclose(given.values[0], 0.0, atol=1e-9)


def test_what_matters_contributes_and_is_relevant(regressor):
    shares = np.abs(regressor.explain(FRAME[:30], n_samples=8).values).mean(0)
    assert shares[1] < 0.2 * min(shares[0], shares[2])
    assert set(regressor.relevance_) == {"a", "idle", "kind"}
    assert list(regressor.relevance_)[-1] == "idle"


def test_classes_have_a_contribution_each():
    gp = OrthogonalGPClassifier(**SMALL).fit(FRAME, np.digitize(Y, [0, 1.5]))
    found = gp.explain(FRAME[:5], n_samples=3)
    assert found.values.shape == (5, 4, 3)
    np.testing.assert_allclose(
        found.base + found.values.sum(1), gp.predict_proba(FRAME[:5]), atol=1e-9
    )


def test_partial_dependence_is_that_of_scikit_learn(regressor):
    numbers = partial_dependence(regressor, FRAME, ["a"], grid_resolution=5)
    assert np.all(np.diff(numbers["average"][0]) > 0)
    kinds = partial_dependence(regressor, FRAME, ["kind"], categorical_features=["kind"])
    assert kinds["grid_values"][0].tolist() == ["x", "y", "z"]
    assert kinds["average"][0].argmax() == 0


def test_a_wrong_number_of_samples_is_refused(regressor):
    with pytest.raises(ConfigurationError, match="n_samples"):
        regressor.explain(FRAME, n_samples=0)
