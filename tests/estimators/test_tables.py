"""Tables as they come: text, categories, gaps and dates in `fit`, `predict` and files."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.inspection import permutation_importance
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor, storage
from orthogp.apps.tabular.model import TableModel
from orthogp.errors import ConfigurationError, DataError, FileError
from orthogp.estimators import streamed
from orthogp.tables import Encoder, Learning, Tally, as_table

pl = pytest.importorskip("polars")

ROWS = 160
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "width": RNG.normal(size=ROWS),
        "gaps": np.where(RNG.random(ROWS) < 0.2, np.nan, RNG.normal(size=ROWS)),
        "colour": RNG.choice(["red", "green", None], ROWS),
        "size": pd.Categorical(RNG.choice(["s", "m", "l"], ROWS)),
        "flag": RNG.random(ROWS) < 0.5,
        "word": [f"word {i}" for i in RNG.integers(0, 40, ROWS)],
        "when": pd.date_range("2021-01-01", periods=ROWS, freq="9h"),
        "same": 1.0,
    }
)
Y = (
    FRAME["width"].to_numpy()
    + 2.0 * (FRAME["colour"] == "red").to_numpy()
    + FRAME["gaps"].isna().to_numpy()
    + 0.1 * RNG.normal(size=ROWS)
)
LABELS = np.where(np.median(Y) < Y, "up", "down")
SMALL = {"n_inducing": 20, "n_residual": 20, "max_steps": 30, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def regressor():
    return OrthogonalGPRegressor(random_state=0, device="cpu").fit(FRAME[:120], Y[:120])


def test_what_columns_say_is_learned(regressor):
    error = np.sqrt(np.mean((regressor.predict(FRAME[120:]) - Y[120:]) ** 2))
    assert error < 0.5 * Y.std()
    assert regressor.n_features_in_ == len(FRAME.columns)
    assert regressor.feature_names_in_.tolist() == list(FRAME.columns)
    kinds = {row.column: row.kind for row in regressor.columns_}
    assert kinds["word"] == "many levels"
    assert kinds["same"] == "constant"


def test_the_inputs_of_a_category_share_a_lengthscale(regressor):
    (part,) = {
        tuple(part.base_kernel.lengthscale[0].tolist())
        for part in regressor.model_.covariance.kernel.kernels[1:]
    }
    plan = regressor.columns_.plan
    assert len(set(part)) <= max(plan.groups) + 1 < len(part)
    for name in ("colour", "size"):
        places = [i for i, source in enumerate(plan.sources) if source == name]
        assert len({part[i] for i in places}) == 1
    assert regressor.model_.covariance.fused


def test_the_levels_of_a_category_are_equally_far_apart(regressor):
    fitted = regressor._fitted
    plan = fitted.units.plan
    places = [i for i, source in enumerate(plan.sources) if source == "size"]
    scale = fitted.units.inputs.scale[places]
    shares = fitted.units.inputs.shift[places]
    # One scale for all levels, by which the variances of a column add up to one.
    np.testing.assert_allclose(scale, np.sqrt((shares * (1 - shares)).sum()))


@pytest.mark.parametrize("make", [pl.from_pandas, pa.Table.from_pandas])
def test_every_library_gives_the_same_model(make):
    own = OrthogonalGPClassifier(**SMALL).fit(FRAME, LABELS)
    other = OrthogonalGPClassifier(**SMALL).fit(make(FRAME), LABELS)
    assert other.feature_names_in_.tolist() == own.feature_names_in_.tolist()
    expected = own.predict_proba(FRAME)
    np.testing.assert_allclose(other.predict_proba(make(FRAME)), expected, atol=1e-12)
    np.testing.assert_allclose(other.predict_proba(FRAME), expected, atol=1e-12)


def test_a_file_has_the_columns(regressor, tmp_path):
    regressor.save(tmp_path / "m")
    again = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    assert again.columns_ == regressor.columns_
    assert again.n_features_in_ == regressor.n_features_in_
    np.testing.assert_array_equal(again.predict(FRAME), regressor.predict(FRAME))
    saved = storage.load_model(tmp_path / "m")
    saved.meta["columns"]["numbers"].pop()
    storage.save_model(tmp_path / "m", saved.model, saved.meta, saved.tensors)
    with pytest.raises(FileError, match="columns"):
        OrthogonalGPRegressor.load(tmp_path / "m")


def test_files_of_before_there_were_columns_load(tmp_path):
    X = RNG.normal(size=(60, 2))
    own = OrthogonalGPRegressor(**SMALL).fit(X, X[:, 0])
    own.save(tmp_path / "m", {"table": {"task": "regression", "target": "y", "id": None}})
    saved = storage.load_model(tmp_path / "m")
    del saved.meta["columns"], saved.meta["settings"]["categorical_features"]
    storage.save_model(tmp_path / "m", saved.model, saved.meta, saved.tensors)
    old = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(old.predict(X), own.predict(X))
    assert [row.kind for row in old.columns_] == ["number"] * 2
    with pytest.raises(DataError, match="fit it anew"):
        old.predict(np.full((1, 2), np.nan))


def test_models_of_tables_of_before_load(tmp_path):
    table = pa.table({"a": RNG.normal(size=60), "colour": ["red", "blue", "red"] * 20})
    plan = Learning().plan(table)
    encoded = np.column_stack(
        [
            table.column("a").to_numpy(),
            *(np.array(table.column("colour")) == c for c in ("blue", "red")),
        ]
    ).astype(float)
    own = OrthogonalGPRegressor(**SMALL).fit(encoded, encoded[:, 0])
    old_plan = {
        "numbers": [{"name": "a", "median": 0.0, "indicator": False}],
        "levels": [
            {
                "name": "colour",
                "kind": "text",
                "levels": ["blue", "red"],
                "pooled": [],
                "missing": False,
            }
        ],
        "missing": "impute",
    }
    description = {"task": "regression", "target": "y", "id": None, "plan": old_plan}
    own.save(tmp_path / "m", {"table": json.loads(json.dumps(description))})
    model = TableModel.load(tmp_path / "m")
    assert model.plan.sources == plan.sources
    expected = own.predict(encoded)
    np.testing.assert_array_equal(model.estimator.predict(model.encode(table, Tally())), expected)
    np.testing.assert_array_equal(model.estimator.predict(table), expected)


def test_arrays_may_have_gaps():
    X = RNG.normal(size=(200, 3))
    y = X[:, 0] + 3.0
    X[RNG.random(200) < 0.3, 0] = np.nan
    gp = OrthogonalGPRegressor(random_state=0, device="cpu").fit(X, y)
    gaps = np.isnan(X[:, 0])
    error = np.abs(gp.predict(X) - y)
    assert error[~gaps].mean() < 0.5 * error[gaps].mean()
    # A gap where training had none.
    one = X[~gaps][:1].copy()
    one[0, 2] = np.nan
    filled = gp.columns_.plan.filled(one)
    assert abs(filled[0, 2]) < 0.5
    assert gp.predict(one) == gp.predict(filled)
    # In a model of complete rows it is the median.
    complete = OrthogonalGPRegressor(**SMALL).fit(X[~gaps], y[~gaps])
    filled[0, 2] = np.median(X[~gaps, 2])
    assert complete.predict(one) == complete.predict(filled)


def test_gaps_that_other_numbers_tell_cost_less_than_with_the_median():
    rng = np.random.default_rng(2)
    level = rng.normal(size=200)
    X, y = level[:, None] + 0.1 * rng.normal(size=(200, 3)), np.sin(2 * level)
    # Rare in training, and in every new row.
    X[rng.random(200) < np.where(np.arange(200) < 150, 0.06, 1), 0] = np.nan
    median = np.where(np.isnan(X), np.nanmedian(X[:150], axis=0), X)
    errors = []
    for given in (X, np.column_stack([median, np.isnan(X[:, 0])])):
        gp = OrthogonalGPRegressor(random_state=0, device="cpu").fit(given[:150], y[:150])
        errors.append(np.sqrt(np.mean((gp.predict(given[150:]) - y[150:]) ** 2)))
    assert errors[0] < 0.5 * errors[1]


def test_files_of_before_gaps_were_predicted_fill_them_with_the_median(tmp_path):
    X = RNG.normal(size=(120, 1)) + 0.1 * RNG.normal(size=(120, 2))
    y = X[:, 0].copy()
    X[7, 0] = np.nan
    own = OrthogonalGPRegressor(**SMALL).fit(X, y)
    own.save(tmp_path / "m")
    again = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    assert again.columns_ == own.columns_
    np.testing.assert_array_equal(again.predict(X), own.predict(X))
    saved = storage.load_model(tmp_path / "m")
    assert saved.meta["columns"].pop("imputation")
    storage.save_model(tmp_path / "m", saved.model, saved.meta, saved.tensors)
    old = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    gap, filled = np.array([[np.nan, 1.5]]), np.array([[np.nanmedian(X[:, 0]), 1.5]])
    assert old.predict(gap) == old.predict(filled) == own.predict(filled)
    assert abs(own.predict(gap) - 1.5) < 0.5 * abs(old.predict(gap) - 1.5)


def test_complete_arrays_are_as_they_are():
    X = RNG.normal(size=(80, 2))
    X[:, 1] = 7.0
    gp = OrthogonalGPRegressor(**SMALL).fit(X, X[:, 0])
    assert gp.columns_.plan.plain
    assert len(gp.columns_.plan.sources) == 2
    assert [row.treatment for row in gp.columns_] == ["as it is"] * 2


def test_categories_of_an_array_by_number():
    X = np.column_stack([RNG.integers(0, 4, 100), RNG.normal(size=100)])
    gp = OrthogonalGPRegressor(**SMALL, categorical_features=[0]).fit(X, X[:, 0] == 2)
    assert [row.kind for row in gp.columns_] == ["category", "number"]
    assert np.isfinite(gp.predict(X)).all()


def test_missing_targets_are_counted_or_dropped():
    y = Y.copy()
    y[[3, 50]] = np.nan
    with pytest.raises(DataError, match="y has 2 values"):
        OrthogonalGPRegressor(**SMALL).fit(FRAME, y)
    present = np.isfinite(y)
    expected = OrthogonalGPRegressor(**SMALL).fit(FRAME[present], y[present]).predict(FRAME)
    for given in (y, pd.array(y, dtype="Float64"), pl.Series(y)):
        gp = OrthogonalGPRegressor(**SMALL, missing_targets="drop").fit(FRAME, given)
        np.testing.assert_array_equal(gp.predict(FRAME), expected)
    labels = LABELS.astype(object)
    labels[7] = None
    with pytest.raises(DataError, match="1 labels that are missing"):
        OrthogonalGPClassifier(**SMALL).fit(FRAME, labels)
    clf = OrthogonalGPClassifier(**SMALL, missing_targets="drop").fit(FRAME, labels)
    assert clf.classes_.tolist() == ["down", "up"]
    with pytest.raises(ConfigurationError, match="missing_targets"):
        OrthogonalGPRegressor(missing_targets="ignore").fit(FRAME, Y)


def test_columns_at_predict_are_those_of_fit(regressor):
    with pytest.raises(DataError, match="feature names"):
        regressor.predict(FRAME.rename(columns={"width": "w"}))
    unseen = FRAME[:2].assign(colour=["blue", None], word=["another", None])
    assert np.isfinite(regressor.predict(unseen)).all()
    with pytest.warns(UserWarning, match="feature names"):
        found = regressor.predict(FRAME.to_numpy()[:5])
    np.testing.assert_allclose(found, regressor.predict(FRAME[:5]))


def test_rows_that_join_take_the_same_plan(regressor):
    more = OrthogonalGPRegressor(random_state=0, device="cpu").fit(FRAME[:120], Y[:120])
    more.partial_fit(FRAME[120:], Y[120:])
    assert more.columns_ == regressor.columns_
    # They are encoded as new rows are: their own targets are no part of the statistics.
    again = more._fitted.model.near.x.double()
    joined = torch.from_numpy(
        (regressor._prediction_inputs(FRAME[120:])[1] - regressor._fitted.units.inputs.shift)
        / regressor._fitted.units.inputs.scale
    ).to(again)
    distances = torch.cdist(joined.float().double(), again).min(dim=1).values
    assert distances.max() < 1e-4


def test_a_warm_start_keeps_statistics_out_of_fold(monkeypatch):
    seen = []
    original = streamed.encode_rows
    from orthogp.estimators import intake

    def spy(plan, X, targets=None):
        seen.append(targets is not None)
        return original(plan, X, targets)

    monkeypatch.setattr(intake, "encode_rows", spy)
    gp = OrthogonalGPRegressor(**SMALL, n_neighbors=0, warm_start=True)
    gp.fit(FRAME, Y).fit(FRAME, Y).partial_fit(FRAME[:20], Y[:20])
    assert seen == [True, True, False]


def test_weights_of_zero_leave_rows_out():
    weight = np.ones(ROWS)
    weight[:40] = 0.0
    one = OrthogonalGPRegressor(**SMALL).fit(FRAME, Y, weight)
    other = OrthogonalGPRegressor(**SMALL).fit(FRAME[40:], Y[40:], weight[40:])
    np.testing.assert_array_equal(one.predict(FRAME), other.predict(FRAME))


def test_pipelines_and_inspection_work_as_they_did():
    numbers = make_column_transformer((StandardScaler(), ["width"]), remainder="passthrough")
    numbers.set_output(transform="pandas")
    pipeline = make_pipeline(numbers, OrthogonalGPRegressor(**SMALL)).fit(FRAME, Y)
    assert pipeline.predict(FRAME).shape == (ROWS,)
    gp = OrthogonalGPRegressor(**SMALL).fit(FRAME, Y)
    found = permutation_importance(gp, FRAME[:40], Y[:40], n_repeats=2, random_state=0)
    assert found.importances_mean.shape == (len(FRAME.columns),)


def test_streams_of_tables_take_text_and_gaps(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    table = pa.Table.from_pandas(FRAME.assign(y=Y), preserve_index=False)
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    whole = OrthogonalGPRegressor(**SMALL).fit(path, "y")
    assert {row.kind for row in whole.columns_} >= {"category", "many levels", "date", "number"}
    monkeypatch.setattr(streamed, "LOADED_BYTES", 0)
    gp = OrthogonalGPRegressor(**SMALL).fit(path, "y")
    assert [row.kind for row in gp.columns_] == [row.kind for row in whole.columns_]
    assert np.isfinite(gp.predict(FRAME)).all()


def test_streamed_rows_have_statistics_without_their_own_targets(tmp_path, monkeypatch):
    """Rows that the statistics were learned from have those of the other folds, by the formula."""
    rng, path, streams = np.random.default_rng(0), tmp_path / "t.parquet", []
    word = rng.integers(40, size=900)
    y = rng.normal(size=40)[word] + 0.3 * rng.normal(size=900)
    weight = (rng.random(900) < 0.9).astype(float)
    table = pd.DataFrame({"x": rng.normal(size=900), "word": [f"w{i}" for i in word], "y": y})
    table.assign(weight=weight).to_parquet(path, row_group_size=200)
    monkeypatch.setattr(streamed, "LOADED_BYTES", 0)
    monkeypatch.setattr(streamed, "KMEANS_ROWS", 400)

    class Spied(streamed.TableStream):
        def __init__(self, *given):
            super().__init__(*given)
            streams.append(self)

    monkeypatch.setattr(streamed, "TableStream", Spied)
    gp = OrthogonalGPRegressor(**SMALL | {"max_steps": 1, "n_inducing": 5, "n_residual": 5})
    gp.fit(path, "y", "weight")
    encoding, units = streams[0].encoding, gp._fitted.units
    (column,) = encoding.plan.statistics
    rows = encoding.rows
    assert 300 < len(rows) < 600
    assert (weight[rows] > 0).all()
    found = np.concatenate([
        encoding.inputs(pa.table(table[start : start + 200].drop(columns="y")), start)
        for start in range(0, 900, 200)
    ])[:, encoding.plan.sources.index("word")]  # fmt: skip
    targets = units.targets.statistics(y)[:, 0]
    for row in range(0, 900, 7):
        place = np.flatnonzero(rows == row)
        folds = encoding.folds
        others = rows[folds != folds[place]] if len(place) else rows
        prior, (m,) = targets[others].mean(), column.smoothing
        own = targets[others][word[others] == word[row]]
        assert found[row] == pytest.approx((own.sum() + m * prior) / (len(own) + m))


def test_rare_gaps_of_a_streamed_table_are_filled_as_the_sample_says(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    a, b = np.random.default_rng(0).normal(size=(2, 600))
    table = pd.DataFrame({"a": a, "b": a + 0.1 * b, "y": a})
    table.loc[[5, 205, 405], "a"] = np.nan
    table.to_parquet(path, row_group_size=200)
    monkeypatch.setattr(streamed, "LOADED_BYTES", 0)
    gp = OrthogonalGPRegressor(**SMALL).fit(path, "y")
    filled = gp.columns_.plan.filled(table[["a", "b"]].to_numpy())
    np.testing.assert_allclose(filled[[5, 205, 405], 0], a[[5, 205, 405]], atol=0.3)


def test_a_given_kernel_sees_the_inputs():
    from gpytorch.kernels import RBFKernel, ScaleKernel

    width = len(OrthogonalGPRegressor(**SMALL).fit(FRAME, Y).columns_.plan.sources)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=width))
    gp = OrthogonalGPRegressor(**SMALL, kernel=kernel).fit(FRAME, Y)
    assert np.isfinite(gp.predict(FRAME)).all()
    wrong = OrthogonalGPRegressor(**SMALL, kernel=ScaleKernel(RBFKernel(ard_num_dims=3)))
    with pytest.raises(ConfigurationError, match="lengthscales"):
        wrong.fit(FRAME, Y)


def test_settings_for_categories_are_saved(tmp_path):
    gp = OrthogonalGPRegressor(**SMALL, categorical_features=np.array(["flag"])).fit(FRAME, Y)
    gp.save(tmp_path / "m")
    again = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
    assert again.categorical_features == ["flag"]
    assert replace(again.columns_.plan) == gp.columns_.plan


def test_an_onnx_graph_takes_the_inputs(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    gp = OrthogonalGPRegressor(**SMALL, n_neighbors=0).fit(FRAME, Y)
    with pytest.warns(UserWarning, match="Encoder"):
        gp.export_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    x = Encoder(gp.columns_.plan).encode(as_table(FRAME), Tally())
    (mean,) = session.run(["mean"], {"x": x})
    np.testing.assert_allclose(mean, gp.predict(FRAME), rtol=1e-6, atol=1e-6)
