"""`orthogp predict` from folder to folder: a file each, taken up again, by several processes."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from orthogp import OrthogpError
from orthogp.apps.tabular import commands
from orthogp.apps.tabular.folders import balanced_shares, outline
from orthogp.apps.tabular.model import TableModel
from orthogp.apps.tabular.predicting import PredictRequest
from orthogp.execution.team import Team
from tabular_cases import predict, run, sample, write
from torchrun import torchrun

# Rows of each file; `b.pq` is in a folder that names a column.
SIZES = {"a.parquet": 50, "deep/er/c.parquet": 20, "year=2020/b.pq": 30, "z.parquet": 0}


@pytest.fixture
def folder(tmp_path):
    """The rows of one sample in files, with row groups of seven, and what is no table beside."""
    start, rows = 0, sample(seed=1)
    for name, count in SIZES.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(rows.slice(start, count), path, row_group_size=7)
        start += count
    (tmp_path / "in" / "_SUCCESS").touch()
    (tmp_path / "in" / "notes.csv").write_text("no,table\n")
    return tmp_path / "in"


def contents(folder):
    return {
        str(path.relative_to(folder)): pyarrow.parquet.ParquetFile(path).read()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_close(found, expected):
    """Alike but for the rounding of batches of other sizes."""
    assert found.schema.equals(expected.schema)
    for name in expected.column_names:
        if expected.schema.field(name).type == pa.float64():
            np.testing.assert_allclose(found.column(name), expected.column(name), rtol=1e-10)
        else:
            assert found.column(name).equals(expected.column(name))


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_every_file_has_its_own_as_if_predicted_alone(models, folder, tmp_path, kind):
    printed = run("predict", models / kind, folder, "--out", tmp_path / "out")
    found = contents(tmp_path / "out")
    assert list(found) == list(SIZES)
    assert "100 rows in 4 files written" in printed
    for name, count in SIZES.items():
        assert found[name].num_rows == count
        assert found[name].schema.equals(found["a.parquet"].schema)
        if count:
            whole = pyarrow.parquet.ParquetFile(folder / name).read()
            alone = write(whole, tmp_path / "alone.parquet")
            expected = predict(models / kind, alone, tmp_path / "expected.parquet")
            assert_close(found[name], expected)


def test_streamed_batches_keep_the_order(models, folder, tmp_path):
    run("predict", models / "numbers", folder, "--out", tmp_path / "out", "--batch-rows", 4)
    found = contents(tmp_path / "out")["a.parquet"].column("key").to_pylist()
    assert found == sample(seed=1).column("key").to_pylist()[:50]


def test_options_are_those_of_a_single_file(models, folder, tmp_path):
    run("predict", models / "numbers", folder, "--out", tmp_path / "out", "--id", "count",
        "--coverage-levels", "0.1,0.9")  # fmt: skip
    for table in contents(tmp_path / "out").values():
        assert table.column_names == ["count", "mean", "std", "q0.1", "q0.9"]


def test_what_is_finished_is_not_done_again(models, folder, tmp_path, monkeypatch):
    out, command = tmp_path / "out", ("predict", models / "numbers", folder, "--out")
    whole = run(*command, tmp_path / "whole")
    assert "finished already" not in whole
    predictions, done = TableModel.predictions, []

    def dying(model, X, levels):
        if len(done) == 10:
            raise KeyboardInterrupt
        done.append(len(X))
        return predictions(model, X, levels)

    monkeypatch.setattr(TableModel, "predictions", dying)
    assert "what is finished is in" in run(*command, out, status=130)
    left = {name: (out / name).stat().st_mtime_ns for name in contents(out)}
    assert 0 < len(left) < len(SIZES)
    # What a process leaves that is killed while it writes.
    (out / ".a.parquet.0123456789ab.tmp").write_bytes(b"PAR1")
    monkeypatch.setattr(TableModel, "predictions", predictions)
    printed = run(*command, out)
    assert f"{len(left)} of 4 files are finished already" in printed
    assert all((out / name).stat().st_mtime_ns == time for name, time in left.items())
    shutil.rmtree(out / "deep")
    assert "20 rows in 1 files written" in run(*command, out)
    assert "0 rows in 0 files written" in run(*command, out)
    for name, table in contents(tmp_path / "whole").items():
        assert contents(out)[name].equals(table)


REFUSED = {
    "model": (["classes"], [], "by another model"),
    "id": (["numbers"], ["--id", "a"], "with another --id"),
    "levels": (["numbers"], ["--coverage-levels", "0.5"], "with other --coverage-levels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_predictions_of_others_are_not_touched(models, folder, tmp_path, name):
    run("predict", models / "numbers", folder, "--out", tmp_path / "out")
    (model,), more, message = REFUSED[name]
    before = contents(tmp_path / "out")
    with pytest.raises(OrthogpError, match=message):
        run("predict", models / model, folder, "--out", tmp_path / "out", *more)
    assert contents(tmp_path / "out") == before


def test_a_changed_input_is_refused_and_a_lost_one_said(models, folder, tmp_path):
    command = ("predict", models / "numbers", folder, "--out", tmp_path / "out")
    run(*command)
    (folder / "a.parquet").unlink()
    assert "without an input in" in run(*command)
    write(sample(seed=2), folder / "a.parquet")
    with pytest.raises(OrthogpError, match="changed since"):
        run(*command)


def test_wrong_places(models, folder, tmp_path):
    command = ("predict", models / "numbers", folder, "--out")
    for place in (folder, folder / "out", tmp_path):
        with pytest.raises(OrthogpError, match=r"in the other|to be read"):
            run(*command, place)
    with pytest.raises(OrthogpError, match="for CSV files"):
        run(*command, tmp_path / "out", "--safe-csv")
    (tmp_path / "file").touch()
    with pytest.raises(OrthogpError, match="name a folder"):
        run(*command, tmp_path / "file")
    write(sample(), tmp_path / "there" / "own.parquet")
    with pytest.raises(OrthogpError, match="not written by"):
        run(*command, tmp_path / "there")
    assert not (tmp_path / "out").exists()


def test_a_wrong_file_is_named_and_the_others_stay(models, folder, tmp_path):
    wrong = folder / "deep" / "er" / "c.parquet"
    command = ("predict", models / "numbers", folder, "--out", tmp_path / "out")
    infinite = pa.array([float("inf")] * 20)
    write(sample(20).set_column(1, "a", infinite), wrong)
    with pytest.raises(OrthogpError, match=r"c\.parquet: .*infinite"):
        run(*command)
    write(sample(20).drop_columns("a"), wrong)
    with pytest.raises(OrthogpError, match=r"c\.parquet lacks"):
        run(*command)
    wrong.write_bytes(b"")
    with pytest.raises(OrthogpError, match=r"c\.parquet cannot"):
        run(*command)
    write(sample(20), wrong)
    run(*command)
    assert list(contents(tmp_path / "out")) == list(SIZES)


def test_a_folder_still_fits_in_one_file(models, folder, tmp_path):
    found = predict(models / "numbers", folder, tmp_path / "out.parquet")
    assert found.column("key").to_pylist() == sample(seed=1).column("key").to_pylist()[:100]


def test_two_processes_write_what_one_does(models, folder, tmp_path):
    for size in (40, 60, 80):
        write(sample(size, seed=3), folder / f"more-{size}.parquet")
    run("predict", models / "numbers", folder, "--out", tmp_path / "one")
    done = torchrun(
        "-m", "orthogp", "predict", models / "numbers", folder, "--out", tmp_path / "two"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("280 rows in 7 files written") == 1
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert list(one) == list(two)
    assert all(two[name].equals(table) for name, table in one.items())


def test_two_processes_do_not_write_one_file(models, folder, tmp_path):
    request = PredictRequest(
        models / "numbers", folder, tmp_path / "out.parquet", None, None, 100, False
    )
    with pytest.raises(OrthogpError, match="2 processes"):
        commands.run_predict(request, Team(0, 2))


def test_dealt_by_size():
    sizes = {"a": 10, "b": 1, "c": 6, "d": 5, "e": 0}
    assert balanced_shares(sizes, 2) == [["a", "b", "e"], ["c", "d"]]
    assert balanced_shares(sizes, 1) == [["a", "c", "d", "b", "e"]]
    assert balanced_shares({}, 3) == [[], [], []]


def test_an_outline_tells_contents_not_names_or_times(tmp_path):
    one, two = write(sample(), tmp_path / "a.parquet"), write(sample(), tmp_path / "b.parquet")
    os.utime(two, (0, 0))
    other = write(sample(seed=1), tmp_path / "c.parquet")
    assert outline(one) == outline(two)
    assert outline(one) != outline(other)
