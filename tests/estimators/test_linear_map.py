"""Fits with a linear map of the inputs: where they have one, and that all answers know of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, FileError
from orthogp.estimators import near_rows
from orthogp.estimators.near_fit import with_mapped_inputs
from orthogp.estimators.scaling import Scaling, mapped
from orthogp.estimators.state import pack_scaling, unpack_scaling
from orthogp.training import Rows, objectives, predictive

D = 3
RNG = np.random.default_rng(0)
L = RNG.normal(size=(D, D))


def diagonal_table(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A function of x₀ − x₁, in units far from one."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, D))
    y = 5.0 + 2.0 * np.sin(3.0 * (X[:, 0] - X[:, 1])) + 0.1 * rng.normal(size=n)
    return X * [1.0, 1.0, 30.0] + [0.0, 7.0, 0.0], y


X, Y = diagonal_table(400)


@pytest.fixture(scope="module", params=["exact", "large"])
def fitted(request) -> OrthogonalGPRegressor:
    """A fit to the first 300 rows, by the exact process and by near rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_rows, "FEWEST_MAPPED", 100)
        steps = {"EVALUATIONS": 15, "EVIDENCE_STEPS": 10, "PATCH_STEPS": 5}
        steps |= {"LEAVE_ONE_OUT_STEPS": 5, "MAP_STEPS": 30, "MAP_ROUNDS": 2, "MAP_RATE": 0.1}
        for name, value in steps.items():
            patch.setattr(predictive, name, value)
        patch.setattr(predictive, "SMALLEST_MAP_BATCH", {"cpu": 60})
        patch.setattr(objectives, "BATCH", {"cpu": 60})
        if request.param == "large":
            for module in (objectives, near_rows):
                patch.setattr(module, "MOST_EXACT", {"cpu": 0})
        settings = {"n_inducing": 30, "n_residual": 0, "n_neighbors": 40}
        settings = settings if request.param == "large" else {}
        return OrthogonalGPRegressor(random_state=0, **settings).fit(X[:300], Y[:300])


def linear_map(gp: OrthogonalGPRegressor) -> np.ndarray | None:
    return gp._fitted.units.inputs.linear_map


def test_the_map_predicts_better(fitted):
    assert linear_map(fitted) is not None
    plain = OrthogonalGPRegressor(random_state=0, linear_map=None).fit(X[:300], Y[:300])
    errors = [np.mean((gp.predict(X[300:]) - Y[300:]) ** 2) for gp in (fitted, plain)]
    assert errors[0] < 0.7 * errors[1]


def test_a_saved_model_predicts_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = OrthogonalGPRegressor.load(tmp_path / "model")
    found, expected = loaded.predict(X[300:], return_std=True), fitted.predict(X[300:], True)
    np.testing.assert_array_equal(found, expected)
    assert linear_map(loaded).dtype == np.float32


def test_gradients_are_those_of_the_mean(fitted):
    step = 0.01 * X.std(axis=0)
    found = fitted.predict_gradient(X[300:310])
    for j in range(D):
        shift = np.eye(D)[j] * step
        ahead, behind = (fitted.predict(X[300:310] + s * shift) for s in (1.0, -1.0))
        expected = (ahead - behind) / (2.0 * step[j])
        # Near rows change between the two.
        np.testing.assert_allclose(found[:, j], expected, rtol=0.1, atol=0.1 / step[j] * 0.05)


def test_relevance_is_that_of_columns(fitted):
    """1/√(Σ_k L_kj²/ℓ_k²) of column j, averaged over the parts of the kernel."""
    found, parts = linear_map(fitted).astype(float), fitted.model_.covariance.kernel.kernels
    total = sum(float(part.outputscale) for part in parts)
    expected = np.zeros(D)
    for part in parts:
        scaled = found / part.base_kernel.lengthscale.detach().numpy().reshape(-1, 1)
        expected += float(part.outputscale) / total * np.sqrt((scaled**2).sum(axis=0))
    names = fitted.columns_.plan.sources
    np.testing.assert_allclose([fitted.relevance_[n] for n in names], expected, rtol=1e-5)
    assert list(fitted.relevance_)[-1] == names[2]


def test_rows_join_where_they_are(fitted):
    """A row that joins moves the prediction at its own place, and hardly one far from it."""
    x, far = np.array([[0.3, 6.0, 0.0]]), np.array([[0.3, 8.5, 0.0]])
    more = fitted.condition_on(np.repeat(x, 20, axis=0), np.full(20, 9.0))
    before, after = fitted.predict(np.vstack([x, far])), more.predict(np.vstack([x, far]))
    assert after[0] - before[0] > 0.5 * (9.0 - before[0])
    assert abs(after[1] - before[1]) < 0.2 * abs(after[0] - before[0])


@pytest.mark.parametrize("far", [1e4, 1e20, 1e300])
def test_far_from_all_rows_the_prior_is_left(fitted, far):
    """Squares of such distances are no numbers in float32."""
    mean, std = fitted.predict(far * np.array([[1.0, 0.0, 0.0], [1.0, -1.0, 1.0]]), True)
    at_once, _ = fitted.predict(np.full((1, D), 1e30), return_std=True)
    np.testing.assert_allclose(mean, at_once[0], rtol=1e-3)
    assert (std > 0.5 * Y.std()).all()


def test_explanations_add_up(fitted):
    found = fitted.explain(X[300:303], n_samples=4)
    total = found.base + found.values.sum(axis=1)
    np.testing.assert_allclose(total, fitted.predict(X[300:303]), rtol=1e-6)


def test_an_onnx_graph_maps_inputs(fitted, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    if fitted.model_.near.count:
        pytest.skip("a graph has no near rows")
    fitted.export_onnx(tmp_path / "graph.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"))
    mean, variance = session.run(["mean", "variance"], {"x": X[300:320]})
    expected, std = fitted.predict(X[300:320], return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-4)
    np.testing.assert_allclose(np.sqrt(variance), std, rtol=1e-3)


@pytest.mark.parametrize("settings", [
    {"linear_map": None}, {"kernel": ScaleKernel(RBFKernel())}, {"ard": False},
    {"standardize": False}, {"inducing_points": X[:5]}, {"train_hyperparameters": False},
])  # fmt: skip
def test_fits_without_a_map(settings, monkeypatch):
    monkeypatch.setattr(near_rows, "FEWEST_MAPPED", 10)
    gp = OrthogonalGPRegressor(max_steps=3, **settings).fit(X[:50], Y[:50])
    assert linear_map(gp) is None


def test_a_setting_that_is_none():
    with pytest.raises(ConfigurationError, match="linear_map is 'always'"):
        OrthogonalGPRegressor(linear_map="always").fit(X[:30], Y[:30])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_mapped_one_by_one(dtype):
    x = RNG.normal(size=(50, D))
    found = mapped(x, L.astype(dtype))
    np.testing.assert_allclose(
        found, x @ L.T, rtol=1e-4 if dtype == np.float32 else 1e-12, atol=1e-6
    )
    for rows in (slice(0, 1), slice(3, 10)):
        np.testing.assert_array_equal(mapped(x[rows], L.astype(dtype)), found[rows])


def test_copies_of_training_rows_are_where_these_are():
    """Training rows are rounded before they are mapped; what is predicted is not."""
    scaling = Scaling(np.zeros(D), np.ones(D))
    values, small = RNG.normal(size=(20, D)), L.astype(np.float32)
    rows = Rows(scaling.standardise(values, torch.float32), torch.zeros(20))
    rows = with_mapped_inputs(rows, small)
    new = replace(scaling, linear_map=small).standardise(values)
    assert torch.equal(rows.x.double(), new)
    assert with_mapped_inputs(rows, None) is rows


def test_numbers_that_are_far_away_stay_finite():
    far = np.array([[1e300, -1e300, 1e300]])
    assert np.isfinite(mapped(far, L.astype(np.float32))).all()


def test_units():
    scaling = Scaling(RNG.normal(size=D), RNG.uniform(0.5, 3.0, D), L)
    values = RNG.normal(size=(6, D))
    inputs = scaling.standardise(values).numpy()
    np.testing.assert_allclose(inputs, (values - scaling.shift) / scaling.scale @ L.T)
    np.testing.assert_allclose(scaling.in_units(inputs), values)
    # Of f = gᵀ inputs.
    g, step = RNG.normal(size=D), 1e-6
    moved = [scaling.standardise(values + step * e).numpy() @ g for e in np.eye(D)]
    expected = (np.stack(moved, 1) - (inputs @ g)[:, None]) / step
    np.testing.assert_allclose(
        scaling.derivatives(np.tile(g, (6, 1))), expected, rtol=1e-4, atol=1e-6
    )
    M = RNG.normal(size=(D, D))
    np.testing.assert_allclose(
        scaling.followed_by(M).standardise(values).numpy(), inputs @ M.T, atol=1e-12
    )


def test_files_with_a_map_that_is_none():
    tensors = pack_scaling("x", Scaling(np.zeros(D), np.ones(D), L))
    found = unpack_scaling("x", tensors, D)
    np.testing.assert_array_equal(found.linear_map, L)
    for wrong in (L[:2], np.full((D, D), np.nan), np.eye(D, dtype=int)):
        with pytest.raises(FileError):
            unpack_scaling("x", tensors | {"x_linear_map": torch.from_numpy(wrong)}, D)


def test_learned_noise_is_of_mapped_inputs(monkeypatch):
    """The second fit has the rows as the first has mapped them, and the map of the first."""
    monkeypatch.setattr(near_rows, "FEWEST_MAPPED", 100)
    # With this the map is taken although the evidence is as good.
    steps = {"LEAST_GAIN": -1.0, "MAP_ROUNDS": 1, "MAP_STEPS": 30, "EVALUATIONS": 15}
    for name, value in steps.items():
        monkeypatch.setattr(predictive, name, value)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(500, D))
    spread = 0.2 * np.exp(1.5 * np.tanh(2.0 * x[:, 2]))
    y = 3.0 * np.sin(x[:, 0] - x[:, 1]) + spread * rng.normal(size=500)
    gp = OrthogonalGPRegressor(random_state=0, noise="learned").fit(x[:400], y[:400])
    assert linear_map(gp) is not None
    assert gp.noise_learned_
    _, std = gp.predict(x[400:], return_std=True)
    assert np.corrcoef(np.log(std), np.log(spread[400:]))[0, 1] > 0.7
