"""Estimators that know of more rows, without training: in the units of the user, in files too."""

import pickle

import numpy as np
import pytest
import torch

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, DataError, FileError
from orthogp.estimators import near_rows
from orthogp.training import objectives, predictive

RNG = np.random.default_rng(0)
X = RNG.uniform(-3.0, 3.0, size=(120, 2)) * [1.0, 100.0] + [5.0, 0.0]
Y = 50.0 + 7.0 * np.sin(2.0 * X[:, 0]) + 0.3 * RNG.normal(size=len(X))
NEW = RNG.uniform(-3.0, 3.0, size=(9, 2)) * [1.0, 100.0] + [5.0, 0.0]


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EVIDENCE_STEPS", "PATCH_STEPS", "LEAVE_ONE_OUT_STEPS"):
            patch.setattr(predictive, name, 20)
        yield


@pytest.fixture(scope="module")
def exact(small):
    """β are all of its 60 rows."""
    return OrthogonalGPRegressor(random_state=0, device="cpu").fit(X[:60], Y[:60])


@pytest.fixture(scope="module")
def near(small):
    with pytest.MonkeyPatch.context() as patch:
        for part in (near_rows, objectives):
            patch.setattr(part, "MOST_EXACT", {"cpu": 0})
        gp = OrthogonalGPRegressor(n_neighbors=20, n_inducing=10, random_state=0, device="cpu")
        return gp.fit(X[:60], Y[:60])


def closed_form(gp, X, Y, new):
    """The exact process at the hyperparameters of a fit, in the units of the user."""
    units, model = gp._fitted.units, gp.model_
    scaling = units.targets.scaling
    x, z = (torch.from_numpy((t - units.inputs.shift) / units.inputs.scale) for t in (X, new))
    with torch.no_grad():
        K, k = model.covariance.block(x, x).numpy(), model.covariance.block(x, z).numpy()
        noise = model.likelihood.likelihood.noise.item()
    c = np.linalg.solve(K + noise * np.eye(len(X)), k)
    variance = model.covariance.diagonal(z).detach().numpy() - (c * k).sum(0)
    mean = c.T @ ((Y - scaling.shift) / scaling.scale)
    return mean * scaling.scale + scaling.shift, np.sqrt(variance) * scaling.scale


def test_rows_that_join_the_exact_process_leave_it_exact(exact):
    gp = exact.condition_on(X[60:100], Y[60:100]).condition_on(X[100:], Y[100:])
    mean, std = closed_form(gp, X, Y, NEW)
    np.testing.assert_allclose(gp.predict(NEW), mean, rtol=1e-4)
    scale = np.sqrt(gp._fitted.calibration.scales[0, 0].item())
    np.testing.assert_allclose(gp.predict_latent(NEW)[1], scale * std, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_a_new_estimator_and_the_old_one(kind, request):
    gp = request.getfixturevalue(kind)
    before = gp.predict(NEW, return_std=True)
    more = np.repeat(NEW, 10, axis=0), np.repeat(before[0] + 5.0, 10)
    found = gp.condition_on(*more)
    np.testing.assert_array_equal(gp.predict(NEW, return_std=True), before)
    mean, std = found.predict(NEW, return_std=True)
    # More rows have joined than are near, so that it is no longer the exact process, but close.
    exact, _ = closed_form(
        gp, *(np.concatenate(t) for t in ((X[:60], more[0]), (Y[:60], more[1]))), NEW
    )
    np.testing.assert_allclose(mean, exact, rtol=0, atol=0.1 if kind == "exact" else 1.0)
    assert np.abs(exact - before[0]).min() > 2.0
    assert (std <= before[1] + 1e-9).all()
    assert found.model_.covariance.kernel is gp.model_.covariance.kernel
    assert found.get_params() == gp.get_params()
    np.testing.assert_array_equal(gp.condition_on(*more).predict(NEW), mean)


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_partial_fit_does_the_same_in_place(kind, request, tmp_path):
    gp = request.getfixturevalue(kind)
    found = gp.condition_on(X[60:], Y[60:])
    gp.save(tmp_path / "before")
    other = OrthogonalGPRegressor.load(tmp_path / "before", device="cpu")
    other.partial_fit(X[60:90], Y[60:90]).partial_fit(X[90:], Y[90:])
    np.testing.assert_allclose(other.predict(NEW), found.predict(NEW), rtol=1e-5)


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_files_and_pickles_keep_the_rows_that_have_joined(kind, request, tmp_path):
    gp = request.getfixturevalue(kind)
    for start in range(60, 120, 25):
        weight = np.linspace(0.5, 2.0, 120)[start : start + 25]
        gp = gp.condition_on(X[start : start + 25], Y[start : start + 25], weight)
    expected = gp.predict(NEW, return_std=True)
    gp.save(tmp_path / "model")
    loaded = OrthogonalGPRegressor.load(tmp_path / "model", device="cpu")
    for found in (loaded, pickle.loads(pickle.dumps(gp))):
        np.testing.assert_allclose(found.predict(NEW, return_std=True), expected, rtol=1e-6)
        more = [p.condition_on(NEW[:1], Y[:1]).predict(NEW) for p in (found, gp)]
        np.testing.assert_allclose(more[0], more[1], rtol=1e-6)


@pytest.mark.parametrize("change", [{"added": 10**6}, {"added": 0.5}, {"after_basis": "no"}])
def test_rows_in_a_file_are_checked(near, change, tmp_path):
    gp = near.condition_on(X[60:], Y[60:])
    for name, value in change.items():
        setattr(gp.model_.near, name, value)
    gp.save(tmp_path / "bad")
    with pytest.raises(FileError, match="near rows"):
        OrthogonalGPRegressor.load(tmp_path / "bad")


def test_what_is_refused(near):
    with pytest.raises(DataError, match=r"columns|features"):
        near.condition_on(X[:3, :1], Y[:3])
    with pytest.raises(DataError, match=r"missing|not finite|NaN"):
        near.condition_on(X[:3], [1.0, np.nan, 2.0])
    classifier = OrthogonalGPClassifier(max_steps=3, device="cpu").fit(X, Y > 50.0)
    with pytest.raises(ConfigurationError, match="Gaussian noise"):
        classifier.condition_on(X, Y > 50.0)


def test_a_posterior_trained_by_steps_takes_rows_too():
    gp = OrthogonalGPRegressor(n_neighbors=0, n_inducing=10, n_residual=20, max_steps=30)
    gp.set_params(device="cpu", random_state=0).fit(X[:60], Y[:60])
    found = gp.condition_on(X[60:], Y[60:])
    errors = [np.mean((p.predict(X[60:]) - Y[60:]) ** 2) for p in (found, gp)]
    assert errors[0] < errors[1]
