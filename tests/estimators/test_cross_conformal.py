"""Coverage promised by folds: every row is scored by a fit without it, and none is held out."""

import numpy as np
import pandas as pd
import pytest

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError
from orthogp.estimators.conformal import FOLDS, cross_bounds, fold_rows, rank_of
from orthogp.estimators.setting_checks import seed_from

SMALL = {"random_state": 0, "device": "cpu", "max_steps": 30}
CROSS = {**SMALL, "coverage_guarantee": "cross"}


def made(rows: int, seed: int):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(rows, 1))
    # Noise that a Gaussian of one variance has wrong.
    noise = rng.standard_t(2, size=rows) * (0.1 + 0.3 * (X[:, 0] > 0))
    return X, np.sin(2 * X[:, 0]) + noise


@pytest.fixture(scope="module")
def fitted():
    return OrthogonalGPRegressor(**CROSS).fit(*made(99, 0))


def test_intervals_are_those_of_the_definition(fitted):
    """CV+ as its definition has it, with an estimator of one's own for every fold."""
    (X, y), new = made(99, 0), np.array([[-1.0], [0.3], [5.0]])
    folds, low, high = fold_rows(99, seed_from(0)), [], []
    for fold in range(FOLDS):
        others, rows = folds != fold, folds == fold
        own = OrthogonalGPRegressor(**{**SMALL, "random_state": seed_from(0)})
        own.fit(X[others], y[others])
        mean, std = own.predict(X[rows], return_std=True)
        scores = np.abs(y[rows] - mean) / std
        mean, std = own.predict(new, return_std=True)
        low += [mean - score * std for score in scores]
        high += [mean + score * std for score in scores]
    ends = fitted.predict_interval(new, 0.8)
    # ⌊100 · 0.2⌋ = 20 and ⌈100 · 0.8⌉ = 80.
    np.testing.assert_allclose(ends[0], np.sort(low, axis=0)[19], rtol=1e-6)
    np.testing.assert_allclose(ends[1], np.sort(high, axis=0)[79], rtol=1e-6)


def test_predictions_are_those_of_all_rows(fitted):
    X, y = made(99, 0)
    own = OrthogonalGPRegressor(**SMALL).fit(X, y)
    np.testing.assert_array_equal(fitted.predict(X), own.predict(X))
    np.testing.assert_array_equal(
        fitted.predict_interval(X, method="model"), own.predict_interval(X)
    )


def test_intervals_hold_their_share_of_new_rows(fitted):
    X, y = made(3000, 1)
    for coverage in (0.5, 0.8, 0.9):
        low, high = fitted.predict_interval(X, coverage)
        inside = np.mean((y >= low) & (y <= high))
        # Three standard errors of 99 scores.
        around = 3 * (coverage * (1 - coverage) / 99) ** 0.5
        assert inside == pytest.approx(coverage, abs=around)


def test_folds_with_the_mean_of_all_rows_are_the_rank_of_n_plus_one():
    """Where every fold has the same model, the bounds are those of split conformal."""
    scores = np.random.default_rng(0).exponential(size=99)
    low, high = cross_bounds(-scores[:, None], scores[:, None], 0.9)
    assert (-low[0], high[0]) == (np.sort(scores)[89], np.sort(scores)[89])
    assert rank_of(99, 0.9) == 90
    folds = fold_rows(103, 3)
    assert sorted(np.bincount(folds)) == [20, 20, 21, 21, 21]
    assert len(np.bincount(folds)) == FOLDS


def test_sets_of_classes_follow_the_definition(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=120), "b": rng.choice(["x", "y", None], 120)})
    angle = X["a"] + (X["b"] == "x") + 0.5 * rng.normal(size=120)
    labels = np.array(["low", "mid", "high"])[np.digitize(angle, [0, 1])]
    few = {"n_inducing": 8, "n_residual": 8, "max_steps": 5}
    gp = OrthogonalGPClassifier(**{**CROSS, **few}).fit(X, labels)
    found, cross = gp.predict_set(X[:20], 0.8), gp._fitted.scores
    own = [1 - estimator.predict_proba(X[:20]) for estimator in cross.estimators]
    above = sum((own[k] > r).astype(int) for k, r in zip(cross.folds, cross.scores, strict=True))
    # A set is never empty.
    best = np.eye(3, dtype=bool)[gp.predict_proba(X[:20]).argmax(axis=1)]
    np.testing.assert_array_equal(found, (above < rank_of(120, 0.8)) | best)
    gp.save(tmp_path / "m")
    again = OrthogonalGPClassifier.load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(again.predict_set(X[:20], 0.8), found)


def test_the_promise_is_saved_and_forgotten_by_more_rows(fitted, tmp_path):
    X = np.array([[0.0], [1.0]])
    fitted.save(tmp_path / "m")
    again = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    np.testing.assert_allclose(again.predict_interval(X), fitted.predict_interval(X))
    with pytest.raises(ConfigurationError, match="needs 999 rows"):
        again.predict_interval(X, 0.999)
    again.partial_fit(*made(20, 2))
    with pytest.raises(ConfigurationError, match="before fit"):
        again.predict_interval(X, method="conformal")


def test_other_words_are_refused():
    with pytest.raises(ConfigurationError, match="'split' or 'cross'"):
        OrthogonalGPRegressor(**SMALL, coverage_guarantee="both").fit(*made(60, 0))
