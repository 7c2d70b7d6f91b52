"""Promised coverage: the rank of the score, shares of new rows, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError
from orthogp.estimators.conformal import split_rows, threshold
from orthogp.estimators.setting_checks import seed_from

SMALL = {"random_state": 0, "device": "cpu", "max_steps": 30}
RNG = np.random.default_rng(0)


def made(rows: int, rng: np.random.Generator):
    X = rng.uniform(-2, 2, size=(rows, 1))
    # Noise that a Gaussian of one variance has wrong.
    noise = rng.standard_t(2, size=rows) * (0.1 + 0.3 * (X[:, 0] > 0))
    return X, np.sin(2 * X[:, 0]) + noise


def test_the_threshold_is_the_rank_of_n_plus_one():
    scores = np.arange(1.0, 100.0)
    assert threshold(scores, 0.9) == 90.0
    assert threshold(scores[::-1], 0.5) == 50.0
    with pytest.raises(ConfigurationError, match="needs 999 rows"):
        threshold(scores, 0.999)


def test_exchangeable_scores_are_covered_as_promised():
    rng, inside = np.random.default_rng(0), []
    for _ in range(4000):
        scores = rng.exponential(size=20)
        inside.append(scores[0] <= threshold(scores[1:], 0.8))
    # n = 19: the share is ⌈20 · 0.8⌉ / 20 exactly.
    assert np.mean(inside) == pytest.approx(0.8, abs=0.02)


@pytest.fixture(scope="module")
def fitted():
    X, y = made(600, RNG)
    return OrthogonalGPRegressor(**SMALL, coverage_guarantee=True).fit(X, y)


def test_intervals_hold_their_share_of_new_rows(fitted):
    X, y = made(4000, np.random.default_rng(1))
    assert len(fitted._fitted.scores) == 120
    for coverage in (0.5, 0.8, 0.9):
        low, high = fitted.predict_interval(X, coverage)
        # The share given the rows held out is Beta distributed about the promise.
        assert np.mean((y >= low) & (y <= high)) == pytest.approx(coverage, abs=0.11)
    own = fitted.predict_interval(X, 0.9, method="model")
    assert not np.array_equal(own[0], low)


def test_intervals_are_scaled_by_the_width_of_the_model(fitted):
    X = np.array([[0.0], [1.0], [9.0]])
    low, high = fitted.predict_interval(X, 0.8)
    mean, std = fitted.predict(X, return_std=True)
    factor = threshold(fitted._fitted.scores, 0.8)
    np.testing.assert_allclose(low, mean - factor * std)
    np.testing.assert_allclose(high, mean + factor * std)


def test_the_fit_has_not_seen_the_rows_that_are_scored():
    X, y = made(200, RNG)
    rows, scored = split_rows(200, seed_from(SMALL["random_state"]))
    gp = OrthogonalGPRegressor(**SMALL, coverage_guarantee=True).fit(X, y)
    own = OrthogonalGPRegressor(**SMALL).fit(X[rows], y[rows])
    np.testing.assert_array_equal(gp.predict(X), own.predict(X))
    mean, std = own.predict(X[scored], return_std=True)
    np.testing.assert_allclose(gp._fitted.scores, np.abs(y[scored] - mean) / std)


def test_a_transformed_target_keeps_its_sign():
    X, y = made(300, RNG)
    gp = OrthogonalGPRegressor(**SMALL, coverage_guarantee=True, target_transform="log")
    low, high = gp.fit(X, np.exp(y)).predict_interval(X, 0.9)
    assert (low > 0).all()
    inside = (np.exp(y) >= low) & (np.exp(y) <= high)
    assert inside.mean() > 0.8


def test_sets_hold_the_right_class():
    def classes(rows, rng):
        X = rng.normal(size=(rows, 2))
        angle = np.arctan2(X[:, 1], X[:, 0]) + 0.4 * rng.normal(size=rows)
        return pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}), np.digitize(angle, [-1, 1])

    X, y = classes(400, RNG)
    gp = OrthogonalGPClassifier(**SMALL, coverage_guarantee=True).fit(X, y)
    new, labels = classes(2000, np.random.default_rng(2))
    found = gp.predict_set(new, 0.9)
    assert found.shape == (2000, 3)
    assert found.any(axis=1).all()
    assert found[np.arange(2000), labels].mean() > 0.82
    assert found.sum(axis=1).mean() < gp.predict_set(new, 0.97).sum(axis=1).mean()


def test_the_promise_is_saved_and_forgotten_by_more_rows(fitted, tmp_path):
    X = np.array([[0.0], [1.0]])
    fitted.save(tmp_path / "m")
    again = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(again.predict_interval(X), fitted.predict_interval(X))
    again.partial_fit(*made(20, RNG))
    with pytest.raises(ConfigurationError, match="coverage_guarantee=True before fit"):
        again.predict_interval(X, method="conformal")


def test_what_cannot_be_promised_is_refused(fitted):
    X, y = made(60, RNG)
    with pytest.raises(ConfigurationError, match="coverage_guarantee=True before fit"):
        OrthogonalGPRegressor(**SMALL).fit(X, y).predict_interval(X, method="conformal")
    with pytest.raises(ConfigurationError, match="needs 99 rows"):
        OrthogonalGPRegressor(**SMALL, coverage_guarantee=True).fit(X, y).predict_interval(X, 0.99)
    with pytest.raises(ConfigurationError, match="expected 40"):
        OrthogonalGPRegressor(**SMALL, coverage_guarantee=True).fit(X[:30], y[:30])
    warm = OrthogonalGPRegressor(**SMALL, coverage_guarantee=True, warm_start=True).fit(X, y)
    with pytest.raises(ConfigurationError, match="from scratch"):
        warm.fit(X, y)
    with pytest.raises(ConfigurationError, match="in memory"):
        OrthogonalGPRegressor(**SMALL, coverage_guarantee=True).fit("t.parquet", "y")
    with pytest.raises(ConfigurationError, match="method"):
        fitted.predict_interval(X, method="bootstrap")


def test_rows_are_split_once_and_for_all():
    fit, scored = split_rows(100, 3)
    assert sorted([*fit, *scored]) == list(range(100))
    assert len(scored) == 20
    np.testing.assert_array_equal(split_rows(100, 3)[1], scored)
