"""The regressor: units, distributions, weights, several targets, odd data."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import PeriodicKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from scipy import stats
from scipy.integrate import cumulative_trapezoid
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import check_random_state

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor, OrthogpError
from orthogp.estimators import defaults
from orthogp.estimators import fitted as fitted_module
from orthogp.estimators.intake import hold_out
from orthogp.estimators.step_fit import StepFit
from orthogp.training import held_out_log_density

SMALL = {"n_neighbors": 0, "n_inducing": 20, "n_residual": 20, "max_steps": 20, "random_state": 0}


def make_data(count, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(count, 2)) * [1.0, 1000.0] + [5.0, 0.0]
    signal = np.sin(2 * X[:, 0]) + 0.3 * np.cos(X[:, 1] / 500)
    return X, 50 + 10 * (signal + 0.2 * rng.normal(size=count))


X, Y = make_data(150)
NEW, _ = make_data(40, seed=1)


@pytest.fixture(scope="module")
def fitted():
    return OrthogonalGPRegressor(**SMALL).fit(X, Y)


def small(**settings):
    return OrthogonalGPRegressor(**(SMALL | settings))


def test_it_learns_the_function():
    gp = OrthogonalGPRegressor(n_inducing=60, random_state=0).fit(X, Y)
    mean, std = gp.predict(X, return_std=True)
    assert gp.score(X, Y) > 0.9
    # The noise is 2 in the units of y.
    assert 1.5 < std.mean() < 3.5
    assert np.abs((Y - mean) / std).max() < 5


def test_units_of_y_are_the_users(fitted):
    shift, factor = -7.0, 250.0
    other = small().fit(X, shift + factor * Y)
    mean, std = fitted.predict(NEW, return_std=True)
    moved, widened = other.predict(NEW, return_std=True)
    np.testing.assert_allclose(moved, shift + factor * mean, rtol=1e-4)
    np.testing.assert_allclose(widened, factor * std, rtol=1e-4)
    np.testing.assert_allclose(
        other.log_density(X, shift + factor * Y),
        fitted.log_density(X, Y) - np.log(factor),
        rtol=1e-3,
        atol=1e-3,
    )
    assert other.elbo_ == pytest.approx(fitted.elbo_ - len(Y) * np.log(factor), rel=1e-4)


def test_units_of_x_are_the_users(fitted):
    other = small().fit(3.0 + 0.01 * X, Y)
    np.testing.assert_allclose(other.predict(3.0 + 0.01 * NEW), fitted.predict(NEW), rtol=1e-4)


def test_the_bound_is_below_the_evidence_in_the_units_of_y():
    gp = small(n_inducing=200, max_steps=150, dtype="float64", train_points=False).fit(X, Y)
    x = torch.from_numpy((X - X.mean(0)) / X.std(0))
    with torch.no_grad():
        K = gp.model_.covariance.block(x, x).numpy() * Y.var()
        noise = float(gp.model_.likelihood.likelihood.noise) * Y.var()
    evidence = stats.multivariate_normal.logpdf(Y - Y.mean(), cov=K + noise * np.eye(len(Y)))
    # Every row is a point of β, so the bound is tight but for the jitter and the last small steps.
    assert gp.elbo_ <= evidence
    assert gp.elbo_ == pytest.approx(evidence, abs=0.1)


def test_a_row_is_predicted_as_in_any_company(fitted, monkeypatch):
    mean, std = fitted.predict(NEW, return_std=True)
    for k in (0, 17):
        alone, width = fitted.predict(NEW[k : k + 1], return_std=True)
        np.testing.assert_allclose([alone[0], width[0]], [mean[k], std[k]], rtol=1e-12)
    quantiles = fitted.predict_quantiles(NEW, [0.2, 0.7])
    density = fitted.log_density(X, Y)
    monkeypatch.setattr(fitted_module, "CHUNK_ROWS", 7)
    np.testing.assert_allclose(fitted.predict(NEW), mean, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict_quantiles(NEW, [0.2, 0.7]), quantiles, rtol=1e-12)
    np.testing.assert_allclose(fitted.log_density(X, Y), density, rtol=1e-10)


def test_gaussian_quantiles_and_intervals(fitted):
    mean, std = fitted.predict(NEW, return_std=True)
    levels = [0.001, 0.25, 0.5, 0.99]
    expected = stats.norm.ppf(levels, mean[:, None], std[:, None])
    np.testing.assert_allclose(fitted.predict_quantiles(NEW, levels), expected, rtol=1e-10)
    low, high = fitted.predict_interval(NEW, coverage=0.5)
    lower, higher = fitted.predict_interval(NEW, coverage=0.95)
    assert (lower < low).all()
    assert (low < high).all()
    assert (high < higher).all()


def test_the_latent_is_the_observation_without_noise(fitted):
    mean, std = fitted.predict(NEW, return_std=True)
    latent, latent_std = fitted.predict_latent(NEW)
    noise = float(fitted.model_.likelihood.likelihood.noise.detach()) * Y.var()
    np.testing.assert_allclose(latent, mean)
    np.testing.assert_allclose(std**2 - latent_std**2, noise, rtol=1e-6)


def test_draws_have_the_predicted_mean_and_covariance(fitted):
    mean, covariance = fitted.predict(NEW[:6], return_cov=True)
    _, std = fitted.predict(NEW[:6], return_std=True)
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), std)
    draws = fitted.sample_y(NEW[:6], 20_000, random_state=1)
    assert draws.shape == (6, 20_000)
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.05 * std.max())
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.05 * covariance.max())
    assert np.array_equal(fitted.sample_y(NEW[:6], 2), fitted.sample_y(NEW[:6], 2))


def test_a_draw_of_many_rows_is_one_function_at_all_of_them(fitted):
    few, times, number = NEW[:3], 700, 400
    draws = fitted.sample_y(np.repeat(few, times, axis=0), number)
    assert draws.shape == (3 * times, number)
    mean, std = fitted.predict(few, return_std=True)
    latent_std = fitted.predict_latent(few)[1]
    each = draws.reshape(3, times, number)
    # What is left of noise in the mean of so many observations at one point counts for little.
    _, covariance = fitted.predict(few, return_cov=True)
    covariance = covariance - np.diag(std**2 - latent_std**2)
    error = np.sqrt(2 / number) * latent_std.max() ** 2
    np.testing.assert_allclose(np.cov(each.mean(1)), covariance, atol=5 * error)
    np.testing.assert_allclose(each.mean((1, 2)), mean, atol=5 * std.max() / np.sqrt(number))
    noise = each.std(1).mean(1)
    np.testing.assert_allclose(noise, np.sqrt(std**2 - latent_std**2), rtol=0.05)


def test_many_rows_of_another_kernel_are_drawn_independently_and_it_says_so():
    gp = small(kernel=RQKernel(), train_hyperparameters=False).fit(X, Y)
    many = np.repeat(NEW[:1], 2001, axis=0)
    with pytest.warns(UserWarning, match="drawn independently"):
        draws = gp.sample_y(many, 3)
    mean, std = gp.predict(NEW[:1], return_std=True)
    assert draws.mean() == pytest.approx(mean[0], abs=0.1 * std[0])
    assert draws.std() == pytest.approx(std[0], rel=0.05)


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
def test_densities_integrate_to_one(likelihood):
    # Calibration moves the quantiles of other noise than the Gaussian, not its density.
    gp = small(likelihood=likelihood, max_steps=10, validation_fraction=None).fit(X, Y)
    grid = np.linspace(-250, 350, 12_001)
    density = np.exp(gp.log_density(np.repeat(NEW[:1], len(grid), axis=0), grid))
    # A Student-t leaves some of it outside any grid.
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=5e-4)
    below = cumulative_trapezoid(density, grid, initial=0.0)
    levels = [0.1, 0.5, 0.9]
    found = np.interp(gp.predict_quantiles(NEW[:1], levels)[0], grid, below)
    np.testing.assert_allclose(found, levels, atol=5e-4)


def test_counts_are_counts():
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(3 + np.sin(2 * X[:, 0])))
    gp = small(likelihood="poisson", max_steps=150).fit(X, counts)
    assert gp.score(X, counts) > 0.6
    low, high = gp.predict_interval(X, coverage=0.9)
    assert np.array_equal(low, low.round())
    assert (low >= 0).all()
    assert ((low <= counts) & (counts <= high)).mean() > 0.85
    support = np.arange(400)
    density = np.exp(gp.log_density(np.repeat(NEW[:1], 400, axis=0), support))
    assert density.sum() == pytest.approx(1.0, abs=1e-6)
    draws = gp.sample_y(NEW[:2], 4)
    assert np.array_equal(draws, draws.round())
    with pytest.raises(OrthogpError, match="additive noise"):
        gp.predict(NEW, return_cov=True)


def test_held_out_rows_make_intervals_cover_heavy_tails(record_property):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2, 2, size=(40_000, 1))
    y = np.sin(2 * inputs[:, 0]) + 0.3 * rng.standard_t(2.5, size=40_000)
    train, test = slice(0, 30_000), slice(30_000, None)
    gp = OrthogonalGPRegressor(10, 10, max_steps=100, random_state=0)
    gp.fit(inputs[train], y[train])
    covered = {}
    for coverage in (0.5, 0.9, 0.98):
        low, high = gp.predict_interval(inputs[test], coverage)
        covered[coverage] = float(((low < y[test]) & (y[test] < high)).mean())
        # About three standard errors of a share of the 3000 rows that calibrate.
        error = 3 * np.sqrt(coverage * (1 - coverage) / 3000)
        assert covered[coverage] == pytest.approx(coverage, abs=error)
    assert 0.88 < covered[0.9] < 0.92
    mean, std = gp.predict(inputs[test], return_std=True)
    plain = float((np.abs(y[test] - mean) < 1.6449 * std).mean())
    assert plain > 0.93
    record_property("figure", f"heavy tails: 90 % interval covers {covered[0.9]:.1%}, Gaussian's "
                    f"own {plain:.1%}")  # fmt: skip


def test_targets_are_independent_and_share_points_and_kernel():
    both = np.column_stack([Y, -3 * Y**2])
    fixed = {"train_hyperparameters": False, "train_points": False, "n_residual": 0}
    gp = small(**fixed).fit(X, both)
    mean, std = gp.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (40, 2)
    assert gp.predict(NEW[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert gp.predict_quantiles(NEW, [0.1, 0.5, 0.9]).shape == (40, 2, 3)
    assert gp.sample_y(NEW, 4).shape == (40, 2, 4)
    assert gp.log_density(X, both).shape == (150,)
    assert gp.predict_interval(NEW)[0].shape == (40, 2)
    alone = [small(**fixed).fit(X, both[:, k]) for k in (0, 1)]
    for k in (0, 1):
        np.testing.assert_allclose(mean[:, k], alone[k].predict(NEW), rtol=1e-6)
    densities = [gp.log_density(X, both[:, k]) for k, gp in enumerate(alone)]
    np.testing.assert_allclose(gp.log_density(X, both), sum(densities), rtol=1e-5)
    assert gp.elbo_ == pytest.approx(alone[0].elbo_ + alone[1].elbo_, rel=1e-6)


def test_a_column_of_targets_stays_a_column(fitted):
    column = small().fit(X, Y[:, None])
    assert np.array_equal(column.predict(NEW), fitted.predict(NEW)[:, None])


def test_a_whole_weight_is_a_repeated_row():
    weight = np.arange(150) % 3
    settings = {"inducing_points": X[:20], "residual_points": X[20:40], "dtype": "float64"}
    weighted = small(**settings).fit(X, Y, sample_weight=weight)
    repeated = small(**settings).fit(np.repeat(X, weight, axis=0), np.repeat(Y, weight))
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, rel=1e-9)
    np.testing.assert_allclose(weighted.predict(NEW), repeated.predict(NEW), rtol=1e-6)


def test_early_stopping_keeps_the_best(monkeypatch):
    monkeypatch.setattr(defaults, "PATIENCE", 1)
    for name in ("_solve", "_train_on_all"):
        monkeypatch.setattr(StepFit, name, lambda *_: None)
    y = np.random.default_rng(0).permutation(Y)
    gp = small(early_stopping=True, validation_fraction=0.3, max_steps=5000, n_inducing=5)
    gp.set_params(n_residual=0, batch_size=16, learning_rate=0.3).fit(X, y)
    held_out = [row["held_out"] for row in gp.history_]
    assert gp.n_iter_ < 5000
    assert max(held_out) > held_out[-1]
    generator = torch.Generator().manual_seed(int(check_random_state(0).randint(2**31 - 1)))
    rows = gp._fitted.units.rows(X, y, None, torch.float32)
    _, held = hold_out(rows, gp.get_params(), generator)
    assert held_out_log_density(gp.model_, held) == pytest.approx(max(held_out), rel=1e-6)


def test_fits_start_afresh_and_warm_starts_go_on(fitted):
    gp = small().fit(X, Y).fit(X, Y)
    assert gp.n_iter_ == 20
    assert np.array_equal(gp.predict(NEW), fitted.predict(NEW))
    gp.set_params(warm_start=True).fit(X, Y)
    assert gp.n_iter_ == 40
    assert gp.elbo_ > fitted.elbo_


def test_partial_fit_keeps_points_and_units():
    gp = small(train_points=False, n_residual=10).partial_fit(X, Y)
    points, units = gp.model_.basis.beta.clone(), gp._fitted.units
    low = gp.log_density(X + 1.0, 2 * Y).mean()
    gp.partial_fit(X + 1.0, 2 * Y)
    assert torch.equal(gp.model_.basis.beta, points)
    assert gp._fitted.units is units
    assert gp.log_density(X + 1.0, 2 * Y).mean() > low
    assert [row["step"] for row in gp.history_] == [20, 40]
    with pytest.raises(OrthogpError, match="1 target"):
        gp.partial_fit(X, np.column_stack([Y, Y]))


@pytest.mark.filterwarnings("ignore:.*it is passed over")
def test_a_run_that_goes_on_is_not_resumed_from_the_one_before(tmp_path):
    gp = small(checkpoint_dir=tmp_path).fit(X, Y)
    again = small(checkpoint_dir=tmp_path).fit(X, Y)
    assert np.array_equal(gp.predict(NEW), again.predict(NEW))
    before = gp.predict(NEW)
    assert not np.array_equal(gp.partial_fit(X, Y).predict(NEW), before)


def test_points_and_noise_are_given_in_the_users_units():
    gp = small(
        inducing_points=X[:7], residual_points=X[7:12], noise_variance=9.0,
        train_points=False, train_hyperparameters=False, dtype="float64",
    ).fit(X, Y)  # fmt: skip
    units = gp._fitted.units.inputs
    beta = gp.model_.basis.beta.detach().numpy()
    np.testing.assert_allclose(beta * units.scale + units.shift, X[:7])
    assert gp.model_.basis.gamma.shape == (5, 2)
    _, std = gp.predict(NEW, return_std=True)
    np.testing.assert_allclose(std**2 - gp.predict_latent(NEW)[1] ** 2, 9.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("basis", "optimizer"),
    [
        ("coupled", "adam"), ("coupled", "natural"), ("orthogonal", "adam"),
        ("orthogonal", "natural"), ("hybrid", "adam"), ("decoupled", "adam"),
    ],
)  # fmt: skip
def test_the_six_methods(basis, optimizer):
    gp = small(basis=basis, optimizer=optimizer, max_steps=60).fit(X, Y)
    assert gp.score(X, Y) > 0.5
    assert gp.model_.basis.gamma.shape[0] == (0 if basis == "coupled" else 20)


def test_what_was_passed_in_is_left_alone():
    kernel, likelihood = ScaleKernel(PeriodicKernel()), GaussianLikelihood()
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in (kernel, likelihood)]
    data = X.copy(), Y.copy()
    gp = small(kernel=kernel, likelihood=likelihood, max_steps=5).fit(*data)
    for module, state in zip((kernel, likelihood), before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert np.array_equal(data[0], X)
    assert np.array_equal(data[1], Y)
    assert gp.get_params()["kernel"] is kernel
    assert clone(gp).kernel is not kernel


def test_seeds():
    first, same, other = (small(random_state=k).fit(X, Y).predict(NEW) for k in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_data_frames_are_checked_by_name():
    frame = pd.DataFrame(X, columns=["width", "height"])
    gp = small(max_steps=5).fit(frame, pd.Series(Y))
    assert gp.feature_names_in_.tolist() == ["width", "height"]
    assert gp.predict(frame).shape == (150,)
    with pytest.raises(ValueError, match="feature names"):
        gp.predict(frame.rename(columns={"width": "depth"}))


def test_inside_scikit_learn():
    scaler = MinMaxScaler().set_output(transform="pandas")
    pipeline = make_pipeline(scaler, small(max_steps=60))
    assert pipeline.fit(X, Y).score(X, Y) > 0.5
    pipeline.set_params(orthogonalgpregressor__max_steps=10)
    assert cross_val_score(pipeline, X, Y, cv=2).shape == (2,)
    grid = GridSearchCV(small(max_steps=5), {"n_inducing": np.array([2, 20])}, cv=2).fit(X, Y)
    assert grid.best_params_["n_inducing"] == 20


def test_callbacks_hear_of_every_report():
    heard = []
    gp = small(callbacks=[heard.append], verbose=True).fit(X, Y)
    assert [event.kind for event in heard] == ["start", "report", "end"]
    assert heard[1].report.bound == gp.history_[0]["bound"]


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (X[:1], Y[:1]),
        (X[:2], Y[:2]),
        (np.zeros((30, 2)), Y[:30]),
        (np.repeat(X[:3], 20, axis=0), np.repeat(Y[:3], 20)),
        (np.column_stack([X, np.full(150, 0.1)]), Y),
        (X, np.full(150, 3.25)),
        (1e9 + X, 1e12 + Y),
        (X.astype(np.float32), Y.astype(int)),
        (X.tolist(), Y.tolist()),
    ],
    ids=["one row", "two rows", "all rows alike", "duplicates", "constant column", "constant y",
         "far from zero", "other types", "lists"],
)  # fmt: skip
def test_odd_data_work(inputs, targets):
    gp = small().fit(inputs, targets)
    mean, std = gp.predict(inputs, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.abs(mean - np.mean(targets)).max() <= 2 * np.ptp(targets) + 1


@pytest.mark.parametrize("targets", [1, 2])
def test_a_summary_is_what_its_parts_are(targets):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 2))
    y = np.sin(X) + 0.1 * rng.normal(size=(300, 2))
    gp = OrthogonalGPRegressor(8, 10, max_steps=20, random_state=0)
    gp.fit(X, y[:, 0] if targets == 1 else y)
    mean, std, quantiles = gp.predict_summary(X, [0.1, 0.8])
    for found, expected in zip((mean, std), gp.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(quantiles, gp.predict_quantiles(X, [0.1, 0.8]))


def nothing_learned(estimator, X, y) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X, y)
    return any("no better than a constant" in str(w.message) for w in caught)


@pytest.mark.parametrize("rows", [300, 1200])
def test_a_fit_by_steps_that_learned_nothing_says_so(rows):
    """Judged by held-out rows where the table has enough of them."""
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(rows, 3)), rng.normal(size=rows)
    y = X[:, 0] + 0.1 * noise
    points = {"n_inducing": 20, "n_residual": 20, "n_neighbors": 0, "max_steps": 30}
    points["random_state"] = 0
    still = points | {"optimizer": "adam", "learning_rate": 1e-9}
    for estimator, target in ((OrthogonalGPRegressor, y), (OrthogonalGPClassifier, y > 0)):
        assert nothing_learned(estimator(**still), X, target)
        assert not nothing_learned(estimator(**points), X, target)


def test_a_fit_to_all_rows_that_learned_nothing_says_so():
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(300, 3)), rng.normal(size=300)
    quick = {"max_steps": 30, "random_state": 0}
    assert not nothing_learned(OrthogonalGPRegressor(**quick), X, X[:, 0] + 0.1 * noise)
    assert nothing_learned(OrthogonalGPRegressor(**quick), X, noise)
    # There is nothing that a constant could miss.
    assert not nothing_learned(OrthogonalGPRegressor(**quick), X, np.ones(300))


def test_torchs_default_device_is_not_the_estimators(tmp_path):
    """Under a default device without any numbers, everything comes out as on the CPU."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    found = []
    for default in ("cpu", "meta"):
        with torch.device(default):
            gp = OrthogonalGPRegressor(8, 8, max_steps=5, device="cpu", random_state=0)
            gp.fit(X, X[:, 0]).save(tmp_path / default)
            again = OrthogonalGPRegressor.load(tmp_path / default)
            parts = [gp.predict(X), *again.predict_interval(X), gp.sample_y(X[:5], 2, 0)]
            found.append([*parts, gp.log_density(X, X[:, 0]), gp.predict_quantiles(X, [0.1, 0.9])])
    for expected, value in zip(*found, strict=True):
        np.testing.assert_array_equal(value, expected)
