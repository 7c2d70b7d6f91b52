"""Classifiers with a map of the inputs: where they have one, and that all answers know of it."""

import time
from copy import deepcopy

import numpy as np
import pytest
import torch

from orthogp import OrthogonalGPClassifier
from orthogp.errors import FileError
from orthogp.estimators import class_map, near_rows
from orthogp.estimators.class_map import as_ramps
from orthogp.estimators.scaling import Ramps, Scaling, mapped
from orthogp.estimators.state import pack_scaling, unpack_scaling
from orthogp.training import input_map, map_search, sites
from orthogp.training.curved_map import InputMap

D = 3
RNG = np.random.default_rng(0)
RAMPS = Ramps(np.array([0, 0, 2]), np.array([-1.0, 0.5, 0.0]), np.array([0.5, 2.0, 0.1]))
L = np.hstack([np.eye(D), 0.3 * RNG.normal(size=(D, 3))])
SCALING = Scaling(RNG.normal(size=D), RNG.uniform(0.5, 3.0, D), L, RAMPS)
QUICK = {"n_inducing": 20, "n_residual": 20, "max_steps": 60, "random_state": 0}
QUICK |= {"validation_fraction": 0.25}


def table(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that alternate between levels, in units far from one."""
    rng = np.random.default_rng(1)
    level, x = rng.integers(6, size=n), rng.normal(size=(n, 2))
    y = np.array(["a", "b", "c"])[(level % 2) * (1 + (np.abs(x[:, 0]) < 0.5))]
    return np.column_stack([10.0 * level, x[:, 0], 30.0 * x[:, 1] + 7.0]), y


X, Y = table(900)


def quick_maps(patch: pytest.MonkeyPatch) -> None:
    """Maps of few steps, for small tables, that are taken for the smallest gain."""
    patch.setattr(near_rows, "FEWEST_MAPPED", 100)
    for name, value in {"MAP_STEPS": 15, "MAP_RATE": 0.05, "MAP_ROUNDS": 1, "ERRORS": 0.0}.items():
        patch.setattr(input_map, name, value)
    patch.setattr(map_search, "STEPS", 20)
    patch.setattr(map_search, "SMALLEST_BATCH", {"cpu": 100})
    for name in ("STEPS", "SCALE_STEPS"):
        patch.setattr(sites, name, 10)


@pytest.fixture(scope="module")
def fitted() -> OrthogonalGPClassifier:
    with pytest.MonkeyPatch.context() as patch:
        quick_maps(patch)
        return OrthogonalGPClassifier(**QUICK).fit(X[:600], Y[:600])


def inputs(gp: OrthogonalGPClassifier) -> Scaling:
    return gp._fitted.units.inputs


def by_hand(x: np.ndarray, linear_map: np.ndarray, ramps: Ramps) -> np.ndarray:
    """L of x and of the ramps, one number after the other."""
    found = np.empty((len(x), len(linear_map)))
    for i, row in enumerate(x):
        values = list(row)
        for column, low, high in zip(ramps.source, ramps.low, ramps.high, strict=True):
            values.append(np.interp(row[column], [low, high], [0.0, 1.0]))
        found[i] = linear_map @ values
    return found


def test_the_map_is_taken_and_predicts(fitted):
    assert inputs(fitted).ramps is not None
    assert fitted.score(X[600:], Y[600:]) > 0.8


def test_a_saved_model_predicts_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = OrthogonalGPClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    for part in ("source", "low", "high"):
        np.testing.assert_array_equal(
            getattr(inputs(loaded).ramps, part), getattr(inputs(fitted).ramps, part)
        )


def test_an_onnx_graph_bends_inputs(fitted, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    fitted.export_onnx(tmp_path / "graph.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"))
    mean, _ = session.run(["mean", "variance"], {"x": X[600:620]})
    # A graph has no near rows.
    model = deepcopy(fitted.model_)
    model.near = None
    expected, _ = model.predict(inputs(fitted).standardise(X[600:620], torch.float32))
    expected = expected.detach().numpy().T
    # Calibration scales the latents.
    np.testing.assert_allclose(mean, mean[0, 0] / expected[0, 0] * expected, atol=1e-3)


def test_columns_of_categories_beside_inputs_with_second_outputs(monkeypatch, tmp_path):
    """The inputs of a category share a lengthscale; a second output has one of its own."""
    pd = pytest.importorskip("pandas")
    quick_maps(monkeypatch)
    monkeypatch.setattr(input_map, "learn_additive_curves", lambda *given: None)
    numbers, level = RNG.normal(size=(900, 2)), RNG.integers(6, size=900)
    kind = np.array(["x", "y", "z"])[RNG.integers(3, size=900)]
    y = (level % 2 == 1) ^ (np.abs(numbers) < 0.5).any(axis=1)
    table = pd.DataFrame(numbers, columns=["u", "v"]).assign(kind=kind, level=level)
    gp = OrthogonalGPClassifier(**QUICK).fit(table[:600], y[:600])
    # One output an input: two numbers, three kinds and a level; and another one of the level.
    groups = gp._fitted.units.groups
    assert len(inputs(gp).linear_map) == len(groups) == 7
    assert sorted(np.bincount(groups).tolist()) == [1, 1, 1, 1, 3]
    for part in gp.model_.covariance.kernel.kernels:
        assert part.base_kernel.raw_lengthscale.numel() == 5
    assert set(gp.relevance_) == {"u", "v", "kind", "level"}
    gp.save(tmp_path / "model")
    loaded = OrthogonalGPClassifier.load(tmp_path / "model")
    rest = table[600:]
    np.testing.assert_array_equal(loaded.predict_proba(rest), gp.predict_proba(rest))


def test_explanations_add_up(fitted):
    found = fitted.explain(X[600:603], n_samples=4)
    total = found.base + found.values.sum(axis=1)
    assert found.values.shape == (3, D, 3)
    np.testing.assert_allclose(total, fitted.predict_proba(X[600:603]), rtol=1e-5, atol=1e-5)


def test_relevance_is_the_mean_slope(fitted):
    """Of column j the root of the mean square of what the map's outputs, over their lengthscales,
    change by between two knots."""
    scaling = inputs(fitted)
    rough, smooth = fitted.model_.covariance.kernel.kernels
    total = float((rough.outputscale + smooth.outputscale).detach())
    expected = np.zeros(D)
    for part in (rough, smooth):
        lengths = part.base_kernel.lengthscale.detach().double().numpy().reshape(-1)
        for j in range(D):
            own = scaling.ramps.source == j
            ends = np.append(scaling.ramps.low[own], scaling.ramps.high[own][-1])
            x = np.zeros((len(ends), D))
            x[:, j] = ends
            z = by_hand(x, scaling.linear_map.astype(float), scaling.ramps) / lengths
            slopes = np.linalg.norm(np.diff(z, axis=0), axis=1) / np.diff(ends)
            expected[j] += part.outputscale.item() / total * np.sqrt((slopes**2).mean())
    names = fitted.columns_.plan.sources
    np.testing.assert_allclose([fitted.relevance_[n] for n in names], expected, rtol=1e-4)


@pytest.mark.parametrize("settings", [
    {"linear_map": None}, {"ard": False}, {"standardize": False}, {"inducing_points": X[:5]},
    {"train_hyperparameters": False}, {"n_neighbors": 0}, {"residual_points": X[:5]},
])  # fmt: skip
def test_fits_without_a_map(settings, monkeypatch):
    monkeypatch.setattr(class_map, "learn_input_map", None)
    monkeypatch.setattr(near_rows, "FEWEST_MAPPED", 10)
    gp = OrthogonalGPClassifier(max_steps=3, **settings).fit(X[:100], Y[:100])
    assert inputs(gp).linear_map is None


def test_a_map_that_is_not_taken_changes_nothing(monkeypatch):
    quick_maps(monkeypatch)
    for name in ("ERRORS", "ERRORS_OF_INPUTS"):
        monkeypatch.setattr(input_map, name, 1e9)
    found, without = (
        OrthogonalGPClassifier(**QUICK, linear_map=setting).fit(X[:600], Y[:600])
        for setting in ("auto", None)
    )
    np.testing.assert_array_equal(found.predict_proba(X[600:]), without.predict_proba(X[600:]))


def test_small_tables_have_no_map(monkeypatch):
    monkeypatch.setattr(class_map, "learn_input_map", None)
    OrthogonalGPClassifier(max_steps=3).fit(X[:300], Y[:300])


def test_fits_that_go_on_keep_the_map(fitted, monkeypatch):
    gp = OrthogonalGPClassifier(**QUICK, warm_start=True)
    quick_maps(monkeypatch)
    gp.fit(X[:600], Y[:600])
    before = inputs(gp).linear_map
    assert before is not None
    monkeypatch.setattr(class_map, "learn_input_map", None)
    gp.fit(X[:600], Y[:600])
    np.testing.assert_array_equal(inputs(gp).linear_map, before)


def test_the_map_has_a_share_of_the_time_and_all_steps(monkeypatch):
    limits = []
    quick_maps(monkeypatch)

    def refused(*given) -> None:
        limits.append(given[-2:])

    monkeypatch.setattr(class_map, "learn_input_map", refused)
    start = time.monotonic()
    OrthogonalGPClassifier(**QUICK, max_time=30.0).fit(X[:600], Y[:600])
    deadline, steps = limits[0]
    spent = time.monotonic() - start
    assert 0 < deadline - start <= class_map.MAP_SHARE * 30.0 + spent
    assert steps == QUICK["max_steps"]


def test_ramps_are_those_of_the_curves():
    knots = torch.tensor([[-1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]).double()
    curves = torch.from_numpy(RNG.normal(size=(2, 3, 2)))
    curves[1, 2] = curves[1, 1]
    linear = torch.from_numpy(RNG.normal(size=(2, 2)))
    linear_map, ramps = as_ramps(InputMap(linear, knots, curves), torch.float64)
    assert len(ramps.source) == 3
    x = RNG.uniform(-2.0, 3.0, size=(40, 2))
    expected = x @ linear.numpy().T
    for j in range(2):
        for out in range(2):
            expected[:, out] += np.interp(x[:, j], knots[j], curves[j, :, out])
    found = mapped(x, linear_map, ramps)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_mapped_one_by_one(dtype):
    x = RNG.normal(size=(50, D))
    found = mapped(x, L.astype(dtype), RAMPS)
    np.testing.assert_allclose(found, by_hand(x, L, RAMPS), atol=1e-5)
    for rows in (slice(0, 1), slice(3, 10)):
        np.testing.assert_array_equal(mapped(x[rows], L.astype(dtype), RAMPS), found[rows])


def test_ramps_of_a_column_may_overlap():
    ramps = Ramps(
        np.array([1, 1, 1]), np.array([-1.0, -0.5, 0.2]), np.array([1.0, 0.3, 0.2 + 1e-9])
    )
    x = np.vstack([RNG.normal(size=(50, D)), np.full((1, D), 0.2)])
    np.testing.assert_allclose(mapped(x, L, ramps), by_hand(x, L, ramps), atol=1e-12)


def test_units():
    values = RNG.normal(size=(60, D))
    z = SCALING.standardise(values).numpy()
    np.testing.assert_allclose(z, by_hand((values - SCALING.shift) / SCALING.scale, L, RAMPS))
    again = SCALING.standardise(SCALING.in_units(z)).numpy()
    # Some points are looked for in vain, at the ends of ramps.
    distance = np.linalg.norm(again - z, axis=1)
    assert np.median(distance) < 1e-4
    assert distance.max() < 0.2 * np.linalg.norm(z.std(axis=0))
    far = SCALING.standardise(np.full((1, D), 1e300)).numpy()
    assert np.isfinite(far).all()


def test_files_with_ramps_that_are_none():
    tensors = pack_scaling("x", SCALING)
    found = unpack_scaling("x", tensors, D)
    values = RNG.normal(size=(6, D))
    assert torch.equal(found.standardise(values), SCALING.standardise(values))
    wrong = {
        "x_ramp_source": [torch.tensor([0, 0, 3]), torch.tensor([0, -1, 2])],
        "x_ramp_low": [torch.tensor([-1.0, 0.5, 0.1]), torch.tensor([-1.0, torch.nan, 0.0])],
        "x_ramp_high": [torch.tensor([0.5, 2.0])],
        "x_linear_map": [torch.from_numpy(L[:, :5])],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(FileError):
                unpack_scaling("x", tensors | {name: value}, D)
