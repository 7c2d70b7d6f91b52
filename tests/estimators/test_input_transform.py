"""Skewed columns are transformed where left-out rows gain, and only there."""

import numpy as np
import pandas as pd
import pytest
import torch

from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError
from orthogp.estimators.input_transform import choose_gap_indicators, judge, left_out
from orthogp.model import default_kernel
from orthogp.tables import number_plan, without_gap_indicators
from orthogp.training.hyperparameters import Hyperparameters

SMALL = {"random_state": 0, "device": "cpu", "max_steps": 20}


def made(rows: int, of_log: bool):
    rng = np.random.default_rng(0)
    wide, noise = np.exp(2 * rng.normal(size=rows)), 0.1 * rng.normal(size=rows)
    y = np.sin(2 * np.log(wide)) if of_log else wide / wide.std()
    return pd.DataFrame({"wide": wide, "other": rng.normal(size=rows)}), y + noise


@pytest.fixture(scope="module")
def fitted():
    return OrthogonalGPRegressor(**SMALL).fit(*made(200, True))


def test_a_transform_that_gains_is_taken_and_told_of(fitted):
    X, y = made(200, True)
    assert fitted.columns_["wide"].treatment == "skewed: log"
    assert fitted.columns_["other"].treatment == "as it is"
    # As if the logarithm had been taken by hand.
    by_hand = OrthogonalGPRegressor(**SMALL).fit(X.assign(wide=np.log(X["wide"])), y)
    own = X.assign(wide=np.log(X["wide"]))
    np.testing.assert_allclose(fitted.predict(X), by_hand.predict(own), rtol=1e-5, atol=1e-6)
    plain = OrthogonalGPRegressor(**SMALL, input_transform=None).fit(X, y)
    assert plain.columns_["wide"].treatment == "as it is"
    assert fitted.log_density(X, y).mean() > plain.log_density(X, y).mean()


def test_it_is_saved_and_applied_to_arrays_too(fitted, tmp_path):
    X, _ = made(200, True)
    fitted.save(tmp_path / "m")
    again = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    with pytest.warns(UserWarning, match="feature names"):
        found = again.predict(X.to_numpy())
    np.testing.assert_array_equal(found, fitted.predict(X))
    with pytest.raises(ConfigurationError, match="input_transform=None"):
        fitted.predict_gradient(X)


def test_a_column_that_is_right_as_it_is_stays():
    X, y = made(200, False)
    assert OrthogonalGPRegressor(**SMALL).fit(X, y).columns_["wide"].treatment == "as it is"


def test_arrays_and_kernels_of_ones_own_see_numbers_as_they_are():
    X, y = made(100, True)
    of_array = OrthogonalGPRegressor(**SMALL).fit(X.to_numpy(), y)
    own = OrthogonalGPRegressor(**SMALL, kernel=default_kernel(2)).fit(X, y)
    assert of_array.columns_.plan.plain
    assert own.columns_.plan.plain
    with pytest.raises(ConfigurationError, match="input_transform"):
        OrthogonalGPRegressor(**SMALL, input_transform="log").fit(X, y)


def test_left_out_rows_are_predicted_as_by_refitting_without_them(monkeypatch):
    """With hyperparameters that stay where they start, against one exact process a row."""
    monkeypatch.setattr(Hyperparameters, "ascend", lambda *given, **options: 0)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=(12, 2))
    found = left_out(x, y, None)
    kernel, noise = default_kernel(2, ard=True).double(), np.log(2.0) + 1e-4
    K = kernel(torch.from_numpy(x)).to_dense().detach().numpy()
    for i in range(12):
        rest = np.arange(12) != i
        weights = np.linalg.solve(K[rest][:, rest] + noise * np.eye(11), K[rest, i])
        variance = K[i, i] + noise - weights @ K[rest, i]
        error = y[i] - weights @ y[rest]
        expected = -0.5 * (error**2 / variance + np.log(2 * np.pi * variance)).sum()
        assert found.density[i] == pytest.approx(expected, rel=1e-6)
        assert found.error[i] == pytest.approx((error**2).sum(), rel=1e-6)


def test_a_frequent_value_that_matters_has_an_indicator():
    rng = np.random.default_rng(0)
    rain, other = rng.exponential(size=(2, 200))
    rain[rng.random(200) < 0.5] = 0
    X, noise = pd.DataFrame({"rain": rain, "other": other}), 0.1 * rng.normal(size=200)
    steps = OrthogonalGPRegressor(**SMALL).fit(X, (rain == 0) + noise)
    assert steps.columns_["rain"].treatment.endswith("an indicator of 0")
    assert next(iter(steps.relevance_)) == "rain"
    smooth = OrthogonalGPRegressor(**SMALL).fit(X, np.sin(rain) + noise)
    assert smooth.columns_["rain"].inputs == 1


def with_gaps(rows: int = 160):
    """Two columns that nearly tell each other, one with gaps at random, and where these are."""
    rng = np.random.default_rng(0)
    a, b, noise = rng.normal(size=(3, rows))
    gaps = rng.random(rows) < 0.3
    X = np.column_stack([np.where(gaps, np.nan, a), a + 0.1 * b])
    return X, a + 0.1 * noise, gaps


@pytest.mark.parametrize("form", [np.asarray, lambda X: pd.DataFrame(X, columns=["a", "b"])])
def test_gaps_have_an_indicator_where_they_tell_something(form):
    X, y, gaps = with_gaps()
    given = form(X)
    told = OrthogonalGPRegressor(**SMALL).fit(given, y + gaps)
    assert [row.inputs for row in told.columns_] == [2, 1]
    assert told.columns_[0].treatment.endswith("an indicator of them")
    filled = OrthogonalGPRegressor(**SMALL).fit(given, y)
    assert [row.inputs for row in filled.columns_] == [1, 1]
    assert filled.columns_[0].treatment == "as it is; gaps from the other numbers"
    assert np.sqrt(np.mean((filled.predict(given) - y) ** 2)) < 0.2
    # Without a choice they are always there.
    plain = OrthogonalGPRegressor(**SMALL, input_transform=None).fit(given, y)
    assert [row.inputs for row in plain.columns_] == [2, 1]


def test_indicators_that_raise_the_density_and_the_error_are_not_taken():
    """Rows of which nearly all is missing have odd targets; the rest of the row predicts them."""
    rng = np.random.default_rng(1)
    level, odd = rng.normal(size=(200, 1)), np.arange(200) % 20 == 0
    X = level + 0.05 * rng.normal(size=(200, 6))
    y = level[:, 0] + 0.05 * rng.normal(size=200)
    y[odd] += rng.choice([-1, 1], odd.sum())
    X[:, :5][odd[:, None] & (rng.random((200, 5)) < 0.8)] = np.nan
    plan = number_plan(X, [f"x{i}" for i in range(6)])
    without = without_gap_indicators(plan)
    found = judge(X, y[:, None], plan, 200)
    assert found(plan).gains(found(without))
    assert found(plan).error.mean() > 1.3 * found(without).error.mean()
    assert choose_gap_indicators(plan, X, y[:, None]) == without
