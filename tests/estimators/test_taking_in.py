"""Rows that were held out to calibrate are taken in afterwards; all that they may change is q."""

import numpy as np
import pytest
import torch
from scipy import stats

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor, training
from orthogp.estimators import defaults, start
from orthogp.estimators.step_fit import StepFit
from orthogp.training import TrainingConfig

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(300, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.normal(size=300)


def regressor(**settings):
    usual = {"n_inducing": 20, "n_residual": 30, "max_steps": 40, "validation_fraction": 0.4}
    usual |= {"dtype": "float64", "random_state": 0, "device": "cpu", "n_neighbors": 0}
    return OrthogonalGPRegressor(**(usual | settings))


def without(monkeypatch):
    monkeypatch.setattr(StepFit, "_train_on_all", lambda *_: None)


def best_bound(gp) -> float:
    """Titsias's bound on all rows, with the kernel, the noise and the β of a fit."""
    model, x = gp.model_, torch.from_numpy(X)
    with torch.no_grad():
        beta = model.basis.beta
        K = model.covariance.block(beta, beta).numpy()
        K += model.jitter * np.diag(K).mean() * np.eye(len(K))
        across = model.covariance.block(beta, x).numpy()
        prior = model.covariance.diagonal(x).numpy()
        noise = float(model.likelihood.likelihood.noise)
    Q = across.T @ np.linalg.solve(K, across)
    evidence = stats.multivariate_normal.logpdf(Y, cov=Q + noise * np.eye(len(Y)))
    return evidence - (prior - np.diag(Q)).sum() / (2 * noise)


def test_q_ends_at_the_optimum_of_all_rows(monkeypatch):
    settings = {"basis": "coupled", "standardize": False, "jitter": 1e-6}
    gp = regressor(**settings).fit(X, Y)
    assert gp.elbo_ == pytest.approx(best_bound(gp), abs=1e-3)
    without(monkeypatch)
    gp = regressor(**settings).fit(X, Y)
    assert gp.elbo_ < best_bound(gp) - 1.0


@pytest.mark.parametrize(
    ("basis", "optimizer"),
    [
        ("orthogonal", "natural"),
        ("orthogonal", "adam"),
        ("coupled", "natural"),
        ("decoupled", "adam"),
        ("hybrid", "adam"),
    ],
)
def test_kernel_noise_points_and_calibration_stay(monkeypatch, basis, optimizer):
    found = regressor(basis=basis, optimizer=optimizer).fit(X, Y)
    without(monkeypatch)
    before = regressor(basis=basis, optimizer=optimizer).fit(X, Y)
    kept = dict(before.model_.named_parameters())
    for name, value in found.model_.named_parameters():
        if name.startswith(("covariance.", "likelihood.", "basis.beta", "basis.gamma")):
            torch.testing.assert_close(value, kept[name], rtol=0, atol=0)
    for name in ("scales", "tails"):
        torch.testing.assert_close(
            *(getattr(gp._fitted.calibration, name) for gp in (found, before)), rtol=0, atol=0
        )
    assert found.history_[-1]["step"] == before.history_[-1]["step"] == found.n_iter_ == 40
    assert found.elbo_ > before.elbo_


def test_so_it_is_for_classes(monkeypatch):
    settings = {"n_inducing": 20, "max_steps": 60, "validation_fraction": 0.4, "random_state": 0}
    settings |= {"n_neighbors": 0, "device": "cpu"}
    found = OrthogonalGPClassifier(**settings).fit(X, Y > 0)
    without(monkeypatch)
    before = OrthogonalGPClassifier(**settings).fit(X, Y > 0)
    assert found._fitted.calibration == before._fitted.calibration
    assert found.elbo_ > before.elbo_
    torch.testing.assert_close(found.model_.basis.beta, before.model_.basis.beta, rtol=0, atol=0)


def test_a_run_that_was_killed_amid_it_ends_as_the_undisturbed_one(tmp_path, monkeypatch):
    # With natural steps and Gaussian noise there is one run alone.
    settings = {"optimizer": "adam"}
    expected = regressor(**settings).fit(X, Y).predict(X, return_std=True)
    fit, calls = training.fit, []

    def killed(*args, **kwargs):
        calls.append(kwargs.get("checkpoint_dir"))
        if len(calls) == 2:
            raise RuntimeError("killed")
        return fit(*args, **kwargs)

    monkeypatch.setattr(training, "fit", killed)
    gp = regressor(**settings, checkpoint_dir=tmp_path)
    with pytest.raises(RuntimeError, match="killed"):
        gp.fit(X, Y)
    for _ in range(2):
        np.testing.assert_array_equal(gp.fit(X, Y).predict(X, return_std=True), expected)


def test_an_interrupt_leaves_the_model_as_it_stands(monkeypatch):
    def interrupt(event):
        if event.kind == "report":
            raise KeyboardInterrupt

    for name in ("_train_on_all", "_solve"):
        monkeypatch.setattr(StepFit, name, lambda *_: pytest.fail("went on"))
    regressor(callbacks=[interrupt]).fit(X, Y)
    monkeypatch.setattr(StepFit, "_solve", lambda *_: None)
    # Nor is there anything to take in where nothing was held out.
    regressor(validation_fraction=None).fit(X, Y)


def test_steps_and_rates_of_the_last_run():
    config = TrainingConfig(max_steps=5000, max_time=60.0, natural_step=0.1, patience=3, seed=7)
    assert defaults.first_config(config).max_time == pytest.approx(54.0)
    last = defaults.last_config(config, 400)
    assert last is not None
    assert (last.max_steps, last.max_time, last.patience, last.seed) == (40, 6.0, None, 8)
    assert last.natural_step == pytest.approx(0.03)
    # With so few steps Adam's first ones must be small.
    assert last.learning_rate == pytest.approx(0.4 * 0.003)
    longer = defaults.last_config(config, 4000)
    assert longer is not None
    assert longer.learning_rate == pytest.approx(0.003)
    assert (last.train_points, last.train_hyperparameters) == (False, False)
    exact = TrainingConfig(natural_step=1.0)
    assert getattr(defaults.last_config(exact, 400), "natural_step", None) == 1.0
    assert defaults.last_config(config, 4) is None


def test_q_of_the_rows_that_train_is_solved_for_as_well(monkeypatch):
    settings = {"validation_fraction": None, "max_steps": 5}
    found = regressor(**settings).fit(X, Y)
    monkeypatch.setattr(StepFit, "_solve", lambda *_: None)
    before = regressor(**settings).fit(X, Y)
    assert found.elbo_ > before.elbo_ + 1.0
    torch.testing.assert_close(found.model_.basis.beta, before.model_.basis.beta, rtol=0, atol=0)


def test_points_beyond_those_that_train_can_only_raise_the_bound(monkeypatch):
    monkeypatch.setattr(start, "MOST_TRAINED", 10)
    fewer, more = (regressor(n_residual=count).fit(X, Y) for count in (10, 60))
    assert more.model_.basis.gamma.shape == (60, 2)
    assert more.elbo_ > fewer.elbo_ + 0.01
    for name in ("beta", "gamma"):
        ours, theirs = (getattr(gp.model_.basis, name)[:10] for gp in (more, fewer))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    monkeypatch.undo()
    assert regressor(n_residual=60).fit(X, Y).model_.basis.gamma.shape == (60, 2)
