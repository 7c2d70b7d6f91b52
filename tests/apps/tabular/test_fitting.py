"""`orthogp fit`: the model it leaves, what it says, and what it refuses before any work."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor, OrthogpError, storage
from orthogp.apps.tabular.model import TableModel
from orthogp.errors import FileError
from orthogp.tables import Encoded, Encoder, Tally
from tabular_cases import SMALL, fit, predict, run, sample, write


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write(sample(), tmp_path_factory.mktemp("fit") / "t.parquet")


@pytest.fixture(scope="module")
def fitted(table):
    out = table.with_name("model")
    return out, fit(table, out, "--validation-fraction", "0")


def test_the_model_is_that_of_the_training_rows_alone(table, fitted):
    model = TableModel.load(fitted[0])
    order = np.random.default_rng(0).permutation(240)
    rows = np.sort(order[24:])
    table = sample().drop_columns(["key", "y", "label"]).take(pa.array(rows))
    own = OrthogonalGPRegressor(
        8, 8, max_steps=20, device="cpu", validation_fraction=0, random_state=0
    )
    own.fit(table, sample().column("y").to_numpy()[rows])
    assert own.columns_ == model.estimator.columns_
    assert np.array_equal(own.predict(table), model.estimator.predict(table))
    assert np.array_equal(own.predict(table), own.predict(model.encode(table, Tally())))
    assert "216 rows" in fitted[1]
    assert "24 rows drawn at random and held out before anything was fitted" in " ".join(
        fitted[1].split()
    )


def test_the_task_and_its_reason_are_said(fitted):
    assert "task: regression, because 'y' holds numbers that are not whole" in fitted[1]


def test_what_is_left_out_is_said(fitted):
    assert "constant in the training rows, so left out: 'same'" in fitted[1]
    assert "missing numbers predicted from a row's other numbers: 'b'" in fitted[1]


def test_the_estimators_own_load_reads_the_file(fitted):
    model = TableModel.load(fitted[0])
    X = model.encode(sample(), Tally())
    assert np.array_equal(
        OrthogonalGPRegressor.load(fitted[0]).predict(X), model.estimator.predict(X)
    )
    with pytest.raises(FileError, match="OrthogonalGPRegressor"):
        OrthogonalGPClassifier.load(fitted[0])


def test_csv_and_parquet_give_one_model(table, fitted, tmp_path):
    csv = write(sample(), tmp_path / "t.csv.gz")
    fit(csv, tmp_path / "model", "--validation-fraction", "0")
    one, other = TableModel.load(fitted[0]), TableModel.load(tmp_path / "model")
    assert one.plan == other.plan
    X = one.encode(sample(seed=1), Tally())
    assert np.array_equal(one.estimator.predict(X), other.estimator.predict(X))


def test_rows_without_a_target_are_dropped_and_counted(tmp_path):
    y = sample().column("y").to_pylist()
    y[3] = y[50] = None
    table = sample().set_column(8, "y", pa.array(y))
    printed = fit(write(table, tmp_path / "t.csv"), tmp_path / "model")
    assert "2 of 240 rows dropped: their target is missing" in printed


def test_a_class_that_only_the_test_rows_have(tmp_path):
    labels = ["common", "other"] * 120
    # Row 0 of this permutation is a test row.
    labels[np.random.default_rng(0).permutation(240)[0]] = "rare"
    table = sample().select(["a", "b"]).append_column("label", pa.array(labels))
    path, out = write(table, tmp_path / "t.csv"), tmp_path / "model"
    run("fit", path, "--target", "label", "--out", out, *SMALL)
    assert TableModel.load(out).estimator.classes_.tolist() == ["common", "other", "rare"]


def test_labels_of_every_type_come_back(tmp_path):
    for name, labels in {"bool": [True, False], "int": [3, 7]}.items():
        table = sample().select(["a"]).append_column("t", pa.array(labels * 120))
        path = write(table, tmp_path / f"{name}.csv")
        run("fit", path, "--target", "t", "--out", tmp_path / name, *SMALL)
        found = predict(tmp_path / name, path, tmp_path / f"{name}.parquet")
        assert set(found.column("label").to_pylist()) <= set(labels)
        words = [str(label).lower() for label in sorted(labels)]
        assert found.column_names == ["label", *(f"p_{word}" for word in words)]


def test_no_test_rows_no_report(table, tmp_path):
    assert "On the test rows" not in fit(table, tmp_path / "model", "--test-size", "0")


def test_a_report_that_fails_leaves_the_model(table, tmp_path, monkeypatch):
    from orthogp.plotting.pages import Page

    def full(self, path):
        raise FileError(f"{path} could not be written: No space left on device")

    monkeypatch.setattr(Page, "write", full)
    printed = fit(table, tmp_path / "model", "--report", tmp_path / "page.html", status=1)
    assert "the model is saved, but its report failed" in printed
    assert "No space left" in printed
    TableModel.load(tmp_path / "model")


REFUSED = {
    "no such target": (["--target", "price"], "'price'"),
    "no such column to drop": (["--drop", "a,zz"], "'zz'"),
    "no such id": (["--id", "zz"], "'zz'"),
    "the target as id": (["--id", "y"], "'y' is the target"),
    "nothing left": (["--drop", "key,a,b,count,colour,flag,same,label,<script>alert(1)</script>"],
                     "no columns beside"),
    "a wrong share": (["--test-size", "1.5"], "--test-size is 1.5"),
    "a wrong policy": (["--missing", "ignore"], "--missing"),
    "a wrong task": (["--task", "ranking"], "--task"),
    "missing values": (["--missing", "refuse"], r"'b' \(\d+\)"),
    "a wrong basis": (["--basis", "round"], "basis is 'round'"),
    "a wrong rate": (["--learning-rate", "-1"], "learning_rate is -1.0"),
    "a negative seed": (["--seed", "-1"], "--seed is -1"),
    "a page about nothing": (["--test-size", "0", "--json", "x.json"], "--test-size 0"),
    "a page nowhere": (["--report", "/dev/null/page.html"], "not be written"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(table, tmp_path, name):
    more, message = REFUSED[name]
    with pytest.raises(OrthogpError, match=message):
        run("fit", table, "--target", "y", "--out", tmp_path / "model", *SMALL, *more)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_refused(table, tmp_path):
    with pytest.raises(OrthogpError, match="no GPU"):
        fit(table, tmp_path / "model", "--device", "cuda")


@pytest.mark.parametrize(
    ("form", "doubt"), [("%Y-%m-%d", False), ("%d.%m.%Y %H:%M", False), ("%m/%d/%Y", True)]
)
def test_dates_are_taken_apart_whatever_their_form(tmp_path, form, doubt):
    hour, month = 5 * ("%H" in form), 12 if doubt else 28
    days = [datetime(2020, 1 if doubt else 1 + i // month, 1 + i % month, hour) for i in range(60)]
    rows = [f"{day.strftime(form)},{i % 7},{i + 0.5}" for i, day in enumerate(days)]
    (tmp_path / "t.csv").write_text("\n".join(["day,a,y", *rows, ""]))
    printed = run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "model", *SMALL)
    assert "dates taken apart: 'day'" in printed
    assert ("would fit as well" in " ".join(printed.split())) == doubt
    run("predict", tmp_path / "model", tmp_path / "t.csv", "--out", tmp_path / "out.csv")
    model = TableModel.load(tmp_path / "model")
    (column,) = model.plan.dates
    expected = pa.table({"day": pa.array(days, pa.timestamp("s")), "a": [i % 7 for i in range(60)]})
    if column.form is None or not doubt:
        found = pyarrow.csv.read_csv(tmp_path / "out.csv").column("mean").to_numpy()
        plan = replace(model.plan, dates=(replace(column, form=None),))
        X = Encoded(Encoder(plan).encode(expected, Tally()))
        np.testing.assert_allclose(model.estimator.predict(X), found, rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,y\n", "has no rows"),
        ("a,y\n1,2.5\n2,3.5\n", "at least 2"),
        ("a,y\n1,x\n2,x\n3,x\n", "one class"),
        ("a,y\n1,\n2,\n", "missing"),
        ("y\n1.5\n2\n", "no columns"),
    ],
)
def test_tables_with_nothing_to_learn(tmp_path, content, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(OrthogpError, match=message):
        run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "model", *SMALL)


def test_the_table_is_never_overwritten(table):
    before = table.read_bytes()
    with pytest.raises(OrthogpError, match="itself"):
        run("fit", table, "--target", "y", "--out", table)
    assert table.read_bytes() == before


INTERRUPTED = """
import os, signal, sys
from orthogp.apps.tabular import fitting
from orthogp.apps.tabular.commands import app

tell = fitting.Ending.__call__

def interrupt(self, event):
    tell(self, event)
    if event.kind == "report" and event.step == 100:
        os.kill(os.getpid(), signal.SIGINT)

fitting.Ending.__call__ = interrupt
# What runs in the background of a shell ignores it, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
app()
"""


def test_an_interrupted_fit_leaves_the_model_it_had_reached(table, tmp_path):
    out = tmp_path / "model"
    options = [*SMALL, "--n-neighbors", "0", "--max-steps", "100000"]
    options += ["--json", str(tmp_path / "r.json")]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "fit", table, "--target", "y", "--out", out, *options],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert f"interrupted; the model as it stood is in {out}, after 100 steps" in done.stdout
    assert TableModel.load(out).estimator.n_iter_ == 100
    assert '"interrupted": true' in (tmp_path / "r.json").read_text()
    assert "Traceback" not in done.stderr


def test_an_interrupt_before_there_is_a_model_writes_nothing(table, tmp_path, monkeypatch):
    from orthogp.apps.tabular import fitting

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "train", interrupted)
    assert "nothing was written" in fit(table, tmp_path / "model", status=130)
    assert os.listdir(tmp_path) == []


def damage(path, change):
    """The model's file with its description changed, and a checksum that matches."""
    saved = storage.load_model(path)
    change(saved.meta)
    storage.save_model(path, saved.model, saved.meta, saved.tensors)


def plan_in(meta):
    return meta["columns"]


DAMAGES = {
    "no table": lambda meta: meta.pop("extra"),
    "no plan": lambda meta: meta.pop("columns"),
    "another plan": lambda meta: plan_in(meta)["numbers"].pop(),
    "a median of text": lambda meta: plan_in(meta)["numbers"][0].update(median="os.system"),
    "an unknown task": lambda meta: meta["extra"]["table"].update(task="__import__"),
    "another task": lambda meta: meta["extra"]["table"].update(task="classification"),
    "a list as task": lambda meta: meta["extra"]["table"].update(task=[]),
    "a target that is no name": lambda meta: meta["extra"]["table"].update(target=1),
    "a list for all": lambda meta: meta.update(extra=[1]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_tampered_model_is_refused_in_a_sentence(table, fitted, tmp_path, name):
    path = tmp_path / "model"
    path.write_bytes(fitted[0].read_bytes())
    damage(path, DAMAGES[name])
    with pytest.raises(FileError) as refusal:
        run("predict", path, table, "--out", tmp_path / "out.csv")
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_model_that_was_cut_or_is_none_is_refused(table, fitted, tmp_path):
    path = tmp_path / "model"
    for content in (fitted[0].read_bytes()[:-10], b"", b"a,b\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(FileError, match="model"):
            run("predict", path, table, "--out", tmp_path / "out.csv")
