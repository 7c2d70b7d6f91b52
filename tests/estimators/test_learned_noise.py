"""Fits that learn noise which changes with x."""

import pickle

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel, ScaleKernel
from sklearn.base import clone

from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, FileError, NumericalError
from orthogp.estimators import learned_noise, near_rows
from orthogp.execution import files
from orthogp.training import log_noise, objectives, predictive

ROWS, TEST_ROWS = 1500, 6000


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Few steps, few points, and no table so small that it is exact."""
    for name in ("EVIDENCE_STEPS", "PATCH_STEPS", "LEAVE_ONE_OUT_STEPS"):
        patch.setattr(predictive, name, 10)
    patch.setattr(objectives, "BLOCK_ROWS", {"cpu": 100})
    for part in (near_rows, objectives):
        patch.setattr(part, "MOST_EXACT", {"cpu": 0})
    patch.setattr(log_noise, "POINTS", 20)
    patch.setattr(log_noise, "STEPS", 100)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    make_quick(monkeypatch)


def table(rows: int, seed: int = 0, targets: int = 1, constant: bool = False):
    """y in units of its own, its noise growing tenfold along the first input, or falling."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, size=(rows, 2)) * [1.0, 100.0]
    slopes = [0.0 if constant else (-1.0) ** c * 0.4 for c in range(targets)]
    std = 0.3 * np.exp(np.outer(X[:, 0], slopes))
    f = np.stack([np.sin(X[:, 0] + c) + 0.005 * X[:, 1] for c in range(targets)], 1)
    y = 50.0 + 7.0 * (f + std * rng.normal(size=f.shape))
    return (X, y[:, 0], 7.0 * std[:, 0]) if targets == 1 else (X, y, 7.0 * std)


def regressor(**settings) -> OrthogonalGPRegressor:
    """With a kernel that suits the tables as it is."""
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale = 1.0
    return OrthogonalGPRegressor(
        **{
            "noise": "learned", "kernel": kernel, "train_hyperparameters": False,
            "noise_variance": 7.0**2 * 0.15, "n_neighbors": 40, "n_inducing": 30,
            "n_residual": 0, "random_state": 0, "device": "cpu",
        } | settings
    )  # fmt: skip


X, Y, _ = table(ROWS)
NEW, Y_NEW, STD_NEW = table(TEST_ROWS, seed=1)


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        return regressor().fit(X, Y)


def by_thirds(inside: np.ndarray) -> np.ndarray:
    third = np.digitize(NEW[:, 0], [-1.0, 1.0])
    return np.array([inside[third == k].mean() for k in range(3)])


def covered(gp: OrthogonalGPRegressor) -> np.ndarray:
    low, high = gp.predict_interval(NEW, 0.9)
    return by_thirds((low <= Y_NEW) & (high >= Y_NEW))


def test_intervals_cover_what_they_say_in_each_third_of_x(fitted):
    """A third has 2 000 test rows, so a coverage of 0.9 has a standard error of 0.007; 500
    training rows tell a standard deviation to 3 %, which moves it by 0.01 more. Three of both
    together are 0.036. With constant noise the outer thirds are off by far more."""
    assert fitted.noise_learned_
    np.testing.assert_allclose(covered(fitted), 0.9, atol=0.036)
    constant = regressor(noise="constant").fit(X, Y)
    assert not constant.noise_learned_
    assert np.abs(covered(constant) - 0.9).max() > 0.06
    gain = fitted.log_density(NEW, Y_NEW).mean() - constant.log_density(NEW, Y_NEW).mean()
    assert gain > 0.1


def test_the_standard_deviation_follows_the_noise(fitted):
    mean, std = fitted.predict(NEW, return_std=True)
    _, latent = fitted.predict_latent(NEW)
    noise = np.sqrt(std**2 - latent**2)
    assert np.sqrt(np.mean(np.log(noise / STD_NEW) ** 2)) < 0.15
    # What is known of the function knows nothing of the noise of a new observation.
    assert latent.max() < 0.5 * std.max()
    _, covariance = fitted.predict(NEW[:6], return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std[:6], rtol=1e-6)
    draws = fitted.sample_y(NEW[:6], 4000)
    np.testing.assert_allclose(draws.std(1), std[:6], rtol=0.08)
    _, summed, quantiles = fitted.predict_summary(NEW[:6], [0.05, 0.95])
    np.testing.assert_allclose(summed, std[:6], rtol=1e-5)
    expected = fitted.predict_quantiles(NEW[:6], [0.05, 0.95])
    np.testing.assert_allclose(quantiles, expected, rtol=1e-5)
    assert np.isfinite(mean).all()


def test_densities_integrate_to_one(fitted):
    grid = np.linspace(-60.0, 160.0, 4001)
    for row in NEW[:3]:
        density = np.exp(fitted.log_density(np.repeat(row[None], len(grid), 0), grid))
        assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1.0, abs=1e-3)


def test_constant_noise_is_kept_where_nothing_else_gains():
    X, Y, _ = table(800, constant=True)
    learned, constant = regressor().fit(X, Y), regressor(noise="constant").fit(X, Y)
    assert not learned.noise_learned_
    for ask in ("predict", "predict_interval"):
        np.testing.assert_array_equal(getattr(learned, ask)(NEW), getattr(constant, ask)(NEW))
    assert learned.elbo_ == constant.elbo_


def test_the_exact_process_of_a_small_table(monkeypatch):
    for part in (near_rows, objectives):
        monkeypatch.setattr(part, "MOST_EXACT", {"cpu": 10**6})
    gp = regressor().fit(X[:700], Y[:700])
    assert gp.noise_learned_
    assert gp.model_.near.count == 0
    np.testing.assert_allclose(covered(gp), 0.9, atol=0.05)


def test_hyperparameters_are_searched_for_with_the_noise_of_the_rows():
    gp = regressor(kernel=None, train_hyperparameters=True, max_steps=30).fit(X[:400], Y[:400])
    assert gp.noise_learned_
    # Those of the first search and of the second, which begins where the first has ended.
    assert gp.n_iter_ > 30
    steps = [row["step"] for row in gp.history_]
    assert steps == sorted(steps)
    assert gp.model_.likelihood.likelihood.noise_covar.raw_noise.requires_grad


def test_a_search_that_was_ended_goes_on_in_both_fits(tmp_path):
    """The same call again finds the checkpoints of either search, and ends the same."""
    settings = {"kernel": None, "train_hyperparameters": True, "max_steps": 15}
    one, other = (
        regressor(**settings, checkpoint_dir=tmp_path).fit(X[:400], Y[:400]) for _ in range(2)
    )
    assert one.noise_learned_
    assert any((tmp_path / "noise").iterdir())
    np.testing.assert_array_equal(one.predict_interval(NEW), other.predict_interval(NEW))


def test_the_fit_is_made_once_more_with_the_noise_of_every_row(fitted):
    weight = fitted.model_.near.weight
    assert weight.shape == (ROWS,)
    rows = fitted.model_.near.x[:, 0]
    # Rows of little noise weigh more.
    assert weight[rows < -1].mean() > 5 * weight[rows > 1].mean()


def test_several_targets_have_a_noise_each():
    X, Y, std = table(ROWS, targets=2)
    gp = regressor().fit(X, Y)
    assert gp.noise_learned_
    assert gp.model_.near.weight.shape == (2, ROWS)
    _, found = gp.predict(X, return_std=True)
    assert np.sqrt(np.mean(np.log(found / std) ** 2)) < 0.2


def test_all_rows_in_the_mean():
    gp = regressor(n_residual="all").fit(X[:600], Y[:600])
    assert gp.model_.near.on_mean
    assert gp.noise_learned_
    assert np.isfinite(gp.predict(NEW, return_std=True)).all()


def test_the_bound_gains(fitted):
    assert fitted.elbo_ > regressor(noise="constant").fit(X, Y).elbo_ + 100.0


def test_files_pickles_and_clones(fitted, tmp_path):
    gp = fitted
    gp.save(tmp_path / "model")
    gp.save(tmp_path / "points", near_rows=False)
    loaded = OrthogonalGPRegressor.load(tmp_path / "model", device="cpu")
    for other in (loaded, pickle.loads(pickle.dumps(gp))):
        assert other.noise_learned_
        for ask in ("predict_interval", "predict_latent"):
            np.testing.assert_array_equal(getattr(other, ask)(NEW), getattr(gp, ask)(NEW))
    points = OrthogonalGPRegressor.load(tmp_path / "points", device="cpu")
    ratio = np.divide(*(part.predict(NEW, return_std=True)[1] for part in (points, gp)))
    # Constant noise would be off by a factor of three.
    np.testing.assert_allclose(ratio, 1.0, atol=0.4)
    assert clone(loaded).noise == "learned"


def test_files_that_do_not_agree_are_refused(fitted, tmp_path):
    path = tmp_path / "model"
    fitted.save(path)
    tensors, header = files.read(path, "model")
    bad = {**tensors, "log_noise.basis.beta": tensors["log_noise.basis.beta"][:, :1]}
    files.write(path, "model", bad, header)
    with pytest.raises(FileError):
        OrthogonalGPRegressor.load(path, device="cpu")
    files.write(path, "model", tensors, {**header, "log_noise": None})
    with pytest.raises(FileError, match="which no part of the model has"):
        OrthogonalGPRegressor.load(path, device="cpu")


def test_more_rows_join_with_the_noise_at_their_inputs():
    gp = regressor(dtype="float64").fit(X[:600], Y[:600])
    gp.partial_fit(X[600:900], Y[600:900])
    weight, rows = gp.model_.near.weight, gp.model_.near.x[:, 0]
    assert weight.shape == (900,)
    assert weight[rows < -1].mean() > 5 * weight[rows > 1].mean()
    np.testing.assert_allclose(covered(gp), 0.9, atol=0.06)


def test_noise_that_is_said_takes_the_place_of_what_was_learned(fitted):
    _, std = fitted.predict(NEW[:20], return_std=True, noise_variance=1.0)
    _, latent = fitted.predict_latent(NEW[:20])
    scale = fitted._fitted.calibration.scales[0, 1].item()
    np.testing.assert_allclose(std**2, latent**2 + scale, rtol=1e-6)


def test_time_ends_it(monkeypatch):
    """With no time left after the first fit, there is no second."""
    refits = []
    monkeypatch.setattr(near_rows, "FIRST_SHARE", 1.0)
    monkeypatch.setattr(
        learned_noise, "expected_noise", lambda *found: refits.append(found) or 1 / 0
    )
    monkeypatch.setattr(log_noise, "STEPS", 10**6)
    monkeypatch.setattr(learned_noise, "TIME_SHARE", 1.0)
    gp = regressor(max_time=4.0).fit(X[:600], Y[:600])
    assert not refits
    assert np.isfinite(gp.predict(NEW)).all()


def test_what_fails_leaves_constant_noise(monkeypatch):
    def fail(*_, **__):
        raise NumericalError("lost")

    monkeypatch.setattr(learned_noise, "learn_log_noise", fail)
    assert not regressor().fit(X[:300], Y[:300]).noise_learned_


def test_few_rows_keep_constant_noise():
    assert not regressor().fit(X[:60], Y[:60]).noise_learned_


def test_what_is_refused(fitted, tmp_path):
    with pytest.raises(ConfigurationError, match="noise is 'loud'; expected 'constant' or"):
        regressor(noise="loud").fit(X, Y)
    with pytest.raises(ConfigurationError, match="pass one"):
        regressor(noise_variance=np.ones(ROWS)).fit(X, Y)
    with pytest.raises(ConfigurationError, match="one noise for all rows"):
        fitted.export_onnx(tmp_path / "graph")
