"""Skewed inputs as normal scores: the map, and the fits that take it."""

import numpy as np
import pytest
from scipy import stats

from orthogp import OrthogonalGPClassifier
from orthogp.estimators import near_rows
from orthogp.estimators.scaling import mapped
from orthogp.estimators.score_map import score_map
from orthogp.training import input_map, map_search, sites

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(800, 3))
# The second column spans decades.
X = np.column_stack([NORMAL[:, 0], np.exp(3.0 * NORMAL[:, 1]), NORMAL[:, 2]])
Y = np.sin(4.0 * NORMAL[:, 1]) > 0.0
QUICK = {"n_inducing": 20, "n_residual": 20, "max_steps": 40, "random_state": 0}
QUICK |= {"validation_fraction": 0.25}


@pytest.fixture(autouse=True)
def without_learned_maps(monkeypatch):
    monkeypatch.setattr(near_rows, "FEWEST_MAPPED", 100)
    monkeypatch.setattr(map_search, "STEPS", 20)
    for name, value in {"MAP_STEPS": 2, "MAP_ROUNDS": 1, "ERRORS": 1e9}.items():
        monkeypatch.setattr(input_map, name, value)
    monkeypatch.setattr(input_map, "learn_additive_curves", lambda *given: None)
    for name in ("SCALE_STEPS", "STEPS"):
        monkeypatch.setattr(sites, name, 10)


def test_skewed_columns_are_scores_and_others_as_they_are():
    linear_map, ramps = score_map(X)
    z = mapped(X, linear_map, ramps)
    np.testing.assert_array_equal(z[:, [0, 2]], X[:, [0, 2]])
    scores = stats.norm.ppf((stats.rankdata(X[:, 1]) - 0.5) / len(X))
    np.testing.assert_allclose(z[:, 1] - z[:, 1].mean(), scores - scores.mean(), atol=0.1)
    # Beyond the values that there were a score goes on as it is.
    far = mapped(np.array([[0.0, 1e9, 0.0]]), linear_map, ramps)
    assert far[0, 1] == pytest.approx(z[:, 1].max())


def test_several_skewed_columns():
    both = np.column_stack([X[:, 1], X[:, 0], X[:, 1] ** 2])
    z = mapped(both, *score_map(both))
    alone = mapped(X, *score_map(X))
    np.testing.assert_allclose(z[:, 0], alone[:, 1])
    np.testing.assert_array_equal(z[:, 1], X[:, 0])
    # A monotone function of a column has its scores.
    between = z[:, 2] - z[:, 0]
    np.testing.assert_allclose(between, between.mean(), atol=0.05)


def test_no_map_where_no_column_is_skewed():
    assert score_map(NORMAL) is None


@pytest.mark.parametrize(
    ("settings", "taken"), [({}, True), ({"input_transform": None}, False)], ids=str
)
def test_a_fit_takes_scores_where_held_out_rows_gain(settings, taken):
    gp = OrthogonalGPClassifier(**QUICK, **settings).fit(X[:600], Y[:600])
    ramps = gp._fitted.units.inputs.ramps
    assert (ramps is not None) == taken
    if ramps is not None:
        assert set(ramps.source) == {1}
        assert gp.score(X[600:], Y[600:]) > 0.8


def test_scores_without_a_gain_are_not_taken():
    noise = RNG.random(600) > 0.5
    gp = OrthogonalGPClassifier(**QUICK).fit(X[:600], noise)
    assert gp._fitted.units.inputs.linear_map is None
