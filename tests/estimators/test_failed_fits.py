"""A fit is all or nothing: one that fails leaves the estimator exactly as it was."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, DataError, NumericalError
from orthogp.estimators import classifier, regressor, streamed
from orthogp.sources import ArrayTable

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(300, 2)), columns=["width", "height"])
Y = np.sin(3 * X["width"].to_numpy())
LABELS = np.where(Y > 0, "up", "down")
SMALL: dict[str, Any] = {
    "n_inducing": 10, "n_residual": 10, "max_steps": 10, "random_state": 0, "device": "cpu",
    "validation_fraction": 0.4, "n_neighbors": 0,
}  # fmt: skip
# Rows in other units, of other classes: nothing of theirs may be left behind.
OTHER = 100 + 50 * X
OTHER_TARGETS = {
    OrthogonalGPRegressor: 1e3 + 1e3 * Y,
    OrthogonalGPClassifier: np.array(["one", "two", "three"])[np.arange(300) % 3],
}
KINDS = (OrthogonalGPRegressor, OrthogonalGPClassifier)


def raises(event):
    if event.kind == "report":
        raise NumericalError("amid the training")


def broken(*_):
    raise NumericalError("amid the calibration")


def with_nan(values):
    out = np.array(values, dtype=np.float64)
    out[7] = np.nan
    return out


def with_infinity(values):
    out = np.array(values, dtype=np.float64)
    out[7] = np.inf
    return out


def without_label(labels):
    out = labels.astype(object)
    out[7] = None
    return out


# The error, settings, and what changes in X, y and the weights.
FAILURES: dict[str, tuple[type[Exception], dict[str, Any], dict[str, Any]]] = {
    "infinity in X": (DataError, {}, {"X": with_infinity(OTHER)}),
    "another width": (DataError, {}, {"X": with_infinity(RNG.normal(size=(300, 3)))}),
    "other names and a short y": (DataError, {}, {"X": OTHER.add_prefix("x"), "y": [1.0, 2.0]}),
    "a missing target": (DataError, {}, {}),
    "a negative weight": (DataError, {}, {"weight": -np.ones(300)}),
    "no points": (ConfigurationError, {"n_inducing": 0}, {}),
    "no such basis": (ConfigurationError, {"basis": "round"}, {}),
    "a likelihood misspelt": (ConfigurationError, {"likelihood": "gauss"}, {}),
    "no such rule": (ConfigurationError, {"schedule": "linear"}, {}),
    "points of another width": (DataError, {"inducing_points": np.zeros((4, 3))}, {}),
    "a callback": (NumericalError, {"callbacks": (raises,)}, {}),
    "the calibration": (NumericalError, {}, {}),
}
# Settings of a fresh start, at which one that goes on does not look again.
OF_A_START = ("no points", "no such basis", "a likelihood misspelt", "points of another width")
CASES = [
    (kind, name, method)
    for kind in KINDS
    for name in FAILURES
    for method in ("fit", "warm start", "partial_fit")
    if method == "fit" or name not in OF_A_START
]
# A source of arrays has no names, and is refused by itself where y is short.
STREAMED = [c for c in CASES if c[1] != "other names and a short y" and c[2] != "partial_fit"]


def first_fit(kind):
    return kind(**SMALL).fit(X, LABELS if kind is OrthogonalGPClassifier else Y)


@pytest.fixture(scope="module")
def fits():
    return {kind: first_fit(kind) for kind in KINDS}


def snapshot(gp, path) -> dict[str, Any]:
    """All that can be seen of an estimator, to the bit."""
    gp.save(path)
    ask = "predict_proba" if isinstance(gp, OrthogonalGPClassifier) else "predict_interval"
    return {
        "file": path.read_bytes(),
        "predictions": np.asarray(getattr(gp, ask)(X)).tobytes(),
        "latents": np.asarray(gp.predict_latent(X)).tobytes(),
        "classes": list(getattr(gp, "classes_", ())),
        "columns": (gp.n_features_in_, gp.feature_names_in_.tolist()),
        "run": (gp.elbo_, gp.n_iter_, gp.history_),
        "names": sorted(vars(gp)),
    }


def require_unchanged(gp, name, method, path, monkeypatch, streams) -> None:
    """Fits other rows in a way that fails, and compares."""
    before = snapshot(gp, path)
    (error, settings, changes), kind = FAILURES[name], type(gp)
    given = {"X": OTHER, "y": OTHER_TARGETS[kind], "weight": None} | changes
    if name == "a missing target":
        damage = with_nan if kind is OrthogonalGPRegressor else without_label
        given["y"] = damage(OTHER_TARGETS[kind])
    elif method != "fit" and kind is OrthogonalGPClassifier and "y" not in changes:
        given["y"] = LABELS
    if name == "the calibration":
        monkeypatch.setattr(regressor, "calibrate", broken)
        monkeypatch.setattr(classifier, "fit_latent_scales", broken)
    own = gp.get_params(deep=False)
    gp.set_params(**settings, warm_start=method == "warm start")
    fit = gp.partial_fit if method == "partial_fit" else gp.fit
    inputs, y, weight = given.values()
    rows = {"X": inputs, "y": y, "sample_weight": weight}
    if streams:
        rows = {"X": ArrayTable(np.asarray(inputs), np.asarray(y), weight)}
    with pytest.raises(error):
        fit(**rows)
    gp.set_params(**own)
    assert snapshot(gp, path) == before


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize(("kind", "name", "method"), CASES)
def test_arrays(kind, name, method, fits, tmp_path, monkeypatch):
    require_unchanged(fits[kind], name, method, tmp_path / "m", monkeypatch, streams=False)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize(("kind", "name", "method"), STREAMED)
def test_streams(kind, name, method, fits, tmp_path, monkeypatch):
    monkeypatch.setattr(streamed, "LOADED_BYTES", 0)
    require_unchanged(fits[kind], name, method, tmp_path / "m", monkeypatch, streams=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_fit_that_fails_leaves_nothing(kind):
    gp = kind(**SMALL)
    names = sorted(vars(gp))
    with pytest.raises(DataError):
        gp.fit(with_infinity(X), OTHER_TARGETS[kind])
    gp.set_params(callbacks=(raises,))
    with pytest.raises(NumericalError):
        gp.fit(X, OTHER_TARGETS[kind])
    assert sorted(vars(gp)) == names
    # Nor does it pass for one that has learned: the next call starts afresh.
    assert gp.set_params(callbacks=()).partial_fit(X, OTHER_TARGETS[kind]).n_iter_ == 10


def test_a_fit_without_names_forgets_those_of_the_one_before():
    gp = first_fit(OrthogonalGPRegressor).fit(X.to_numpy()[:, :1], Y)
    assert gp.n_features_in_ == 1
    assert not hasattr(gp, "feature_names_in_")
    assert gp.predict(X.to_numpy()[:, :1]).shape == (300,)
