"""Fits in which every row counts: near rows, all rows, and the exact process of small tables."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, FileError
from orthogp.estimators import near_rows, near_settings
from orthogp.posterior import NearPredictor
from orthogp.training import Rows, every_row, objectives, predictive

ROWS = 400


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few steps, and no table so small that it is exact."""
    for name, value in (("EVIDENCE_STEPS", 40), ("PATCH_STEPS", 10), ("LEAVE_ONE_OUT_STEPS", 10)):
        monkeypatch.setattr(predictive, name, value)
    monkeypatch.setattr(objectives, "BLOCK_ROWS", {"cpu": 100})
    for part in (near_rows, objectives):
        monkeypatch.setattr(part, "MOST_EXACT", {"cpu": 0})


@pytest.fixture
def exact(monkeypatch):
    for part in (near_rows, objectives):
        monkeypatch.setattr(part, "MOST_EXACT", {"cpu": 10**6})


def table(rows: int = ROWS, targets: int = 1):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(rows, 2)) * [1.0, 100.0] + [5.0, 0.0]
    f = np.stack([np.sin(6.0 * X[:, 0] + c) * np.cos(0.05 * X[:, 1]) for c in range(targets)], 1)
    y = 50.0 + 7.0 * (f + 0.1 * rng.normal(size=f.shape))
    return X, y[:, 0] if targets == 1 else y


def regressor(**settings) -> OrthogonalGPRegressor:
    return OrthogonalGPRegressor(
        **{"n_neighbors": 20, "n_inducing": 15, "random_state": 0, "device": "cpu"} | settings
    )


X, Y = table()
NEW = table(600)[0][ROWS:]
RNG_NOISE = np.random.default_rng(2).normal(size=ROWS)


def test_a_rough_function_is_better_predicted_than_by_the_points_alone():
    truth = 50.0 + 7.0 * np.sin(6.0 * NEW[:, 0]) * np.cos(0.05 * NEW[:, 1])
    near = regressor().fit(X, Y)
    points = regressor(n_neighbors=0, n_residual=0, max_steps=100).fit(X, Y)
    errors = [np.sqrt(np.mean((gp.predict(NEW) - truth) ** 2)) for gp in (near, points)]
    assert errors[0] < 0.8 * errors[1]
    assert isinstance(near._fitted.predictor, NearPredictor)


@pytest.mark.parametrize("targets", [1, 2])
def test_the_small_table_is_the_exact_process(exact, targets):
    X, Y = table(120, targets)
    gp = regressor(validation_fraction=None).fit(X, Y)
    rows, model = gp._fitted.units, gp.model_
    x, new = (torch.from_numpy((part - rows.inputs.shift) / rows.inputs.scale) for part in (X, NEW))
    scaling = rows.targets.scaling
    y = ((Y.reshape(len(X), -1) - scaling.shift) / scaling.scale).T
    with torch.no_grad():
        K, k = (model.covariance.block(x, z).numpy() for z in (x, new))
        noise = model.likelihood.likelihood.noise.reshape(-1).expand(targets).numpy()
    noisy = [K + s * np.eye(len(X)) for s in noise]
    weights = [np.linalg.solve(A, t) for A, t in zip(noisy, y, strict=True)]
    expected = np.stack([k.T @ w for w in weights], 1) * scaling.scale + scaling.shift
    np.testing.assert_allclose(gp.predict(NEW).reshape(len(NEW), -1), expected, rtol=1e-4)
    log_dets = sum(np.linalg.slogdet(A)[1] for A in noisy)
    fits = sum(t @ w for t, w in zip(y, weights, strict=True))
    evidence = -0.5 * (log_dets + fits + targets * len(X) * np.log(2 * np.pi))
    evidence -= len(X) * np.log(scaling.scale).sum()
    assert gp.elbo_ == pytest.approx(evidence, abs=0.5)
    assert gp.elbo_ <= evidence + 1e-3


@pytest.mark.parametrize("settings", [{}, {"n_residual": "all"}], ids=["near", "all"])
def test_intervals_cover_what_they_say(settings):
    X, Y = table(1500)
    gp = regressor(**settings).fit(X[:800], Y[:800])
    low, high = gp.predict_interval(X[800:], 0.9)
    assert 0.85 < np.mean((Y[800:] >= low) & (Y[800:] <= high)) < 0.95


def test_all_rows_are_in_the_mean():
    gp = regressor(n_residual="all").fit(X, Y)
    assert len(gp.model_.basis.gamma) == ROWS
    assert gp.model_.near.on_mean
    # What is left for near rows is little: the mean of the basis alone is nearly that of all.
    alone, _ = gp.model_.without_near_rows().predict(gp._fitted.standardised(NEW))
    whole, _ = gp.model_.predict(gp._fitted.standardised(NEW))
    torch.testing.assert_close(alone, whole, rtol=0, atol=0.05)


@pytest.mark.parametrize("settings", [{}, {"n_residual": "all"}], ids=["near", "all"])
def test_files(settings, tmp_path):
    gp = regressor(**settings).fit(X, Y, sample_weight=np.linspace(0.5, 2.0, ROWS))
    gp.save(tmp_path / "whole")
    loaded = OrthogonalGPRegressor.load(tmp_path / "whole", device="cpu")
    for ours, expected in zip(
        loaded.predict(NEW, return_std=True), gp.predict(NEW, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)
    gp.save(tmp_path / "points", near_rows=False)
    points = OrthogonalGPRegressor.load(tmp_path / "points", device="cpu")
    assert points.model_.near is None
    assert np.isfinite(points.predict(NEW)).all()
    assert gp.model_.near is not None


def test_samples_and_covariances_are_those_of_the_predictions():
    gp = regressor().fit(X, Y)
    mean, std = gp.predict(NEW[:8], return_std=True)
    _, covariance = gp.predict(NEW[:8], return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    draws = gp.sample_y(NEW[:8], 4000)
    np.testing.assert_allclose(draws.mean(1), mean, atol=4.5 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.1 * covariance.max())


def test_the_same_rows_in_another_order_give_the_same_model():
    order = np.random.default_rng(1).permutation(ROWS)
    one, other = (regressor().fit(X[rows], Y[rows]) for rows in (np.arange(ROWS), order))
    np.testing.assert_allclose(one.predict(NEW), other.predict(NEW), rtol=1e-6)


def test_seeds():
    one, other = regressor().fit(X, Y), regressor().fit(X, Y)
    np.testing.assert_array_equal(one.predict(NEW), other.predict(NEW))


def test_duplicates_without_noise():
    twice = np.repeat(X[:100], 4, axis=0), np.repeat(np.sin(X[:100, 0]), 4)
    gp = regressor().fit(*twice)
    mean, std = gp.predict(X[:100], return_std=True)
    np.testing.assert_allclose(mean, np.sin(X[:100, 0]), atol=0.05)
    assert np.isfinite(std).all()


def copied_table(inputs: int = 20, copies: int = 30):
    """Rows whose noise is skewed, many of them at each input, and the mean of these."""
    rng = np.random.default_rng(0)
    at = rng.uniform(-3.0, 3.0, size=(inputs, 2))
    y = np.sin(at[:, :1]) + rng.exponential(size=(inputs, copies))
    order = rng.permutation(inputs * copies)
    return np.repeat(at, copies, axis=0)[order], y.ravel()[order], at, y.mean(axis=1)


@pytest.mark.parametrize("n_residual", [0, "all"])
def test_where_copies_are_more_than_near_rows_their_mean_counts(n_residual):
    X, y, at, mean = copied_table()
    found = regressor(n_neighbors=5, n_residual=n_residual).fit(X, y).predict(at)
    # A shrunken mean of 30 exponential draws; the smallest five of them have a mean near 0.1.
    assert abs(np.mean(found - mean)) < 0.05
    assert np.abs(found - mean).max() < 0.4


@pytest.mark.parametrize("weights", [False, True])
def test_rows_left_out_together_are_predicted_from_all_others(weights):
    """With all rows in the mean and near, as by the exact process of the others."""
    X, y, _, _ = copied_table(copies=8)
    gp = regressor().fit(X, y)
    weight = torch.linspace(0.5, 1.5, len(y)) if weights else None
    rows = Rows(gp._fitted.standardised(X), torch.as_tensor(y - y.mean()).float(), weight)
    rows = near_rows.in_canonical_order(rows)
    table = every_row.RowTable(gp.model_.without_near_rows(), rows, torch.arange(len(y)))
    trial = table.without_some(len(y), False, 1000, math.inf)
    out = trial.left_out.rows
    present = torch.ones(len(y), dtype=torch.bool)
    present[out] = False
    observed, k = table.observed[present], gp.model_.covariance
    with torch.no_grad():
        A = k.block(observed.x, observed.x).double() + observed.noise[0].diag()
        c = torch.linalg.solve(A, k.block(observed.x, rows.x[out]).double())
    torch.testing.assert_close(trial.left_out.mean[0], c.mT @ observed.y[0], rtol=0, atol=1e-3)


def test_a_kernel_of_ones_own_with_fixed_hyperparameters():
    kernel = ScaleKernel(MaternKernel(1.5))
    gp = regressor(kernel=kernel, train_hyperparameters=False).fit(X, Y)
    found = gp.model_.covariance.kernel
    assert found.base_kernel.lengthscale.item() == kernel.base_kernel.lengthscale.item()
    assert gp.n_iter_ == 0


def test_noise_may_be_less_than_gpytorch_allows(monkeypatch):
    monkeypatch.setattr(predictive, "EVIDENCE_STEPS", 150)
    x = np.linspace(0.0, 6.0, ROWS)[:, None]
    gp = regressor().fit(x, np.sin(x[:, 0]))
    assert gp.model_.likelihood.likelihood.noise.item() < 1e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_neighbors": -1}, "n_neighbors"),
        ({"n_neighbors": "many"}, "n_neighbors"),
        ({"n_neighbors": True}, "n_neighbors"),
        ({"likelihood": "student_t"}, "Gaussian noise"),
        ({"basis": "decoupled", "optimizer": "adam"}, "basis"),
        ({"n_residual": "all", "n_neighbors": 0}, "n_residual"),
        ({"n_residual": "most"}, "n_residual"),
        ({"n_residual": [700]}, "n_residual"),
        ({"n_inducing": -1, "n_residual": "auto"}, "n_inducing"),
        ({"objective": "evidence"}, "objective"),
        ({"objective": "leave_one_out", "n_neighbors": 0}, "objective"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        regressor(**settings).fit(X, Y)


def test_where_near_rows_cannot_serve_auto_does_without():
    gp = regressor(n_neighbors="auto", likelihood="laplace", max_steps=5, n_residual=5)
    assert gp.fit(X, Y).model_.near is None


def test_an_onnx_graph_says_what_it_lacks(tmp_path):
    pytest.importorskip("onnx")
    gp = regressor().fit(X, Y)
    with pytest.warns(UserWarning, match="ONNX"):
        gp.export_onnx(tmp_path / "graph.onnx")


@pytest.mark.parametrize("change", ["count", "on_beta", "x", "y", "weight"])
def test_rows_in_a_file_are_checked(change, tmp_path):
    gp = regressor().fit(X, Y, sample_weight=np.ones(ROWS))
    near = gp.model_.near
    if change == "count":
        near.count = -1
    elif change == "on_beta":
        near.on_beta = 1
    elif change == "weight":
        near.weight = -near.weight
    else:
        setattr(near, change, getattr(near, change)[:, :1])
    gp.save(tmp_path / "bad")
    with pytest.raises(FileError, match="near rows"):
        OrthogonalGPRegressor.load(tmp_path / "bad")


@pytest.mark.parametrize("settings", [{}, {"n_residual": "all"}], ids=["near", "all"])
def test_partial_fit_adds_rows_without_training(settings):
    gp = regressor(**settings).fit(X, Y)
    before, kernel = gp.predict(NEW), gp.model_.covariance.kernel.state_dict()
    more = np.repeat(NEW, 30, axis=0), np.repeat(before + 5.0, 30)
    gp.partial_fit(*more)
    assert len(gp.model_.near.x) == ROWS + len(more[0])
    moved = gp.predict(NEW) - before
    assert np.median(moved) == pytest.approx(5.0, abs=0.5)
    for name, value in gp.model_.covariance.kernel.state_dict().items():
        assert torch.equal(value, kernel[name])


def test_so_it_does_for_the_exact_process(exact):
    gp = regressor().fit(X[:150], Y[:150])
    assert gp.model_.near.count == 0
    few = np.sqrt(np.mean((gp.predict(X[200:]) - Y[200:]) ** 2))
    gp.partial_fit(X[150:200], Y[150:200], sample_weight=np.full(50, 2.0))
    assert gp.model_.near.count == 20
    assert np.sqrt(np.mean((gp.predict(X[200:]) - Y[200:]) ** 2)) < few


def test_there_may_be_fewer_rows_than_neighbours(exact):
    gp = regressor(n_neighbors=64).fit(X[:10], Y[:10])
    gp.partial_fit(X[10:20], Y[10:20])
    assert np.isfinite(gp.predict(NEW, return_std=True)).all()


@pytest.mark.parametrize("objective", ["auto", "leave_one_out", "bound"])
def test_objectives(objective):
    gp = regressor(objective=objective, max_steps=60).fit(X, Y)
    assert gp.model_.near is not None
    bounds = [row["bound"] for row in gp.history_]
    assert np.isfinite(bounds).all() == (objective == "bound")
    assert np.sqrt(np.mean((gp.predict(X) - Y) ** 2)) < 0.5 * Y.std()


def test_the_number_of_near_rows_and_the_mean_are_chosen(monkeypatch):
    """By left-out rows: more of either only where that predicts better."""
    monkeypatch.setattr(near_settings, "NEIGHBORS", (2, 40))
    smooth = np.sin(0.5 * X[:, 0])
    gp = regressor(n_neighbors="auto", n_inducing=40).fit(X, smooth + 0.3 * Y.std() * RNG_NOISE)
    rough = regressor(n_neighbors="auto", n_inducing=4).fit(X, Y)
    assert gp.model_.near.count == 2
    assert rough.model_.near.count == 40 or rough.model_.near.on_mean


@pytest.mark.parametrize("held", [True, False])
def test_products_with_all_rows_are_limited(held, monkeypatch):
    """By the values that they take, or, where those are held, by their number alone."""
    monkeypatch.setattr(every_row, "fits_in_memory", lambda x: held)
    monkeypatch.setattr(every_row, "MOST_VALUES", {"cpu": 30 * 100**2})
    monkeypatch.setattr(every_row, "MOST_PRODUCTS", {"cpu": 50})
    counts = {n: every_row._affordable_products(torch.zeros(n, 2)) for n in (10, 100, 200)}
    assert counts == {10: 50, 100: 50 if held else 30, 200: 7}


def test_what_calibrates_all_rows_in_the_mean_has_gone_as_far_as_they_have():
    smooth = np.sin(2.0 * X[:, 0])
    gp = regressor(n_inducing=3, n_residual=0).fit(X, smooth)
    x = gp._fitted.standardised(X)
    rows = Rows(x, torch.as_tensor(smooth, dtype=x.dtype))
    found = every_row.RowTable(gp.model_.without_near_rows(), rows, torch.arange(ROWS))

    def score(left_out):
        return -float((left_out.y - left_out.mean[0]).square().mean())

    short = found.without_some(2, False, 3, math.inf)
    assert not short.converged
    after = score(found.with_all_rows(short, 60, math.inf, score).left_out)
    assert after > 0.5 * score(short.left_out)
    # A single product leads nowhere from weights of which some are gone.
    worse = found.with_all_rows(short, 2, math.inf, score).left_out
    assert score(worse) >= score(short.left_out)


def test_near_rows_may_do_without_inducing_points(tmp_path):
    """Where all but near rows mislead: few inducing points, no noise, a file that remembers it."""
    gp = regressor(n_inducing=3, n_residual=0).fit(X, np.sign(np.sin(9.0 * X[:, 0])))
    assert not gp.model_.near.on_beta
    assert gp.model_.predictor().induced is None
    gp.save(tmp_path / "model")
    loaded = OrthogonalGPRegressor.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict(NEW), gp.predict(NEW))
    gp.partial_fit(NEW, gp.predict(NEW))
    assert not gp.model_.near.on_beta


def test_a_killed_search_goes_on_to_the_same_end(tmp_path):
    whole = regressor(checkpoint_dir=tmp_path / "whole").fit(X, Y)

    def killed(event):
        if event.kind == "report" and event.step > 20:
            raise RuntimeError("killed")

    folder, events = tmp_path / "killed", []
    with pytest.raises(RuntimeError, match="killed"):
        regressor(checkpoint_dir=folder, callbacks=[killed]).fit(X, Y)
    gp = regressor(checkpoint_dir=folder, callbacks=[events.append]).fit(X, Y)
    np.testing.assert_array_equal(gp.predict(NEW), whole.predict(NEW))
    assert events[0].kind == "start"
    assert events[0].history
    assert events[-1].kind == "end"
    steps = [[row["step"] for row in fit.history_] for fit in (gp, whole)]
    assert steps[0] == steps[1]


def test_an_interrupt_leaves_what_was_found():
    def interrupted(event):
        if event.kind == "report":
            raise KeyboardInterrupt

    whole = regressor().fit(X, Y)
    gp = regressor(callbacks=[interrupted]).fit(X, Y)
    assert gp.n_iter_ < whole.n_iter_
    assert np.isfinite(gp.predict(NEW)).all()


def test_settings_of_steps_are_said_to_have_no_effect():
    with pytest.warns(UserWarning, match="learning_rate, early_stopping have no effect"):
        regressor(learning_rate=0.1, early_stopping=True).fit(X, Y)
