"""`orthogp predict`: what the estimator says of every row, in order, whole or not at all."""

import errno
import os

import numpy as np
import pyarrow as pa
import pytest

from orthogp import OrthogpError
from orthogp.apps.tabular import writing
from orthogp.apps.tabular.model import TableModel
from orthogp.errors import FileError
from orthogp.tables import Tally
from tabular_cases import predict, read, run, sample, write


def test_predictions_are_the_estimators(models, tmp_path):
    found = predict(models / "numbers", models / "new.parquet", tmp_path / "out.parquet")
    model = TableModel.load(models / "numbers")
    X = model.encode(sample(seed=1), Tally())
    mean, std = model.estimator.predict(X, return_std=True)
    assert found.column_names == ["key", "mean", "std", "q0.05", "q0.5", "q0.95"]
    assert found.column("key").to_pylist() == sample().column("key").to_pylist()
    assert np.array_equal(found.column("mean"), mean)
    assert np.array_equal(found.column("std"), std)
    quantiles = model.estimator.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert np.array_equal(np.stack([found.column(i) for i in (3, 4, 5)], axis=1), quantiles)


def test_labels_and_probabilities_are_the_estimators(models, tmp_path):
    found = predict(models / "classes", models / "new.parquet", tmp_path / "out.parquet")
    model = TableModel.load(models / "classes")
    X = model.encode(sample(seed=1), Tally())
    assert found.column_names == ["key", "label", "p_high", "p_low", "p_mid"]
    assert found.column("label").to_pylist() == model.estimator.predict(X).tolist()
    shares = np.stack([found.column(i) for i in (2, 3, 4)], axis=1)
    assert np.array_equal(shares, model.estimator.predict_proba(X))


@pytest.mark.parametrize("model", ["numbers", "classes"])
@pytest.mark.parametrize("source", ["new.csv", "new.tsv.gz"])
@pytest.mark.parametrize("out", ["out.csv", "out.csv.gz", "out.parquet"])
def test_every_format_predicts_the_same(models, tmp_path, model, source, out):
    expected = predict(models / model, models / "new.parquet", tmp_path / "whole.parquet")
    found = predict(models / model, models / source, tmp_path / out)
    # A reader of CSV takes the keys for numbers.
    assert found.drop_columns("key").equals(expected.drop_columns("key"))


@pytest.mark.parametrize("source", ["new.csv", "new.parquet"])
def test_streaming_equals_the_whole(models, tmp_path, source):
    whole = predict(models / "numbers", models / source, tmp_path / "whole.csv")
    parts = predict(models / "numbers", models / source, tmp_path / "parts.csv", "--batch-rows", 7)
    assert parts.column("key").equals(whole.column("key"))
    for name in whole.column_names[1:]:
        np.testing.assert_allclose(parts.column(name), whole.column(name), rtol=1e-12)


def test_keys_stay_the_text_they_are(models, tmp_path):
    predict(models / "numbers", models / "new.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith('"000",')


def test_the_order_of_columns_does_not_matter_and_others_are_ignored(models, tmp_path):
    expected = predict(models / "numbers", models / "new.parquet", tmp_path / "one.parquet")
    new = sample(seed=1)
    turned = new.select(new.column_names[::-1]).append_column("more", pa.array(range(240)))
    path = write(turned, tmp_path / "turned.csv")
    printed = run("predict", models / "numbers", path, "--out", tmp_path / "two.parquet")
    assert read(tmp_path / "two.parquet").equals(expected)
    assert "does not use, ignored: 'label', 'y', 'same', 'more'" in printed


def test_neither_target_nor_key_is_needed(models, tmp_path):
    path = write(sample(seed=1).drop_columns(["y", "label", "key", "same"]), tmp_path / "t.csv")
    found = predict(models / "numbers", path, tmp_path / "out.csv")
    assert found.column_names[0] == "mean"


def test_another_id_and_other_levels(models, tmp_path):
    found = predict(models / "numbers", models / "new.csv", tmp_path / "out.csv", "--id", "count",
                    "--coverage-levels", "0.1, 0.975")  # fmt: skip
    assert found.column_names == ["count", "mean", "std", "q0.1", "q0.975"]
    assert found.column("count").to_pylist() == sample(seed=1).column("count").to_pylist()
    assert (np.asarray(found.column("q0.1")) < np.asarray(found.column("q0.975"))).all()


def test_what_training_has_not_seen_is_said(models, tmp_path):
    colours = ["pink", "pink", None, *["red"] * 237]
    new = sample(seed=1).set_column(4, "colour", pa.array(colours))
    path = write(new, tmp_path / "t.csv")
    printed = run("predict", models / "numbers", path, "--out", tmp_path / "out.csv")
    assert "2 values of 'colour' are levels that training has not seen" in printed
    assert "1 values of 'colour' are missing" in printed
    assert "240 rows in" in printed


def test_text_as_categories_of_arrow_is_the_same_text(models, tmp_path):
    expected = predict(models / "numbers", models / "new.parquet", tmp_path / "one.parquet")
    new = sample(seed=1)
    for name in ("colour", "key"):
        place = new.column_names.index(name)
        new = new.set_column(place, name, new.column(name).dictionary_encode())
    path = write(new, tmp_path / "t.parquet")
    assert predict(models / "numbers", path, tmp_path / "two.parquet").equals(expected)


REFUSED = {
    "lacking columns": (lambda t: t.drop_columns(["a", "flag"]), "'a', 'flag'"),
    "other types": (
        lambda t: t.set_column(1, "a", pa.array(["x"] * 240)),
        r"'a' \(string, not number\)|column 'a'.*'x'",
    ),
    "no rows": (lambda t: t.slice(0, 0), "has no rows"),
    "infinite": (
        lambda t: t.set_column(1, "a", pa.array([float("inf")] * 240)), "240 infinite"
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_do_not_fit_the_model(models, tmp_path, name, suffix):
    change, message = REFUSED[name]
    path = write(change(sample(seed=1)), tmp_path / f"t{suffix}")
    with pytest.raises(OrthogpError, match=message):
        run("predict", models / "numbers", path, "--out", tmp_path / "out.csv")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--coverage-levels", "0.5,1"], "distinct"),
        (["--coverage-levels", "half"], "'half'"),
        (["--batch-rows", "0"], "--batch-rows is 0"),
        (["--id", "zz"], "'zz'"),
    ],
)
def test_wrong_options(models, tmp_path, more, message):
    with pytest.raises(OrthogpError, match=message):
        run("predict", models / "numbers", models / "new.csv", "--out", tmp_path / "o.csv", *more)


def test_wrong_places(models, tmp_path):
    model, table = models / "numbers", models / "new.csv"
    with pytest.raises(OrthogpError, match="no name"):
        run("predict", model, table, "--out", tmp_path / "out.xlsx")
    with pytest.raises(OrthogpError, match="to be read"):
        run("predict", model, table, "--out", table)
    with pytest.raises(OrthogpError, match="for CSV files"):
        run("predict", model, table, "--out", tmp_path / "o.parquet", "--safe-csv")
    with pytest.raises(OrthogpError, match="predicts classes"):
        run("predict", models / "classes", table, "--out", tmp_path / "o.csv",
            "--coverage-levels", "0.5")  # fmt: skip
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(OrthogpError, match="is a folder"):
        run("predict", model, table, "--out", tmp_path / "folder.csv")


def test_an_id_called_like_a_prediction_is_refused(models, tmp_path):
    path = write(sample(seed=1).append_column("mean", pa.array(range(240))), tmp_path / "t.csv")
    with pytest.raises(OrthogpError, match="'mean' is also"):
        run("predict", models / "numbers", path, "--out", tmp_path / "o.csv", "--id", "mean")


def test_a_full_disk_leaves_what_was_there(models, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out.csv"
    out.write_text("old")
    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(FileError, match="No space left"):
        run("predict", models / "numbers", models / "new.csv", "--out", out)
    assert out.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_a_wrong_value_far_down_leaves_nothing(models, tmp_path):
    path = write(sample(seed=1), tmp_path / "t.csv")
    lines = path.read_text().splitlines()
    cells = lines[200].split(",")
    cells[1] = '"large"'
    path.write_text("\n".join([*lines[:200], ",".join(cells), *lines[201:]]))
    with pytest.raises(OrthogpError, match=r"column 'a'.*'large'"):
        run("predict", models / "numbers", path, "--out", tmp_path / "o.csv", "--batch-rows", 10)
    assert os.listdir(tmp_path) == ["t.csv"]


def test_an_interrupt_leaves_nothing(models, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(TableModel, "predictions", interrupted)
    printed = run("predict", models / "numbers", models / "new.csv", "--out", tmp_path / "o.csv",
               status=130)  # fmt: skip
    assert "was not written" in printed
    assert os.listdir(tmp_path) == []


def test_formulas_are_made_text_where_that_is_asked_for(models, tmp_path):
    keys = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "a=1", *["k"] * 234]
    new = sample(seed=1).set_column(0, "=key", pa.array(keys))
    path = write(new, tmp_path / "t.csv")
    options = ["--id", "=key"]
    plain = predict(models / "numbers", path, tmp_path / "plain.csv", *options)
    safe = predict(models / "numbers", path, tmp_path / "safe.csv", *options, "--safe-csv")
    assert plain.column("=key").to_pylist()[:6] == keys[:6]
    assert safe.column("'=key").to_pylist()[:6] == [*(f"'{key}" for key in keys[:5]), "a=1"]
    # Numbers stay numbers, with their sign.
    for name in ("mean", "q0.05"):
        assert safe.column(name).equals(plain.column(name))
    assert min(safe.column("q0.05").to_pylist()) < 0
