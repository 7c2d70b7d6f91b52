"""Guaranteed intervals and sets on the command line: the estimator's own, with their promise."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from orthogp.apps.tabular import preparing
from orthogp.apps.tabular.model import TableModel
from orthogp.errors import ConfigurationError, FileError
from orthogp.estimators.conformal import CrossScores, promised_share
from tabular_cases import fit, predict, read, run, sample, write

ROWS = 120
QUICK = ("--no-train-hyperparameters", "--input-transform", "none")


def towns(seed: int) -> pa.Table:
    """A column of many levels, whose target statistics differ from fold to fold."""
    rng = np.random.default_rng(seed)
    names = [f"town {i}" for i in rng.integers(0, 40, ROWS)]
    return sample(ROWS, seed).append_column("town", pa.array(names))


@pytest.fixture(scope="module")
def guaranteed(tmp_path_factory):
    place = tmp_path_factory.mktemp("guaranteed")
    table = write(towns(0), place / "train.parquet")
    write(towns(1), place / "new.parquet")
    printed = fit(table, place / "numbers", *QUICK, "--coverage-guarantee", "cross", "--json",
               place / "numbers.json", "--report", place / "numbers.html")  # fmt: skip
    assert "Guaranteed: guaranteed_lower_0.9 to guaranteed_upper_0.9" in " ".join(printed.split())
    fit(table, place / "classes", *QUICK, "--coverage-guarantee", "split", "--json",
        place / "classes.json", target="label")  # fmt: skip
    return place


def test_intervals_are_those_of_every_folds_own_columns(guaranteed, tmp_path):
    out = tmp_path / "out.csv"
    printed = run("predict", guaranteed / "numbers", guaranteed / "new.parquet", "--out", out)
    estimator = TableModel.load(guaranteed / "numbers").estimator
    assert isinstance(estimator._fitted.scores, CrossScores)
    low, high = estimator.predict_interval(towns(1).select(list(estimator.feature_names_in_)))
    found = read(out)
    assert found.column_names[-2:] == ["guaranteed_lower_0.9", "guaranteed_upper_0.9"]
    np.testing.assert_allclose(found.column("guaranteed_lower_0.9"), low, rtol=1e-9)
    np.testing.assert_allclose(found.column("guaranteed_upper_0.9"), high, rtol=1e-9)
    # 108 rows in five folds: 0.8 − 1.6 / (108 / 5 + 1).
    assert f"a share of {0.8 - 1.6 / 22.6:.4g} or more (about 0.9 is usual)" in printed


def test_sets_are_the_estimators(guaranteed, tmp_path):
    new = guaranteed / "new.parquet"
    found = predict(guaranteed / "classes", new, tmp_path / "o.parquet", "--coverage", 0.8)
    estimator = TableModel.load(guaranteed / "classes").estimator
    rows = towns(1).select(list(estimator.feature_names_in_))
    expected = estimator.predict_set(rows, 0.8)
    sets = [set(text.split("|")) for text in found.column("guaranteed_set_0.8").to_pylist()]
    assert sets == [set(estimator.classes_[chosen]) for chosen in expected]
    assert any(len(chosen) > 1 for chosen in sets)


def test_the_report_has_the_promise_and_its_share_of_the_test_rows(guaranteed):
    numbers, classes = (
        json.loads((guaranteed / f"{name}.json").read_text()) for name in ("numbers", "classes")
    )
    assert "guaranteed on average" in numbers["guarantee"]
    assert "share of 0.9 or more of new rows" in classes["guarantee"]
    assert numbers["measures"]["figures"]["guaranteed_width_90"] > 0
    assert 0.7 < numbers["measures"]["figures"]["guaranteed_coverage_90"] <= 1
    assert 0.7 < classes["measures"]["figures"]["set_coverage_90"] <= 1
    assert 1 <= classes["measures"]["figures"]["set_size_90"] <= 3
    assert "Guaranteed: guaranteed_lower_0.9" in (guaranteed / "numbers.html").read_text()


def test_a_folder_has_them_too_and_empty_files_their_columns(guaranteed, tmp_path):
    for name, count in (("a", 9), ("b", 0)):
        write(towns(1).slice(0, count), tmp_path / "in" / f"{name}.parquet")
    arguments = ("predict", guaranteed / "classes", tmp_path / "in", "--out", tmp_path / "out")
    printed = run(*arguments)
    schemas = [pa.parquet.read_schema(tmp_path / "out" / f"{n}.parquet") for n in ("a", "b")]
    assert schemas[0].equals(schemas[1])
    assert schemas[0].names[-1] == "guaranteed_set_0.9"
    assert "guaranteed_set_0.9 holds the right class" in printed
    with pytest.raises(FileError, match="with another --coverage;"):
        run(*arguments, "--coverage", 0.8)


def test_what_cannot_be_promised_is_one_sentence(guaranteed, models, tmp_path, monkeypatch):
    new, out = guaranteed / "new.parquet", ("--out", tmp_path / "o.csv")
    with pytest.raises(ConfigurationError, match="fitted without --coverage-guarantee; fit with"):
        run("predict", models / "numbers", models / "new.csv", *out, "--coverage", 0.9)
    with pytest.raises(ConfigurationError, match="needs 999 rows"):
        run("predict", guaranteed / "classes", new, *out, "--coverage", 0.999)
    with pytest.raises(ConfigurationError, match="--coverage is 2; expected"):
        run("predict", guaranteed / "classes", new, *out, "--coverage", 2)
    with pytest.raises(ConfigurationError, match="'split' or 'cross'"):
        fit(guaranteed / "train.parquet", tmp_path / "m", "--coverage-guarantee", "both")
    monkeypatch.setattr(preparing, "WHOLE_BYTES", 0)
    with pytest.raises(ConfigurationError, match="needs a table that is read whole"):
        fit(guaranteed / "train.parquet", tmp_path / "m", "--coverage-guarantee", "split")


def test_the_share_that_folds_promise():
    cross = CrossScores((), np.zeros(1000), np.arange(1000) % 5)
    assert promised_share(cross, 0.9) == pytest.approx(0.792, abs=5e-4)
    assert promised_share(cross, 0.4) == 0.0
    assert promised_share(np.zeros(50), 0.9) == 0.9
