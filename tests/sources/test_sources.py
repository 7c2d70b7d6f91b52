"""Tables in blocks: the same rows as in memory, checked, surveyed and fitted without it."""

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import DataError, FileError
from orthogp.estimators import streamed
from orthogp.estimators.scaling import Moments
from orthogp.sources import ArrayTable, DatasetTable, ParquetTable, as_source, blocks

ROWS = 600
SMALL: dict[str, Any] = {
    "n_neighbors": 0,
    "n_inducing": 12,
    "n_residual": 20,
    "max_steps": 30,
    "batch_size": 64,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"a": rng.normal(size=ROWS), "b": 5 + 10 * rng.normal(size=ROWS),
         "c": rng.integers(0, 4, ROWS), "d": rng.random(ROWS) < 0.5}
    )  # fmt: skip
    table["y"] = np.sin(table.a) + 0.01 * table.b + 0.1 * rng.normal(size=ROWS)
    table["weight"] = rng.random(ROWS)
    # A class that only the last file has.
    table["label"] = np.where(np.arange(ROWS) > 550, "rare", np.where(table.y > 0, "yes", "no"))
    return table


@pytest.fixture
def folder(frame, tmp_path):
    for k, (start, stop) in enumerate([(0, 250), (250, 251), (251, ROWS)]):
        frame[start:stop].to_parquet(tmp_path / f"part-{k}.parquet", row_group_size=70)
    (tmp_path / "notes.txt").write_text("no table")
    return tmp_path


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "ARRAY_ROWS", 90)
    monkeypatch.setattr(blocks, "DATASET_ROWS", 90)


@pytest.fixture
def always_streamed(monkeypatch, small_blocks):
    monkeypatch.setattr(streamed, "LOADED_BYTES", 0)


def memory_map(path, values):
    found = np.memmap(path, dtype=values.dtype, mode="w+", shape=values.shape)
    found[:] = values
    return found


INPUTS = ["a", "b", "c", "d"]


@pytest.mark.usefixtures("small_blocks")
def test_blocks_are_the_table(frame, folder):
    X, y = frame[INPUTS].to_numpy(np.float64, copy=True), frame.y.to_numpy(copy=True)
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    for source in (
        ParquetTable(folder, "y", INPUTS, "weight"),
        ArrayTable(memory_map(folder / "x.bin", X), y, frame.weight),
        DatasetTable(pairs),
        DatasetTable(PlainPairs(pairs)),
    ):
        assert len(source) == ROWS
        assert len(source.sizes) > 3
        parts = [source.read(k) for k in range(len(source.sizes))]
        assert [len(b.y) for b in parts] == list(source.sizes)
        np.testing.assert_array_equal(np.concatenate([b.X for b in parts]), X)
        np.testing.assert_array_equal(np.concatenate([b.y for b in parts]), y)
        weights = [b.weight for b in parts if b.weight is not None]
        if weights:
            np.testing.assert_array_equal(np.concatenate(weights), frame.weight)


class PlainPairs(Dataset):
    """Items one at a time, as most datasets have them."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, row):
        return self.pairs[row]


def test_a_small_file_is_fitted_as_its_frame_is(frame, folder):
    inputs = frame[[*INPUTS, "weight"]].astype(np.float64)
    expected = OrthogonalGPRegressor(**SMALL).fit(inputs, frame.y)
    source = ParquetTable(folder, "y", [*INPUTS, "weight"])
    found = OrthogonalGPRegressor(**SMALL).fit(source)
    assert found.feature_names_in_.tolist() == [*INPUTS, "weight"]
    # A frame has its columns one after the other, which sums them up in another order.
    np.testing.assert_allclose(found.predict(inputs), expected.predict(inputs), rtol=1e-9)
    assert found.elbo_ == pytest.approx(expected.elbo_, rel=1e-9)


def test_a_path_takes_every_other_column(frame, tmp_path):
    path = tmp_path / "table.parquet"
    frame.drop(columns="label").to_parquet(path)
    found = OrthogonalGPRegressor(**SMALL).fit(path, "y", sample_weight="weight")
    assert found.feature_names_in_.tolist() == INPUTS
    expected = OrthogonalGPRegressor(**SMALL).fit(frame[INPUTS], frame.y, frame.weight)
    predicted = found.predict(frame[INPUTS])
    np.testing.assert_allclose(predicted, expected.predict(frame[INPUTS]), rtol=1e-9)


@pytest.mark.usefixtures("always_streamed")
def test_a_stream_is_learned_from_like_arrays(frame, folder):
    X, y = frame[INPUTS].astype(np.float64), frame.y.to_numpy(copy=True)
    settings: dict[str, Any] = SMALL | {"max_steps": 100}
    expected = OrthogonalGPRegressor(**settings).fit(X, y)
    pairs = TensorDataset(torch.from_numpy(X.to_numpy()), torch.from_numpy(y))
    for given in (
        (ParquetTable(folder, "y", INPUTS),),
        (memory_map(folder / "x.bin", X.to_numpy()), y),
        (pairs,),
    ):
        gp = OrthogonalGPRegressor(**settings).fit(*given)
        table = X if hasattr(gp, "feature_names_in_") else X.to_numpy()
        units, same = gp._fitted.units, expected._fitted.units
        np.testing.assert_allclose(units.inputs.scale, same.inputs.scale, rtol=1e-12)
        np.testing.assert_allclose(
            units.targets.scaling.shift, same.targets.scaling.shift, rtol=1e-10
        )
        error, reference = (np.mean((p - y) ** 2) for p in (gp.predict(table), expected.predict(X)))
        assert error < 1.3 * reference
        # The bound counts every row, those held out for calibration too.
        assert gp.elbo_ == pytest.approx(expected.elbo_, abs=0.05 * ROWS)


@pytest.mark.usefixtures("always_streamed")
def test_rows_held_out_of_a_stream_are_not_trained_on(frame, folder, monkeypatch):
    fits = []
    original = streamed.streamed_data
    monkeypatch.setattr(
        "orthogp.estimators.base.streamed_data",
        lambda *args: fits.append(original(*args)) or fits[-1],
    )
    OrthogonalGPRegressor(**SMALL, validation_fraction=0.3).fit(ParquetTable(folder, "y", INPUTS))
    (data,) = fits
    assert len(data.bound_rows) == data.num_rows == ROWS
    assert len(data.held_out) == 180
    assert len(data.train) == 420
    parts = [rows.y for rows in data.train.chunks(1000)]
    both = torch.cat([*parts, data.held_out.y]).sort().values
    assert torch.equal(both, data.bound_rows.y.sort().values)
    assert not set(data.sample.y.tolist()) & set(data.held_out.y.tolist())


@pytest.mark.usefixtures("always_streamed")
def test_a_stream_of_labels(frame, folder):
    gp = OrthogonalGPClassifier(**SMALL).fit(ParquetTable(folder, "label", INPUTS))
    assert gp.classes_.tolist() == ["no", "rare", "yes"]
    assert gp.score(frame[INPUTS], frame.label) > 0.5


@pytest.mark.usefixtures("always_streamed")
def test_a_fit_goes_on_with_a_stream(frame, folder):
    gp = OrthogonalGPRegressor(**SMALL, warm_start=True).fit(frame[INPUTS], frame.y)
    units = gp._fitted.units
    gp.fit(ParquetTable(folder, "y", INPUTS))
    assert gp.n_iter_ == 60
    assert gp._fitted.units is units


@pytest.mark.usefixtures("always_streamed")
def test_rows_of_weight_zero_count_for_nothing(frame, tmp_path):
    table = frame.drop(columns=["label", "d"]).assign(weight=1.0)
    # A whole row group without weight, and targets in it that would spoil the scale.
    table.loc[100:199, ["weight", "y"]] = [0.0, 1e9]
    table.to_parquet(tmp_path / "table.parquet", row_group_size=100)
    gp = OrthogonalGPRegressor(**SMALL).fit(tmp_path, "y", sample_weight="weight")
    kept = np.r_[0:100, 200:ROWS]
    assert gp._fitted.units.targets.scaling.scale[0] == pytest.approx(frame.y[kept].std(ddof=0))


@pytest.mark.usefixtures("always_streamed")
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("a", np.inf, r"row group 1 .*part-0.* column 'a' has 1 infinite values"),
        ("y", np.inf, r"row group 1 .*part-0.* y .* row 5"),
        ("weight", -1.0, r"row group 1 .*part-0.* sample_weight"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(frame, tmp_path, column, value, message):
    table = frame.drop(columns="label")
    table.loc[75, column] = value
    table.to_parquet(tmp_path / "part-0.parquet", row_group_size=70)
    with pytest.raises(DataError, match=message):
        OrthogonalGPRegressor(**SMALL).fit(tmp_path, "y", sample_weight="weight")


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), torch.zeros(())


class Uneven(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, row):
        return torch.zeros(row + 1), 0.0


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda f: (f / "absent", "y"), FileError, "is not there"),
        (lambda f: (f / "notes.txt", "y"), FileError, "as Parquet"),
        (lambda f: (f, "z"), DataError, "no column z"),
        (lambda f: (f, None), DataError, "column to predict"),
        (lambda f: (f, np.zeros(3)), DataError, "column to predict"),
        (lambda f: (f, "y", np.ones(3)), DataError, "as sample_weight"),
        (lambda f: (ParquetTable(f, "y", INPUTS), "y"), DataError, "pass it alone"),
        (lambda f: (memory_map(f / "x", np.zeros((3, 2))), None), DataError, "y is None"),
        (lambda f: (memory_map(f / "x", np.zeros((3, 2))), [1.0]), DataError, "X has 3 rows"),
        (lambda f: (memory_map(f / "x", np.zeros(3)), [1.0]), DataError, "has shape"),
        (lambda f: (Endless(),), DataError, "no length"),
        (lambda f: (TensorDataset(torch.zeros(0, 2), torch.zeros(0)),), DataError, "no items"),
        (lambda f: (Uneven(),), DataError, "not pairs"),
    ],
)
def test_what_is_no_table_is_refused(folder, given, error, message):
    with pytest.raises(error, match=message):
        OrthogonalGPRegressor(**SMALL).fit(*given(folder))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="no Parquet"):
        ParquetTable(tmp_path, "y")


def test_arrays_are_no_source():
    assert as_source(np.zeros((2, 2)), np.zeros(2), None) is None


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_moments_of_parts_are_those_of_the_whole(scale):
    rng = np.random.default_rng(1)
    values, weight = scale * (3 + rng.normal(size=(50, 4))), rng.random(50)
    values[:, 3] = scale
    whole = Moments.of(values, weight, "X").scaling()
    parts = [Moments.of(values[s], weight[s], "X") for s in (slice(7), slice(7, 8), slice(8, 50))]
    found = parts[0].merged(parts[1]).merged(parts[2]).scaling()
    np.testing.assert_allclose(found.shift, whole.shift, rtol=1e-12)
    np.testing.assert_allclose(found.scale, whole.scale, rtol=1e-12)


WITHOUT_PANDAS = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec


def find_others(name, path=None, target=None):
    return None if name.split(".")[0] == "pandas" else find(name, path, target)


PathFinder.find_spec = find_others
import numpy as np, pyarrow as pa
from pyarrow import parquet
from orthogp import OrthogonalGPRegressor
from orthogp.estimators import streamed

x = np.linspace(0, 1, 200)
parquet.write_table(pa.table({"a": x, "b": x > 0.5, "y": np.sin(x)}), sys.argv[1])
for streamed.LOADED_BYTES in (2**27, 0):
    gp = OrthogonalGPRegressor(5, 5, max_steps=3, random_state=0).fit(sys.argv[1], "y")
    assert gp.feature_names_in_.tolist() == ["a", "b"]
assert "pandas" not in sys.modules
"""


def test_parquet_does_not_need_pandas(tmp_path):
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path / "t.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
