"""What holds for every finite data set, on sets drawn by hypothesis, the nasty ones among them."""

import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.estimators import fitted
from orthogp.training import evaluate

SMALL = {"n_inducing": 6, "n_residual": 6, "max_steps": 4, "random_state": 0}
# Where near rows are put into order by their values, another sign or order of columns is rounded
# in another way.
POINTS = SMALL | {"n_neighbors": 0}
# The same examples in every run: a failure can be seen again, and a pass means the same everywhere.
few = settings(max_examples=20, deadline=None, derandomize=True, database=None)
# For tables that differ by their seed alone.
fewer = settings(few, max_examples=10)


@st.composite
def columns(draw, rows: int, largest: float = 1e250) -> np.ndarray:
    """Numbers of some kind: anything, few values, one value, any scale, any distance from zero."""
    kind = draw(st.sampled_from(["any", "few", "one", "scaled", "far", "heavy"]))
    if kind == "any":
        number = st.floats(-largest, largest, allow_subnormal=True)
        return np.array(draw(st.lists(number, min_size=rows, max_size=rows)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "few":
        return rng.integers(0, draw(st.integers(1, 3)), rows, endpoint=True).astype(np.float64)
    if kind == "one":
        return np.full(rows, draw(st.floats(-largest, largest)))
    if kind == "heavy":
        return rng.standard_cauchy(rows) ** 5
    scale = 10.0 ** draw(st.integers(-200, 200))
    return scale * (rng.normal(size=rows) + (1e6 if kind == "far" else 0.0))


@st.composite
def tables(draw, fewest: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """X and y; some with rows that repeat."""
    rows, width = draw(st.integers(fewest, 25)), draw(st.sampled_from([1, 3]))
    X = np.stack([draw(columns(rows)) for _ in range(width)], axis=1)
    if draw(st.booleans()):
        X = X[np.arange(rows) % max(1, rows // 3)]
    return X, draw(columns(rows))


def rough(rows: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """An ordinary table."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, width))
    return X, np.sin(2 * X[:, 0]) + X.sum(1) + 0.1 * rng.normal(size=rows)


@pytest.fixture(autouse=True)
def no_warning_from_inside():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@few
@given(table=tables(), dtype=st.sampled_from(["float32", "float64"]),
       likelihood=st.sampled_from(["gaussian", "student_t", "laplace"]))  # fmt: skip
def test_finite_data_give_finite_predictions(table, dtype, likelihood):
    X, y = table
    gp = OrthogonalGPRegressor(**SMALL, dtype=dtype, likelihood=likelihood).fit(X, y)
    mean, std = gp.predict(X, return_std=True)
    latent_mean, latent_std = gp.predict_latent(X)
    low, high = gp.predict_interval(X)
    for found in (mean, std, latent_mean, latent_std, low, high, gp.elbo_):
        assert np.isfinite(found).all()
    assert (std >= 0).all()
    assert (latent_std >= 0).all()
    assert (low <= high).all()


@few
@given(table=tables(fewest=4), classes=st.integers(2, 4), seed=st.integers(0, 2**32 - 1),
       dtype=st.sampled_from(["float32", "float64"]))  # fmt: skip
def test_finite_data_give_probabilities(table, classes, seed, dtype):
    X, _ = table
    rng = np.random.default_rng(seed)
    # Every class at least once, some of them no more often.
    rest = rng.integers(classes, size=len(X) - classes) // 2
    labels = rng.permutation([*range(classes), *rest])
    clf = OrthogonalGPClassifier(**SMALL, dtype=dtype).fit(X, labels)
    found = clf.predict_proba(X)
    assert np.isfinite(clf.elbo_)
    assert ((found >= 0) & (found <= 1)).all()
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-12)
    _, std = clf.predict_latent(X)
    assert np.isfinite(std).all()
    assert (std >= 0).all()


@pytest.fixture(scope="module")
def fits():
    X, y = rough(300, 3, seed=0)
    kinds = {OrthogonalGPRegressor: y, OrthogonalGPClassifier: y > 0}
    return [kind(**SMALL).fit(X, y) for kind, y in kinds.items()]


def answers(gp, X) -> np.ndarray:
    if isinstance(gp, OrthogonalGPClassifier):
        return gp.predict_proba(X)
    return np.stack([*gp.predict(X, return_std=True), *gp.predict_interval(X)], axis=1)


@few
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 300), chunk=st.integers(1, 300),
       elements=st.integers(1, 2**12))  # fmt: skip
def test_a_row_is_predicted_alike_in_any_order_and_chunk(fits, seed, rows, chunk, elements):
    """To the last digits only: a product of matrices is summed in an order by their shapes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) * 3
    order = rng.permutation(rows)
    for gp in fits:
        expected = answers(gp, X)
        with (
            mock.patch.object(fitted, "CHUNK_ROWS", chunk),
            mock.patch.dict(evaluate.PREDICTION_ELEMENTS, cpu=elements),
        ):
            found = answers(gp, X[order])
        np.testing.assert_allclose(found, expected[order], rtol=1e-11, atol=1e-13)


@few
@given(table=tables(fewest=2), power=st.integers(-40, 40), sign=st.sampled_from([-1.0, 1.0]))
def test_a_power_of_two_times_y_gives_exactly_so_many_times_the_predictions(table, power, sign):
    """It changes no digit of a number, so the standardised y are the same bit for bit."""
    X, y = table
    assume(np.ptp(y) > 1e-9 * np.abs(y).max() and np.ptp(y) > 1e-280)
    factor = sign * 2.0**power
    gp, other = (OrthogonalGPRegressor(**POINTS).fit(X, t) for t in (y, factor * y))
    mean, std = gp.predict(X, return_std=True)
    moved, widened = other.predict(X, return_std=True)
    np.testing.assert_array_equal(moved, factor * mean)
    np.testing.assert_array_equal(widened, abs(factor) * std)


@fewer
@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(1e-6, 1e6), shift=st.floats(-10, 10))
def test_any_multiple_of_y_gives_that_of_the_predictions(seed, factor, shift):
    """To rounding, which standardising leaves in the 16th digit and a few steps multiply."""
    X, y = rough(25, 3, seed)
    options = SMALL | {"dtype": "float64"}
    gp, other = (OrthogonalGPRegressor(**options).fit(X, t) for t in (y, factor * (y + shift)))
    mean, std = gp.predict(X, return_std=True)
    moved, widened = other.predict(X, return_std=True)
    tolerance = {"rtol": 0, "atol": 1e-8 * factor * np.std(y)}
    np.testing.assert_allclose(moved, factor * (mean + shift), **tolerance)
    np.testing.assert_allclose(widened, factor * std, **tolerance)
    expected = gp.elbo_ - len(y) * np.log(factor)
    assert other.elbo_ == pytest.approx(expected, rel=1e-8, abs=1e-6)


def lengthscales(gp) -> np.ndarray:
    parts = gp.model_.covariance.terms
    return np.stack([term.kernel.lengthscale.detach().double().numpy()[0] for term in parts])


def permuted(X: np.ndarray, y: np.ndarray, order: list[int], **options):
    """Lengthscales and predictions of a fit, and of one to permuted columns.

    Rounding grows by the condition of K_β, which points that coincide leave to the jitter.
    """
    settings = POINTS | {"dtype": "float64", "jitter": 1e-3}
    given = {name: value[:, order] for name, value in options.items()}
    gp = OrthogonalGPRegressor(**settings, **options).fit(X, y)
    other = OrthogonalGPRegressor(**settings, **given).fit(X[:, order], y)
    pairs = (gp, X), (other, X[:, order])
    predictions = [np.stack(g.predict(inputs, return_std=True)) for g, inputs in pairs]
    return lengthscales(gp)[:, order], lengthscales(other), *predictions


@fewer
@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(3)))
def test_permuted_columns_permute_the_lengthscales(seed, order):
    """To rounding: distances are the same sums in another order, so k-means ends alike too."""
    X, y = rough(60, 3, seed)
    expected, found, one, other = permuted(X, y, order)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(other, one, atol=1e-6 * np.std(y))


@few
@given(table=tables(fewest=8), order=st.permutations(range(3)))
def test_so_they_do_for_any_table_with_the_points_given(table, order):
    """Where rows are equally far from two centres, rounding decides, so k-means is left out."""
    X, y = table
    assume(X.shape[1] == 3 and np.ptp(y) > 1e-9 * np.abs(y).max())
    expected, found, *_ = permuted(X, y, order, inducing_points=X[:4], residual_points=X[4:8])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
