"""What estimators offer besides predictions, on a GPU."""

import numpy as np
import pytest

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

pytestmark = pytest.mark.cuda

ROWS = 400


def table(seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(ROWS, 2)) * [1.0, 50.0]
    noise = np.where(X[:, 0] > 0.0, 0.5, 0.05)
    return X, np.sin(2.0 * X[:, 0]) + noise * rng.standard_normal(ROWS), noise


X, Y, NOISE = table()
NEW = table(1)[0][:50]


@pytest.fixture(scope="module")
def gp() -> OrthogonalGPRegressor:
    return OrthogonalGPRegressor(random_state=0, device="cuda").fit(X, Y)


def test_noise_that_is_learned_or_known():
    learned = OrthogonalGPRegressor(noise="learned", random_state=0, device="cuda").fit(X, Y)
    known = OrthogonalGPRegressor(noise_variance=NOISE**2, random_state=0, device="cuda").fit(X, Y)
    assert learned.noise_learned_
    std = learned.predict(NEW, return_std=True)[1]
    assert std[NEW[:, 0] > 0.5].mean() > 3.0 * std[NEW[:, 0] < -0.5].mean()
    difference = learned.predict(NEW) - known.predict(NEW)
    assert np.sqrt(np.mean(difference**2)) < 0.1


def test_rows_join_as_they_do_on_the_host(gp, tmp_path):
    gp.save(tmp_path / "m")
    host = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    more = table(2)
    found, expected = (
        np.stack(part.condition_on(more[0], more[1]).predict(NEW, return_std=True))
        for part in (gp, host)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_functions_are_the_same_wherever_they_are_asked(gp):
    functions = gp.sample_functions(3)
    np.testing.assert_allclose(functions(NEW)[:5], functions(NEW[:5]), atol=1e-6)
    slope = gp.predict_gradient(NEW)
    step = np.array([1e-3, 0.0])
    differences = (gp.predict(NEW + step) - gp.predict(NEW - step)) / 2e-3
    np.testing.assert_allclose(slope[:, 0], differences, rtol=1e-2, atol=2e-2)


def test_a_table_with_categories_and_gaps():
    pd = pytest.importorskip("pandas")
    kind = np.where(X[:, 1] > 0.0, "high", "low")
    frame = pd.DataFrame({"a": np.where(np.arange(ROWS) % 9 == 0, np.nan, X[:, 0]), "kind": kind})
    classifier = OrthogonalGPClassifier(
        random_state=0, device="cuda", max_steps=200, coverage_guarantee=True
    ).fit(frame, X[:, 0] * (kind == "high") > 0.5)
    assert classifier.predict_set(frame[:20], 0.8).any(axis=1).all()
    explanation = classifier.explain(frame[:5], n_samples=4)
    total = explanation.base + explanation.values.sum(axis=1)
    np.testing.assert_allclose(total, classifier.predict_proba(frame[:5]), atol=1e-6)


def test_a_map_for_classes(tmp_path):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3000, 4))
    y = (np.abs(x[:, 0]) < 0.5) ^ (np.abs(x[:, 1]) < 0.5) ^ (x[:, 2] > 0.3)
    gp = OrthogonalGPClassifier(random_state=0, device="cuda").fit(x[:2000], y[:2000])
    assert gp._fitted.units.inputs.ramps is not None
    assert gp.score(x[2000:], y[2000:]) > 0.9
    gp.save(tmp_path / "m")
    host = OrthogonalGPClassifier.load(tmp_path / "m", device="cpu")
    found, expected = (part.predict_proba(x[2000:]) for part in (gp, host))
    np.testing.assert_allclose(found, expected, atol=2e-3)
