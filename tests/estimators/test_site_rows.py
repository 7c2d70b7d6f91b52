"""Estimators whose noise is not Gaussian: near rows correct the mean where that predicts better."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, FileError
from orthogp.estimators import classifier, regressor, step_fit
from orthogp.estimators.calibration import LatentScales
from orthogp.posterior import SitePredictor, SiteRows
from orthogp.training import sites

ROWS = 1200


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(sites, "SCALE_STEPS", 20)
    monkeypatch.setattr(sites, "STEPS", 20)


def table(classes: int = 2, seed: int = 0):
    """Squares of a board: too many for a few points, but each has some rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 8.0, size=(ROWS, 2)) * [1.0, 100.0]
    place = np.floor(X[:, 0]) + np.floor(X[:, 1] / 100.0)
    return X, np.array(["black", "white", "red"])[(place % classes).astype(int)]


def settings(**others) -> dict:
    few = {"n_inducing": 10, "n_residual": 0, "max_steps": 60, "linear_map": None}
    return few | {"random_state": 0} | others


X, Y = table()
NEW, LABELS = table(seed=1)


@pytest.fixture(scope="module")
def fitted() -> OrthogonalGPClassifier:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sites, "SCALE_STEPS", 20)
        patch.setattr(sites, "STEPS", 20)
        return OrthogonalGPClassifier(**settings()).fit(X, Y)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_rough_function_is_better_predicted_than_by_the_points_alone(classes):
    (X, Y), (new, labels) = table(classes), table(classes, seed=1)
    near, points = (
        OrthogonalGPClassifier(**settings(**given)).fit(X, Y) for given in ({}, {"n_neighbors": 0})
    )
    assert isinstance(near.model_.near, SiteRows)
    assert len(near.model_.near.x) == ROWS
    assert isinstance(near._fitted.predictor, SitePredictor)
    assert points.model_.near is None
    assert near.score(new, labels) > points.score(new, labels) + 0.1
    gain = near.log_density(new, labels) - points.log_density(new, labels)
    assert gain.mean() > 0.1
    np.testing.assert_allclose(near.predict_proba(new).sum(1), 1.0)


@pytest.mark.parametrize("enough", [True, False])
def test_where_few_rows_are_held_out_the_others_calibrate_as_well(enough, monkeypatch):
    """The others are left out for that: they are as likely as new rows are."""
    seen = {}

    def record(likelihood, y, mean, variance):
        density = likelihood.log_density(y, mean, variance)
        seen.update(rows=len(y), held_out=density[:120].mean(), others=density[120:].mean())
        return LatentScales()

    monkeypatch.setattr(classifier, "fit_latent_scales", record)
    if enough:
        monkeypatch.setattr(step_fit, "ENOUGH_HELD_OUT", 100)
    gp = OrthogonalGPClassifier(**settings(validation_fraction=0.1)).fit(X, Y)
    assert isinstance(gp.model_.near, SiteRows)
    assert seen["rows"] == (120 if enough else ROWS)
    if not enough:
        assert abs(seen["others"] - gp.log_density(NEW, LABELS).mean()) < 0.05
        assert gp.log_density(X, Y).mean() > seen["others"] + 0.05


def test_numbers_are_calibrated_by_held_out_rows_alone(monkeypatch):
    """Of the others some would be moved too far, and intervals become too wide."""
    seen, found = [], regressor.calibrate

    def record(likelihood, y, *moments):
        seen.append(len(y))
        return found(likelihood, y, *moments)

    monkeypatch.setattr(regressor, "calibrate", record)
    y = np.random.default_rng(0).poisson(np.exp(np.sin(X[:, 0])))
    OrthogonalGPRegressor(likelihood="poisson", **settings(validation_fraction=0.1)).fit(X, y)
    assert seen == [120]


def test_a_file_holds_the_rows_or_not(fitted, tmp_path):
    fitted.save(tmp_path / "whole.gp")
    loaded = OrthogonalGPClassifier.load(tmp_path / "whole.gp")
    np.testing.assert_array_equal(loaded.predict_proba(NEW), fitted.predict_proba(NEW))
    fitted.save(tmp_path / "points.gp", near_rows=False)
    assert OrthogonalGPClassifier.load(tmp_path / "points.gp").model_.near is None


def test_a_kernel_that_no_file_describes_is_passed_in(tmp_path):
    class Own(MaternKernel):
        pass

    kernel = ScaleKernel(Own(2.5))
    gp = OrthogonalGPClassifier(**settings(kernel=kernel)).fit(X, Y)
    assert isinstance(gp.model_.near, SiteRows)
    gp.save(tmp_path / "own.gp")
    with pytest.raises(FileError, match="kernel"):
        OrthogonalGPClassifier.load(tmp_path / "own.gp")
    loaded = OrthogonalGPClassifier.load(tmp_path / "own.gp", kernel=kernel)
    np.testing.assert_allclose(loaded.predict_proba(NEW), gp.predict_proba(NEW), atol=1e-6)


def test_rows_join_those_of_the_first_fit(fitted, tmp_path):
    fitted.save(tmp_path / "first.gp")
    gp = OrthogonalGPClassifier.load(tmp_path / "first.gp")
    gp.partial_fit(NEW, LABELS)
    assert isinstance(gp.model_.near, SiteRows)
    assert len(gp.model_.near.x) == 2 * ROWS
    third, labels = table(seed=2)
    gain = gp.log_density(third, labels) - fitted.log_density(third, labels)
    assert gain.mean() > 0.0


def test_a_warm_start_learns_its_rows_anew():
    gp = OrthogonalGPClassifier(**settings(warm_start=True)).fit(X, Y).fit(NEW, LABELS)
    assert isinstance(gp.model_.near, SiteRows)
    assert len(gp.model_.near.x) == ROWS


def test_the_order_of_rows_does_not_matter_to_their_sites(fitted):
    near = fitted.model_.near
    order = torch.randperm(len(near.x), generator=torch.Generator().manual_seed(0))
    noise, weight = float(near.noise), float(near.weight)
    shuffled = SiteRows(
        near.x[order], near.residual[:, order], noise, weight, near.kernel, near.count
    )
    x = near.x[:20] + 0.01
    torch.testing.assert_close(
        shuffled.correction().marginals(x)[0], near.correction().marginals(x)[0]
    )


def test_without_held_out_rows_there_is_nothing_to_learn_by():
    gp = OrthogonalGPClassifier(**settings(validation_fraction=0.0)).fit(X, Y)
    assert gp.model_.near is None
    with pytest.raises(ConfigurationError, match="validation_fraction"):
        OrthogonalGPClassifier(**settings(validation_fraction=0.0, n_neighbors=5)).fit(X, Y)


def test_the_number_of_near_rows_can_be_given():
    gp = OrthogonalGPClassifier(**settings(n_neighbors=5)).fit(X, Y)
    assert gp.model_.near.count == 5


@pytest.mark.parametrize("likelihood", ["student_t", "poisson"])
def test_numbers_with_other_noise_are_corrected_too(likelihood):
    rng = np.random.default_rng(0)

    def truth(X):
        return np.sin(3.0 * X[:, 0]) * np.cos(0.03 * X[:, 1])

    rate, expected = np.exp(1.0 + truth(X)), np.exp(1.0 + truth(NEW))
    if likelihood == "poisson":
        y = rng.poisson(rate)
    else:
        y, expected = truth(X) + 0.1 * rng.standard_t(2, size=ROWS), truth(NEW)
    errors = []
    for given in ({}, {"n_neighbors": 0}):
        gp = OrthogonalGPRegressor(**settings(likelihood=likelihood, **given)).fit(X, y)
        errors.append(np.sqrt(np.mean((gp.predict(NEW) - expected) ** 2)))
    assert errors[0] < 0.9 * errors[1]


@pytest.mark.cuda
def test_on_a_gpu_as_on_the_host(fitted):
    gp = OrthogonalGPClassifier(**settings(device="cuda")).fit(X, Y)
    assert isinstance(gp.model_.near, SiteRows)
    assert abs(gp.score(NEW, LABELS) - fitted.score(NEW, LABELS)) < 0.05
