"""The table of bad input, one row a case: the right result, or one clear sentence and no file."""

import os
import re
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import tabular_cases as program
from bad_asks import FILES, LOW, OWN_QUESTIONS, QUESTIONS, fit, fitted, predict
from bad_fits import (
    FITS,
    LABELS,
    RIGHT,
    SAME,
    SETTINGS,
    SOUND,
    TARGET_FITS,
    X,
    Y,
    plain,
    predicted,
    small,
    sound,
)  # fmt: skip
from orthogp import OrthogonalGPClassifier as Classifier
from orthogp import OrthogonalGPRegressor as Regressor
from orthogp.errors import ConfigurationError, OrthogpError
from orthogp.estimators.checks import UnfittedError

KINDS = (Regressor, Classifier)
Ask = Callable[[Path], Any]
TABLE: dict[str, tuple[type[OrthogpError], str, Ask]] = {}


def fit_of(kind: type, X: Any, y: Any, weight: Any = None, **settings: Any) -> Ask:
    return lambda _: small(kind, **settings).fit(X, y, weight)


def question(kind: type, ask: Callable[[Any], Any], named: bool = False) -> Ask:
    return lambda _: ask(fitted(kind, named))


for kind in KINDS:
    for name, (error, says, inputs, *more) in FITS.items():
        given = {"y": LABELS if kind is Classifier else Y} | (more[0] if more else {})
        TABLE[f"{kind.__name__}: {name}"] = error, says, fit_of(kind, inputs, **given)
    for name, (error, says, ask, *named) in QUESTIONS.items():
        TABLE[f"{kind.__name__}: {name}"] = error, says, question(kind, ask, *named)
for name, (kind, error, says, y, *likelihood) in TARGET_FITS.items():
    given = {"likelihood": likelihood[0]} if likelihood else {}
    TABLE[f"{kind.__name__}: {name}"] = error, says, fit_of(kind, X, y, **given)
for name, (kind, error, says, ask) in OWN_QUESTIONS.items():
    TABLE[f"{kind.__name__}: {name}"] = error, says, question(kind, ask)
for name, values in SETTINGS.items():
    for value in values:
        says = f"^{name} is {re.escape(repr(value))}[,;]"
        ask = fit_of(Regressor, X, Y, **{name: value})
        TABLE[f"{name}={value!r}"] = ConfigurationError, says, ask
for name, (error, says, ask) in LOW.items():
    TABLE[name] = error, says, lambda _, ask=ask: ask()
TABLE |= FILES


@cache
def sample_files() -> dict[str, bytes]:
    """A table and a model of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program.write(program.sample(), folder / "table.csv")
        fit(folder, "model")
        return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path):
    for name, content in sample_files().items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "taken.csv").mkdir()
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


@pytest.fixture(autouse=True)
def no_warning_from_inside():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize("name", TABLE)
def test_refused_in_one_sentence_without_a_trace(name, folder):
    error, says, ask = TABLE[name]
    before = contents(folder)
    with pytest.raises(OrthogpError) as refusal:
        ask(folder)
    assert type(refusal.value) is error
    text = str(refusal.value)
    assert re.search(says, text)
    # scikit-learn's list of columns stands in lines, and its own checks insist on them.
    assert "\n" not in text or text.startswith("The feature names should match")
    assert contents(folder) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAME)
def test_taken_for_what_it_means(kind, name):
    gp = small(kind).fit(SAME[name], LABELS if kind is Classifier else Y)
    np.testing.assert_allclose(predicted(gp, SAME[name]), plain(kind), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SOUND)
def test_sound_all_the_same(kind, name):
    inputs, options = SOUND[name]
    y = LABELS if kind is Classifier else Y
    weight = options.get("weight")
    gp = small(kind, **{k: v for k, v in options.items() if k != "weight"}).fit(inputs, y, weight)
    assert sound(gp, inputs)


@pytest.mark.parametrize("name", RIGHT)
def test_right_in_spite_of_it(name):
    kind, y, options, holds = RIGHT[name]
    gp = small(kind, **options).fit(X, y)
    assert sound(gp, X)
    assert holds(gp)


@pytest.mark.parametrize("kind", KINDS)
def test_units_of_columns_cost_no_accuracy(kind):
    y = LABELS if kind is Classifier else Y
    gp = small(kind, max_steps=60).fit(X * [1e-30, 1.0, 1e30], y)
    assert gp.score(X * [1e-30, 1.0, 1e30], y) > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_rows_beyond_all_others_are_the_priors(kind):
    gp, far = fitted(kind), np.array([[1.7e308] * 3, [-1.7e308, 0.0, 1.0]])
    assert sound(gp, far)
    expected = [0.5, 0.5] if kind is Classifier else [Y.mean()]
    np.testing.assert_allclose(predicted(gp, far)[:, : len(expected)], [expected] * 2, rtol=1e-6)


def test_one_row_and_two():
    gp = small(Regressor).fit(X[:1], Y[:1])
    assert sound(gp, X)
    np.testing.assert_allclose(gp.predict(X[:1]), Y[:1])
    assert sound(small(Classifier).fit(X[:2], ["a", "b"]), X)


def test_checkpoints_that_cannot_be_written_cost_no_run(folder):
    with pytest.warns(UserWarning, match="not be written"):
        gp = small(Regressor, checkpoint_dir=folder / "old" / "below").fit(X, Y)
    np.testing.assert_array_equal(predicted(gp, X), plain(Regressor))


def test_the_program_predicts_by_name_whatever_the_order(folder):
    expected = predict(folder, "one.parquet")
    table = program.read(folder / "table.csv")
    names = [*table.column_names[::-1]]
    program.write(table.select(names).append_column("more", table["a"]), folder / "table.csv")
    assert predict(folder, "two.parquet").drop_columns("key").equals(expected.drop_columns("key"))


def test_the_program_refuses_a_fractional_count(folder):
    before = contents(folder)
    assert "n-inducing" in fit(folder, "m", "--n-inducing", "2.5", status=2)
    assert contents(folder) == before


def test_the_table_is_long_enough():
    assert len(TABLE) >= 60


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimator_before_its_fit(kind, tmp_path):
    for ask in (
        lambda gp: gp.predict(X), lambda gp: gp.predict_latent(X), lambda gp: gp.log_density(X, Y),
        lambda gp: gp.save(tmp_path / "m"), lambda gp: gp.export_onnx(tmp_path / "m"),
    ):  # fmt: skip
        with pytest.raises(UnfittedError, match="not fitted") as refusal:
            ask(kind())
        assert isinstance(refusal.value, NotFittedError)
    assert os.listdir(tmp_path) == []
