"""The classifier: labels of any kind, missing and rare classes, probabilities."""

import numpy as np
import pandas as pd
import pytest
from gpytorch.likelihoods import SoftmaxLikelihood
from sklearn.model_selection import cross_val_score

from orthogp import OrthogonalGPClassifier, OrthogpError
from orthogp.likelihoods import RobustMax, Softmax

SMALL = {"n_inducing": 20, "n_residual": 20, "max_steps": 60, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(200, 2))
TWO = np.where(np.sin(2 * X[:, 0]) + X[:, 1] > 0, "yes", "no")
THREE = np.digitize(X[:, 0] + 0.5 * X[:, 1], [-0.7, 0.7])


def small(**settings):
    return OrthogonalGPClassifier(**(SMALL | settings))


@pytest.fixture(scope="module")
def fitted():
    return small().fit(X, THREE)


def require_probabilities(p, shape):
    assert p.shape == shape
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)


def test_two_classes_by_name():
    clf = small().fit(X, TWO)
    assert clf.classes_.tolist() == ["no", "yes"]
    assert clf.score(X, TWO) > 0.85
    require_probabilities(clf.predict_proba(X), (200, 2))
    assert clf.predict_latent(X)[0].shape == (200,)
    # The latent is of the second class.
    assert np.array_equal(clf.predict_latent(X)[0] > 0, clf.predict(X) == "yes")


@pytest.mark.parametrize("likelihood", [None, "robustmax", SoftmaxLikelihood(3, 3), RobustMax(3)])
def test_three_classes(likelihood):
    clf = small(likelihood=likelihood).fit(X, THREE)
    robust = isinstance(likelihood, str | RobustMax)
    assert isinstance(clf.model_.likelihood, RobustMax if robust else Softmax)
    assert clf.score(X, THREE) > 0.8
    require_probabilities(clf.predict_proba(X), (200, 3))
    assert clf.predict_latent(X)[0].shape == (200, 3)


def test_log_density_is_of_the_label_that_came(fitted):
    robust = small(likelihood="robustmax").fit(X, THREE)
    # Robust-max's probabilities are normalised after their quadrature, its densities before.
    for clf, tolerance in ((fitted, 1e-4), (robust, 2e-2)):
        expected = np.log(clf.predict_proba(X)[np.arange(200), THREE])
        np.testing.assert_allclose(clf.log_density(X, THREE), expected, atol=tolerance)
    with pytest.raises(OrthogpError, match="not among"):
        fitted.log_density(X, THREE + 1)


@pytest.mark.parametrize(
    "labels",
    [
        THREE * 10 - 5,
        THREE - 0.0,
        np.array(["x", "yy", "zzz"])[THREE],
        np.array(["x", "yy", "zzz"], dtype=object)[THREE],
        pd.Series(THREE).map({0: "x", 1: "yy", 2: "zzz"}),
        pd.Categorical.from_codes(THREE, ["x", "yy", "zzz"]),
    ],
    ids=["whole numbers", "floats", "strings", "objects", "series", "categories"],
)
def test_labels_of_any_kind_give_the_same_model(labels, fitted):
    clf = small().fit(X, labels)
    np.testing.assert_array_equal(clf.predict_proba(X), fitted.predict_proba(X))
    assert np.array_equal(clf.predict(X), np.asarray(clf.classes_)[fitted.predict(X)])


def test_heavy_imbalance():
    rare = X[:, 0] > 1.9
    assert 2 <= rare.sum() <= 10
    clf = small().fit(X, rare)
    p = clf.predict_proba(X)[:, 1]
    require_probabilities(clf.predict_proba(X), (200, 2))
    assert p[rare].min() > p[~rare].mean()
    assert p[~rare].mean() < 0.1
    assert clf.predict(X).dtype == bool


def test_a_class_missing_from_the_first_rows():
    some = THREE < 2
    clf = small().partial_fit(X[some], THREE[some], classes=[0, 1, 2])
    require_probabilities(clf.predict_proba(X), (200, 3))
    clf.partial_fit(X, THREE)
    assert clf.score(X, THREE) > 0.8
    with pytest.raises(OrthogpError, match="not among"):
        clf.partial_fit(X, THREE + 1)


def test_a_class_missing_from_a_split():
    y = np.array(["a", "b"])[THREE // 2]
    y[:2] = "c"
    with pytest.warns(UserWarning, match="least populated"):
        scores = cross_val_score(small(max_steps=20), X, y, cv=3)
    assert np.isfinite(scores).all()


def test_weights_count():
    """Two opinions on every row: the heavier one wins."""
    y = np.repeat(["a", "b"], 200)
    weight = np.where((np.tile(X[:, 0], 2) > 0) == (y == "a"), 3.0, 0.5)
    clf = small().fit(np.tile(X, (2, 1)), y, sample_weight=weight)
    assert np.mean((clf.predict(X) == "a") == (X[:, 0] > 0)) > 0.95


def test_rows_are_held_out_only_to_stop_early():
    steps = [row["held_out"] for row in small(max_steps=5).fit(X, TWO).history_]
    assert steps == [None]
    stopping = small(max_steps=5, early_stopping=True, n_neighbors=0).fit(X, TWO)
    assert stopping.history_[0]["held_out"] < 0


def test_a_small_table_is_calibrated_by_rows_without_their_own_sites():
    """Labels without noise: a posterior that was learned from few rows is less sure than it may."""
    new = np.random.default_rng(1).uniform(-2, 2, size=(500, 2))
    truth = np.where(np.sin(2 * new[:, 0]) + new[:, 1] > 0, "yes", "no")
    calibrated, plain = (small(validation_fraction=f).fit(X, TWO) for f in (0.1, None))
    assert calibrated.log_density(new, truth).mean() > plain.log_density(new, truth).mean() + 0.02
    # Rows held out would be too few: the model is the same.
    np.testing.assert_array_equal(
        *(gp.model_.basis.a_gamma.detach().numpy() for gp in (calibrated, plain))
    )
