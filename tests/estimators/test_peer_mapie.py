"""Promised intervals beside those of MAPIE around a random forest, on the same rows."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from orthogp import OrthogonalGPRegressor
from orthogp.estimators.conformal import split_rows
from orthogp.estimators.setting_checks import seed_from

pytestmark = pytest.mark.peer
COVERAGE = 0.9
SMALL = {"random_state": 0, "device": "cpu", "max_steps": 30}


def made(rows: int, seed: int):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(rows, 2))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.normal(size=rows)


@pytest.fixture(scope="module")
def peers():
    return pytest.importorskip("mapie.regression", reason="needs mapie")


def around(scored: int) -> float:
    """Three standard deviations of the share that one fit with so many scored rows attains."""
    return 3 * (COVERAGE * (1 - COVERAGE) / scored) ** 0.5


def judged(low, high, y):
    return np.mean((y >= low) & (y <= high)), np.mean(high - low)


def test_split_intervals_cover_as_much_and_are_not_wider(peers):
    """The same rows are fitted to and scored by both."""
    (X, y), (new, y_new) = made(250, 0), made(3000, 1)
    gp = OrthogonalGPRegressor(**SMALL, coverage_guarantee=True).fit(X, y)
    rows, scored = split_rows(250, seed_from(0))
    forest = RandomForestRegressor(n_estimators=30, random_state=0).fit(X[rows], y[rows])
    peer = peers.SplitConformalRegressor(forest, COVERAGE, prefit=True)
    _, ends = peer.conformalize(X[scored], y[scored]).predict_interval(new)
    own = judged(*gp.predict_interval(new, COVERAGE), y_new)
    theirs = judged(ends[:, 0, 0], ends[:, 1, 0], y_new)
    assert own[0] == pytest.approx(COVERAGE, abs=around(50))
    assert theirs[0] == pytest.approx(COVERAGE, abs=around(50))
    assert own[1] <= theirs[1]


def test_cross_intervals_cover_as_much_and_are_not_wider(peers):
    (X, y), (new, y_new) = made(100, 0), made(3000, 1)
    forest = RandomForestRegressor(n_estimators=20, min_samples_leaf=5, random_state=0)
    peer = peers.CrossConformalRegressor(forest, COVERAGE, cv=5, method="plus")
    _, ends = peer.fit_conformalize(X, y).predict_interval(new)
    gp = OrthogonalGPRegressor(**SMALL, coverage_guarantee="cross").fit(X, y)
    own = judged(*gp.predict_interval(new, COVERAGE), y_new)
    theirs = judged(ends[:, 0, 0], ends[:, 1, 0], y_new)
    assert own[0] == pytest.approx(COVERAGE, abs=around(100))
    assert own[1] <= theirs[1]
