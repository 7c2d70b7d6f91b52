"""Fits to rows whose noise is known, each its own."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators import near_rows
from orthogp.training import objectives, predictive

ROWS = 120
RNG = np.random.default_rng(0)
X = RNG.uniform(-3.0, 3.0, size=(ROWS, 2))
NEW = RNG.uniform(-3.0, 3.0, size=(30, 2))
NOISE = np.exp(RNG.normal(-2.0, 1.0, size=ROWS))
Y = 3.0 + np.sin(X[:, 0]) * X[:, 1] + np.sqrt(NOISE) * RNG.normal(size=ROWS)
LENGTHSCALE, VARIANCE = 1.3, 2.0


@pytest.fixture
def large(monkeypatch):
    """No table is so small that it is exact, and a search takes few steps."""
    for name in ("EVIDENCE_STEPS", "PATCH_STEPS", "LEAVE_ONE_OUT_STEPS"):
        monkeypatch.setattr(predictive, name, 10)
    monkeypatch.setattr(objectives, "BLOCK_ROWS", {"cpu": 60})
    for part in (near_rows, objectives):
        monkeypatch.setattr(part, "MOST_EXACT", {"cpu": 0})


def regressor(**settings) -> OrthogonalGPRegressor:
    """With kernel and noise as they are, in the units of the user."""
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = VARIANCE, LENGTHSCALE
    return OrthogonalGPRegressor(
        **{
            "kernel": kernel, "train_hyperparameters": False, "standardize": False,
            "dtype": "float64", "device": "cpu", "random_state": 0,
        } | settings
    )  # fmt: skip


def uncalibrated(gp: OrthogonalGPRegressor) -> OrthogonalGPRegressor:
    gp._set_fitted(
        type(gp._fitted)(
            **vars(gp._fitted) | {"calibration": gp._identity(gp._fitted.units.targets)}
        )
    )
    return gp


def kernel(A, B):
    squares = ((A[:, None] - B[None]) ** 2).sum(-1)
    return VARIANCE * np.exp(-0.5 * squares / LENGTHSCALE**2)


def exact(noise, y=Y):
    """Mean and variance of the function at new rows, and the log evidence."""
    A, k = kernel(X, X) + np.diag(noise), kernel(X, NEW)
    weights = np.linalg.solve(A, y)
    variance = VARIANCE - (k * np.linalg.solve(A, k)).sum(0)
    evidence = -0.5 * (y @ weights + np.linalg.slogdet(A)[1] + len(y) * np.log(2 * np.pi))
    return k.T @ weights, variance, evidence


def test_the_small_table_is_the_exact_process():
    gp = uncalibrated(regressor(noise_variance=NOISE).fit(X, Y))
    mean, variance, evidence = exact(NOISE)
    ours, std = gp.predict_latent(NEW)
    np.testing.assert_allclose(ours, mean, rtol=1e-4)
    np.testing.assert_allclose(std**2, variance, rtol=1e-3)
    assert gp.elbo_ == pytest.approx(evidence, abs=0.1)
    _, spread = gp.predict(NEW, return_std=True)
    np.testing.assert_allclose(spread**2, variance + NOISE.mean(), rtol=1e-3)


def test_scikit_learn_predicts_the_same():
    theirs = GaussianProcessRegressor(
        ConstantKernel(VARIANCE) * RBF(LENGTHSCALE), alpha=NOISE, optimizer=None
    ).fit(X, Y)
    ours = uncalibrated(regressor(noise_variance=NOISE).fit(X, Y))
    expected, std = theirs.predict(NEW, return_std=True)
    found, our_std = ours.predict_latent(NEW)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(our_std, std, rtol=1e-3)


def test_gpytorchs_likelihood_of_known_noise_is_the_same():
    likelihood = FixedNoiseGaussianLikelihood(torch.from_numpy(NOISE))
    one = regressor(noise_variance=NOISE).fit(X, Y)
    other = regressor(likelihood=likelihood).fit(X, Y)
    np.testing.assert_allclose(other.predict(NEW), one.predict(NEW), rtol=1e-6)
    assert other.elbo_ == pytest.approx(one.elbo_, rel=1e-6)


def test_near_rows_that_are_all_rows_are_the_exact_process(large):
    gp = uncalibrated(regressor(noise_variance=NOISE, n_neighbors=ROWS, n_inducing=10).fit(X, Y))
    mean, variance, _ = exact(NOISE)
    ours, std = gp.predict_latent(NEW)
    np.testing.assert_allclose(ours, mean, rtol=1e-4)
    np.testing.assert_allclose(std**2, variance, rtol=1e-3)


@pytest.mark.parametrize("settings", [{}, {"n_residual": "all", "n_neighbors": 20}])
def test_equal_noise_is_constant_noise(large, settings):
    """The same numbers by two ways: known for every row, and a likelihood that is not trained."""
    settings = settings | {"n_inducing": 15, "standardize": True}
    weight = RNG.uniform(0.5, 2.0, size=ROWS)
    one = regressor(noise_variance=np.full(ROWS, 0.2), **settings).fit(X, Y, weight)
    other = regressor(noise_variance=0.2, **settings).fit(X, Y, weight)
    for ask in ("predict", "predict_interval", "predict_latent"):
        np.testing.assert_allclose(getattr(one, ask)(NEW), getattr(other, ask)(NEW), rtol=1e-3)
    values = Y[:30]
    np.testing.assert_allclose(
        one.log_density(NEW, values), other.log_density(NEW, values), rtol=1e-3
    )
    assert one.elbo_ == pytest.approx(other.elbo_, rel=1e-4)


def test_a_weight_divides_the_noise():
    weight = RNG.uniform(0.5, 2.0, size=ROWS)
    one = regressor(noise_variance=NOISE).fit(X, Y, sample_weight=weight)
    other = regressor(noise_variance=NOISE / weight).fit(X, Y)
    np.testing.assert_allclose(one.predict(NEW), other.predict(NEW), rtol=1e-5)


def test_rows_of_weight_zero_are_left_out_with_their_noise():
    weight = np.ones(ROWS)
    weight[::3] = 0.0
    there = weight > 0
    one = regressor(noise_variance=NOISE).fit(X, Y, sample_weight=weight)
    other = regressor(noise_variance=NOISE[there]).fit(X[there], Y[there])
    np.testing.assert_allclose(one.predict(NEW), other.predict(NEW), rtol=1e-6)


@pytest.mark.parametrize("each", [False, True], ids=["alike", "each"])
def test_several_targets(each):
    noise = np.stack([NOISE, NOISE[::-1]], 1) if each else NOISE
    Y2 = np.stack([Y, Y[::-1]], 1)
    gp = uncalibrated(regressor(noise_variance=noise).fit(X, Y2))
    found, std = gp.predict_latent(NEW)
    for target in range(2):
        own = noise[:, target] if each else noise
        mean, variance, _ = exact(own, Y2[:, target])
        np.testing.assert_allclose(found[:, target], mean, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(std[:, target] ** 2, variance, rtol=1e-3)


def test_hyperparameters_are_learned_and_the_noise_is_not(large):
    gp = OrthogonalGPRegressor(
        noise_variance=NOISE, n_neighbors=20, n_inducing=10, random_state=0, device="cpu"
    ).fit(X, Y)
    scale = gp._fitted.units.targets.scaling.scale[0]
    noise = gp.model_.likelihood.likelihood.noise.item()
    assert noise * scale**2 == pytest.approx(NOISE.mean(), rel=1e-5)
    assert gp.n_iter_ > 0


def test_the_search_judges_rows_by_their_own_noise():
    """Its leave-one-out density is that of brute force, with the noise of the row left out."""
    gp = regressor(noise_variance=NOISE)
    data_noise = torch.from_numpy(NOISE / NOISE.mean())
    from orthogp.estimators.known_noise import fix_noise
    from orthogp.kernel.covariance import Covariance
    from orthogp.training import Rows
    from orthogp.training.hyperparameters import Hyperparameters

    found = Hyperparameters(
        Covariance(gp.kernel.double()), fix_noise(1, np.array(NOISE.mean()), np.ones(1))
    )
    rows = Rows(torch.from_numpy(X), torch.from_numpy(Y), None, data_noise)
    search = objectives.Objectives(found, rows, torch.Generator().manual_seed(0))
    mean, variance = search._exactly_left_out()
    for i in (0, 7):
        rest = np.arange(ROWS) != i
        A, k = kernel(X[rest], X[rest]) + np.diag(NOISE[rest]), kernel(X[rest], X[i : i + 1])
        assert mean[0, i].item() == pytest.approx((k.T @ np.linalg.solve(A, Y[rest]))[0], rel=1e-4)
        expected = VARIANCE - (k.T @ np.linalg.solve(A, k))[0, 0] + NOISE[i]
        assert variance[0, i].item() == pytest.approx(expected, rel=1e-4)


def test_new_observations_have_the_noise_that_is_said(large):
    gp = regressor(noise_variance=NOISE, n_neighbors=20, n_inducing=10).fit(X, Y)
    gp = uncalibrated(gp)
    noise = np.linspace(0.1, 5.0, len(NEW))
    mean, std = gp.predict(NEW, return_std=True, noise_variance=noise)
    same, latent = gp.predict_latent(NEW)
    np.testing.assert_allclose(mean, same, rtol=1e-10)
    np.testing.assert_allclose(std**2, latent**2 + noise, rtol=1e-6)
    low, high = gp.predict_interval(NEW, 0.9, noise_variance=noise)
    np.testing.assert_allclose(high - low, 2 * 1.6448536 * std, rtol=1e-6)
    values = mean + 0.3
    expected = -0.5 * (0.09 / std**2 + np.log(2 * np.pi * std**2))
    np.testing.assert_allclose(gp.log_density(NEW, values, noise), expected, rtol=1e-6)
    draws = gp.sample_y(NEW, 4000, noise_variance=noise)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.08)


def test_more_rows_join_with_their_noise():
    gp = regressor(noise_variance=NOISE[:100], n_neighbors=ROWS, n_inducing=10).fit(
        X[:100], Y[:100]
    )
    gp.set_params(noise_variance=NOISE[100:]).partial_fit(X[100:], Y[100:])
    mean, variance, _ = exact(NOISE)
    ours, _ = gp.predict_latent(NEW)
    np.testing.assert_allclose(ours, mean, rtol=1e-4)
    assert variance.min() > 0


@pytest.mark.parametrize("each", [False, True], ids=["alike", "each"])
def test_files(large, each, tmp_path):
    noise, y = (np.stack([NOISE, NOISE[::-1]], 1), np.stack([Y, -Y], 1)) if each else (NOISE, Y)
    gp = regressor(noise_variance=noise, n_neighbors=20, n_inducing=10).fit(X, y)
    gp.save(tmp_path / "model")
    loaded = OrthogonalGPRegressor.load(tmp_path / "model", device="cpu")
    for one, other in zip(
        loaded.predict(NEW, return_std=True), gp.predict(NEW, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(loaded.noise_variance, noise)
    assert not loaded.model_.likelihood.likelihood.noise_covar.raw_noise.requires_grad
    again = regressor(likelihood=FixedNoiseGaussianLikelihood(torch.from_numpy(noise.T))).fit(X, y)
    again.save(tmp_path / "fixed")
    loaded = OrthogonalGPRegressor.load(tmp_path / "fixed", device="cpu")
    np.testing.assert_allclose(loaded.noise_variance, noise)


def test_clones_have_the_noise():
    gp = clone(regressor(noise_variance=NOISE))
    np.testing.assert_array_equal(gp.noise_variance, NOISE)


@pytest.mark.parametrize(
    ("noise", "says"),
    [
        (NOISE[:-1], "one variance for every row"),
        (np.stack([NOISE] * 3, 1), "one variance for every row"),
        (-NOISE, "120 values that are zero or less"),
        (np.where(np.arange(ROWS) == 3, np.nan, NOISE), "NaN or infinite, the first in row 3"),
        (["loud"] * ROWS, "noise_variance has text"),
    ],
    ids=["short", "wide", "negative", "nan", "text"],
)
def test_bad_noise_is_refused(noise, says):
    with pytest.raises(DataError, match=says):
        regressor(noise_variance=noise).fit(X, Y)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_neighbors": 0}, "needs n_neighbors above 0"),
        ({"objective": "bound"}, "needs objective="),
        ({"likelihood": "student_t"}, "needs Gaussian noise"),
        ({"basis": "hybrid", "optimizer": "adam"}, "orthogonal or the coupled basis"),
    ],
)
@pytest.mark.parametrize("noise", [{"noise_variance": NOISE}, {"noise": "learned"}])
def test_what_row_noise_needs(settings, says, noise):
    with pytest.raises(ConfigurationError, match=says):
        regressor(**settings, **noise).fit(X, Y)


def test_other_refusals():
    with pytest.raises(ConfigurationError, match="needs Gaussian noise"):
        OrthogonalGPClassifier(noise_variance=NOISE, device="cpu").fit(X, Y > 3.0)
    likelihood = FixedNoiseGaussianLikelihood(torch.from_numpy(NOISE))
    with pytest.raises(ConfigurationError, match="both give the noise"):
        regressor(likelihood=likelihood, noise_variance=NOISE).fit(X, Y)
    likelihood = FixedNoiseGaussianLikelihood(torch.from_numpy(NOISE), True)
    with pytest.raises(ConfigurationError, match="learn_additional_noise=False"):
        regressor(likelihood=likelihood).fit(X, Y)
    by_steps = regressor(n_neighbors=0, n_inducing=10, max_steps=5).fit(X, Y)
    with pytest.raises(ConfigurationError, match="continues one without"):
        by_steps.set_params(noise_variance=NOISE).partial_fit(X, Y)
    gp = regressor(noise_variance=NOISE).fit(X, Y)
    with pytest.raises(DataError, match="one for every row"):
        gp.predict(NEW, noise_variance=NOISE)
    with pytest.raises(DataError, match="zero or less"):
        gp.predict_interval(NEW, noise_variance=0.0)
