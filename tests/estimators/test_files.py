"""What a fitted estimator is after a file, a pickle, a copy, and as an ONNX graph."""

import copy
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import gpytorch
import joblib
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor, OrthogpError, storage
from orthogp.estimators.calibration import Calibration, LatentScales

SMALL = {"n_neighbors": 0, "n_inducing": 12, "n_residual": 12, "max_steps": 10, "random_state": 0}
RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(120, 2)) * [1.0, 50.0], columns=["width", "height"])
Y = 100 + 30 * np.sin(X["width"].to_numpy()) + RNG.normal(size=120)
LABELS = np.array(["low", "middle", "high"])[np.digitize(Y, [90, 110])]

CASES = {
    "one target": (OrthogonalGPRegressor, {}, Y),
    "a column": (OrthogonalGPRegressor, {"dtype": torch.float64}, Y[:, None]),
    "two targets": (OrthogonalGPRegressor, {"likelihood": "student_t"}, np.stack([Y, -Y], 1)),
    "counts": (OrthogonalGPRegressor, {"likelihood": "poisson"}, Y.round()),
    "given points": (OrthogonalGPRegressor, {"inducing_points": X.to_numpy()[:9]}, Y),
    "own kernel": (OrthogonalGPRegressor, {"kernel": gpytorch.kernels.PeriodicKernel()}, Y),
    "decoupled": (OrthogonalGPRegressor, {"basis": "decoupled", "optimizer": "adam"}, Y),
    "two classes": (OrthogonalGPClassifier, {}, Y > 100),
    "three classes": (OrthogonalGPClassifier, {}, LABELS),
    "softmax": (OrthogonalGPClassifier, {"likelihood": "softmax"}, LABELS.astype(object)),
}


@pytest.fixture(scope="module")
def fits():
    return {
        name: kind(**(SMALL | settings)).fit(X, y) for name, (kind, settings, y) in CASES.items()
    }


def calibrated(kind):
    """A fit whose held-out rows say that its predictions are too wide, or too narrow."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1500, 1))
    y = np.sin(inputs[:, 0]) + rng.standard_t(3, size=1500)
    if kind is OrthogonalGPClassifier:
        y = np.digitize(inputs[:, 0], [-0.5, 0.5])
    gp = kind(**SMALL, validation_fraction=0.4).fit(inputs, y)
    return gp, inputs[:200], y[:200]


@pytest.fixture(scope="module")
def calibrated_fits():
    return {kind: calibrated(kind) for kind in (OrthogonalGPRegressor, OrthogonalGPClassifier)}


def require_equal(first, second, inputs, y):
    """Bit for bit, whatever is asked."""
    assert np.array_equal(first.predict(inputs), second.predict(inputs))
    assert np.array_equal(first.log_density(inputs, y), second.log_density(inputs, y))
    assert np.array_equal(first.predict_latent(inputs), second.predict_latent(inputs))
    if isinstance(first, OrthogonalGPRegressor):
        for ask in ("predict_interval", "sample_y"):
            assert np.array_equal(getattr(first, ask)(inputs), getattr(second, ask)(inputs))
    else:
        assert np.array_equal(first.predict_proba(inputs), second.predict_proba(inputs))
        assert second.classes_.dtype == first.classes_.dtype
    assert (first.elbo_, first.n_iter_) == (second.elbo_, second.n_iter_)
    assert first.history_ == second.history_


@pytest.mark.parametrize("name", CASES)
def test_files(name, fits, tmp_path):
    kind, _, y = CASES[name]
    fits[name].save(tmp_path / "model.orthogp")
    loaded = kind.load(tmp_path / "model.orthogp")
    require_equal(fits[name], loaded, X, y)
    assert loaded.feature_names_in_.tolist() == ["width", "height"]
    assert loaded.n_features_in_ == 2
    # It is as good as new: it can go on, and start again with the same settings.
    assert loaded.partial_fit(X, y).n_iter_ == 20
    again = loaded.fit(X, y)
    if name != "own kernel":
        assert np.array_equal(again.predict(X), fits[name].predict(X))


@pytest.mark.parametrize("kind", [OrthogonalGPRegressor, OrthogonalGPClassifier])
def test_calibration_travels_along(kind, calibrated_fits, tmp_path):
    gp, inputs, y = calibrated_fits[kind]
    gp.save(tmp_path / "model.orthogp")
    if kind is OrthogonalGPRegressor:
        assert gp._fitted.calibration.quantile_map.values.shape[1] > 1
        assert gp._fitted.calibration.tails[0, 2] > 0
    else:
        assert gp._fitted.calibration != (1.0, 1.0)
    require_equal(gp, kind.load(tmp_path / "model.orthogp"), inputs, y)


@pytest.mark.parametrize("kind", [OrthogonalGPRegressor, OrthogonalGPClassifier])
def test_files_from_before_densities_and_classes_were_calibrated(kind, calibrated_fits, tmp_path):
    """What format 1.0 lacks stands for what it did."""
    gp, inputs, y = copy.deepcopy(calibrated_fits[kind])
    meta, tensors = gp._state()
    old = {k: v for k, v in tensors.items() if k not in ("density_tails", "latent_scales")}
    storage.save_model(tmp_path / "model.orthogp", gp.model_, meta, old)
    loaded = kind.load(tmp_path / "model.orthogp")
    if kind is OrthogonalGPRegressor:
        found = gp._fitted.calibration
        plain = Calibration.gaussian(found.scales, found.quantile_map)
    else:
        plain = LatentScales()
    gp._set_fitted(replace(gp._fitted, calibration=plain))
    require_equal(gp, loaded, inputs, y)


@pytest.mark.parametrize("name", CASES)
def test_pickles_and_copies(name, fits, tmp_path):
    _, _, y = CASES[name]
    require_equal(fits[name], pickle.loads(pickle.dumps(fits[name])), X, y)
    require_equal(fits[name], copy.deepcopy(fits[name]), X, y)
    joblib.dump(fits[name], tmp_path / "model.joblib")
    require_equal(fits[name], joblib.load(tmp_path / "model.joblib"), X, y)


@pytest.mark.cuda
def test_what_a_gpu_fitted_is_read_without_one(tmp_path):
    gp = OrthogonalGPRegressor(**SMALL, device="cuda").fit(X, Y)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(gp))
    gp.save(tmp_path / "model.orthogp")
    code = (
        "import pickle, sys; from orthogp import OrthogonalGPRegressor as R;"
        "a = pickle.load(open(sys.argv[1], 'rb')); b = R.load(sys.argv[2]);"
        "X = [[0.5, 1.0], [1.5, -20.0]];"
        "print(a.model_.basis.beta.device, *a.predict(X), *b.predict(X))"
    )
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, tmp_path / "model.pickle",
         tmp_path / "model.orthogp"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    expected = gp.predict(pd.DataFrame([[0.5, 1.0], [1.5, -20.0]], columns=X.columns))
    assert out[0] == "cpu"
    np.testing.assert_allclose([float(v) for v in out[1:]], [*expected, *expected], rtol=1e-6)


class OwnKernel(gpytorch.kernels.RBFKernel):
    """A kernel that no list knows."""


def test_a_custom_kernel_is_passed_in(tmp_path):
    gp = OrthogonalGPRegressor(**SMALL, kernel=OwnKernel()).fit(X, Y)
    gp.save(tmp_path / "model.orthogp")
    with pytest.raises(OrthogpError, match="needs its kernel"):
        OrthogonalGPRegressor.load(tmp_path / "model.orthogp")
    loaded = OrthogonalGPRegressor.load(tmp_path / "model.orthogp", kernel=OwnKernel())
    require_equal(gp, loaded, X, Y)


def test_a_file_of_the_other_kind_is_refused(fits, tmp_path):
    fits["one target"].save(tmp_path / "model.orthogp")
    with pytest.raises(OrthogpError, match="OrthogonalGPRegressor"):
        OrthogonalGPClassifier.load(tmp_path / "model.orthogp")


@pytest.mark.parametrize("name", ["two targets", "three classes"])
def test_a_file_that_lies_is_refused(name, fits, tmp_path):
    """Every value of the JSON replaced in turn, behind a valid checksum."""
    kind, _, _ = CASES[name]
    model, (meta, tensors) = fits[name].model_, fits[name]._state()
    path = tmp_path / "model.orthogp"
    harmless = {"settings", "own_kernel", "own_likelihood", "single", "elbo", "n_iter", "history"}
    for key in meta:
        for value in (None, -1, "x", [], {}, [None], {"kind": "O", "values": [[], {}, []]}):
            storage.save_model(path, model, json.loads(json.dumps(meta)) | {key: value}, tensors)
            try:
                kind.load(path)
            except OrthogpError:
                continue
            optional = key in ("feature_names_in", "columns", "target_transform")
            assert key in harmless or (optional and value is None), (key, value)
    for key, value in tensors.items():
        for wrong in (value[:0], value.new_full(value.shape, torch.nan), value.unsqueeze(0)):
            storage.save_model(path, model, meta, tensors | {key: wrong})
            with pytest.raises(OrthogpError):
                kind.load(path)


@pytest.mark.parametrize(
    ("name", "key", "wrong"),
    [
        ("one target", "variance_scales", [[1.0, 0.0]]),
        ("one target", "density_tails", [[0.0, 1.0, 0.5]]),
        ("one target", "density_tails", [[1.0, 1.0, 2.0]]),
        ("one target", "density_tails", [[1.0, 1.0, -0.1]]),
        ("two classes", "latent_scales", [1.0, 0.0]),
        ("two classes", "latent_scales", [-1.0, 1.0]),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(name, key, wrong, fits, tmp_path):
    model, (meta, tensors) = fits[name].model_, fits[name]._state()
    assert key in tensors
    lie = {key: torch.tensor(wrong, dtype=torch.float64)}
    storage.save_model(tmp_path / "model.orthogp", model, meta, tensors | lie)
    with pytest.raises(OrthogpError, match="calibration"):
        CASES[name][0].load(tmp_path / "model.orthogp")


@pytest.mark.parametrize("name", ["one target", "two targets", "counts", "three classes"])
def test_onnx_says_the_same(name, fits, tmp_path):
    gp = fits[name]
    gp.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    mean, variance = session.run(["mean", "variance"], {"x": X.to_numpy()})
    latent = name in ("counts", "three classes")
    expected, std = gp.predict_latent(X) if latent else gp.predict(X, return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(np.sqrt(variance), std, rtol=1e-6)


@pytest.mark.parametrize("kind", [OrthogonalGPRegressor, OrthogonalGPClassifier])
def test_onnx_is_calibrated(kind, calibrated_fits, tmp_path):
    gp, inputs, _ = calibrated_fits[kind]
    gp.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    mean, variance = session.run(["mean", "variance"], {"x": inputs})
    latent = kind is OrthogonalGPClassifier
    expected, std = gp.predict_latent(inputs) if latent else gp.predict(inputs, return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.sqrt(variance), std, rtol=1e-6)
