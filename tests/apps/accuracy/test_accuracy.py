"""`orthogp bench accuracy`: jobs, records, what a second run leaves alone, tables and pictures."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import accuracy_cases as cases
from orthogp.apps.accuracy import standings as standings_module
from orthogp.apps.accuracy.job import accuracy_jobs, method_name, run_model
from orthogp.apps.accuracy.models import MODELS, find_models
from orthogp.apps.accuracy.models.contract import FittedModel
from orthogp.apps.accuracy.pictures import draw_pictures, draw_ranks, pareto_front
from orthogp.apps.accuracy.predictive import ClassProbabilities, GaussianPredictive
from orthogp.apps.accuracy.standings import (
    FIT_SECONDS,
    LOG_DENSITY,
    RMSE,
    build_standings,
    critical_difference,
    indistinguishable,
    mean_ranks,
    missing_results,
    result_table,
    to_markdown,
)
from orthogp.apps.cli import app
from orthogp.apps.paper.job import Place, perform
from orthogp.apps.paper.records import Job, Record, read_records, write_record
from orthogp.errors import ConfigurationError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x, y = cases.numbers()
    for task in ("regression", "classification"):
        (tmp_path / "data" / task).mkdir(parents=True)
    np.savez(tmp_path / "data" / "regression" / "waves.npz", X=x, y=y)
    labels = np.digitize(y, [-0.7, 0.7]).astype(np.int64)
    np.savez(tmp_path / "data" / "classification" / "three.npz", X=x, y=labels)
    return tmp_path / "data"


def fit_moments(problem):
    """A model that knows the mean and spread of its targets alone."""
    if problem.regression:
        mean, std = problem.y.mean(), problem.y.std()
        return FittedModel(
            lambda x: GaussianPredictive(np.full(len(x), mean), np.full(len(x), std)), {"kind": 1}
        )
    classes, counts = np.unique(problem.y, return_counts=True)
    shares = counts / counts.sum()
    return FittedModel(lambda x: ClassProbabilities(classes, np.tile(shares, (len(x), 1))))


@pytest.fixture
def moments(monkeypatch) -> None:
    """In place of LightGBM, so that nothing need be installed."""
    quick = replace(MODELS["lightgbm"], fit=fit_moments, package="numpy")
    monkeypatch.setitem(MODELS, "lightgbm", quick)


def test_jobs_are_the_models_of_each_task(data: Path) -> None:
    chosen = find_models(["orthogp", "exact-gp", "xgboost"])
    jobs = accuracy_jobs(data, chosen, splits=2)
    assert [(j.dataset, j.method) for j, _ in jobs if j.split == 1] == [
        ("waves", "orthogp"), ("waves", "exact-gp"), ("waves", "xgboost"),
        ("three", "orthogp"), ("three", "xgboost"),
    ]  # fmt: skip
    assert {(j.experiment, task) for j, task in jobs} == {
        ("accuracy-regression", "regression"), ("accuracy-classification", "classification")
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match="does not have sea; it has waves, three"):
        accuracy_jobs(data, chosen, ["sea"])


def test_results_of_two_devices_are_two_models() -> None:
    assert method_name("orthogp", MODELS["orthogp"], "cuda") == "orthogp-cuda"
    assert method_name("orthogp", MODELS["orthogp"], "cpu") == "orthogp"
    assert method_name("xgboost", MODELS["xgboost"], "cuda") == "xgboost"


def test_a_record_has_metrics_costs_and_settings(data: Path, tmp_path: Path, moments) -> None:
    place = Place(data, tmp_path / "out", run=run_model)
    job = Job("accuracy-regression", "waves", "lightgbm", 1)
    record = perform(job, "regression", place)
    assert record is not None
    assert record.status == "done", record.reason
    assert set(record.metrics) == {"rmse", "log_likelihood", "crps", "coverage", "width"}
    # A standard normal target and a standard normal prediction.
    assert record.metrics["rmse"] == pytest.approx(1.0, abs=0.4)
    assert record.metrics["width"] == pytest.approx(2 * 1.6448536)
    assert set(record.costs) >= {"fit_seconds", "predict_seconds"}
    assert record.costs.get("peak_mib", 100) > 50
    assert record.settings["kind"] == 1
    assert (record.settings["seed"], record.settings["device"]) == (1, "cpu")
    classes = perform(
        Job("accuracy-classification", "three", "lightgbm", 0), "classification", place
    )
    assert classes is not None
    assert set(classes.metrics) == {"accuracy", "log_likelihood"}


def run(data: Path, out: Path, *more: str):
    command = ["bench", "accuracy", "--data-dir", str(data), "--out", str(out), *more]
    return CliRunner().invoke(app, command)


def test_a_second_run_goes_on(data: Path, tmp_path: Path, moments) -> None:
    first = run(data, tmp_path, "--models", "lightgbm", "--datasets", "waves")
    assert first.exit_code == 0, first.output
    assert "[1/1] accuracy-regression waves lightgbm split 0: log_likelihood" in first.output
    (record,) = read_records(tmp_path)
    again = run(data, tmp_path, "--models", "lightgbm", "--splits", "2")
    assert "4 jobs, 0 refused, 0 failed" in again.output
    assert read_records(tmp_path)[2] == record
    table = CliRunner().invoke(app, ["bench", "accuracy-table", "--out", str(tmp_path)])
    assert table.exit_code == 0, table.output
    assert "Regression: log density" in table.output
    assert "waves" in (tmp_path / "tables" / "accuracy-regression.md").read_text()


def test_a_missing_peer_is_named_and_the_rest_run(
    data: Path, tmp_path: Path, moments, monkeypatch
) -> None:
    missing = replace(MODELS["gpboost"], package="no_such_package")
    monkeypatch.setitem(MODELS, "gpboost", missing)
    found = run(data, tmp_path, "--models", "gpboost,lightgbm", "--datasets", "waves")
    assert found.exit_code == 0
    assert "gpboost is skipped: no_such_package is not installed: pip install" in found.output
    assert "'orthogp[peers-gpboost]'" in found.output
    assert [r.job.method for r in read_records(tmp_path)] == ["lightgbm"]


@pytest.mark.parametrize(
    ("error", "code", "ended"),
    [
        (ConfigurationError("too many rows"), 0, "1 refused, 0 failed"),
        (ValueError("a fault"), 1, "0 refused, 1 failed"),
    ],
)
def test_a_refusal_is_not_a_failure(
    data: Path, tmp_path: Path, monkeypatch, error, code, ended
) -> None:
    def fit(problem):
        raise error

    monkeypatch.setitem(MODELS, "lightgbm", replace(MODELS["lightgbm"], fit=fit, package="numpy"))
    found = run(data, tmp_path, "--models", "lightgbm", "--datasets", "waves")
    assert found.exit_code == code
    assert ended in found.output
    assert str(error) in read_records(tmp_path)[0].reason


def test_orthogp_itself(data: Path, tmp_path: Path) -> None:
    place = Place(data, tmp_path, run=run_model)
    record = perform(Job("accuracy-regression", "waves", "orthogp", 0), "regression", place)
    assert record is not None
    assert record.status == "done", record.reason
    assert record.metrics["rmse"] < 0.35
    assert record.metrics["crps"] < 0.35 / math.sqrt(math.pi) + 0.05


def made(dataset, model, split=0, status="done", **figures):
    """A record of a regression."""
    seconds = figures.pop("seconds", 1.0)
    return Record(
        Job("accuracy-regression", dataset, model, split), status, "why" * (status != "done"),
        metrics=figures, costs={"fit_seconds": seconds, "predict_seconds": 0.1},
    )  # fmt: skip


def field(models=("orthogp", "lightgbm", "svgp"), sets=6):
    """Records in which a model's place in the list is its rank on every set."""
    return [
        made(f"set{k}", model, rmse=i + 1.0, log_likelihood=0.1 * k - i, seconds=10.0**i)
        for k in range(sets)
        for i, model in enumerate(models)
    ]


def test_means_are_over_the_splits_that_all_models_have() -> None:
    records = [
        made("a", "orthogp", 0, rmse=1.0), made("a", "orthogp", 1, rmse=3.0),
        made("a", "xgboost", 1, rmse=2.5), made("a", "svgp", 0, "failed"),
    ]  # fmt: skip
    found = build_standings(records, "regression")
    assert found.cell("a", "orthogp", "rmse").value == 3.0
    assert found.cell("a", "xgboost", "fit_seconds").value == 1.0
    assert found.models == ["orthogp", "xgboost"]
    text = to_markdown(result_table(found, RMSE))
    assert "| xgboost | **2.500** | **1.00** |" in text
    assert "| orthogp | 3.000 | 2.00 |" in text
    assert missing_results(found) == ["svgp on a: why"]
    assert build_standings(records, "classification").records == {}


def test_ranks_are_of_models_on_every_set() -> None:
    records = [*field(), made("set0", "ngboost", rmse=0.5, log_likelihood=9.0)]
    found = build_standings(records, "regression")
    ranks, others = mean_ranks(found, LOG_DENSITY)
    assert ranks == {"orthogp": 1.0, "lightgbm": 2.0, "svgp": 3.0}
    assert others == ["ngboost"]
    assert mean_ranks(found, RMSE)[0]["svgp"] == 3.0


@pytest.mark.parametrize(("models", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_nemenyis(models: int, q: float) -> None:
    """q as in the tables of Demšar (2006)."""
    expected = q * math.sqrt(models * (models + 1) / (6 * 14))
    assert critical_difference(models, 14) == pytest.approx(expected, rel=1e-3)


def test_groups_are_as_large_as_the_difference_allows() -> None:
    ranks = {"a": 1.0, "b": 1.8, "c": 2.5, "d": 4.5}
    assert indistinguishable(ranks, 1.0) == [("a", "b"), ("b", "c")]
    assert indistinguishable(ranks, 1.5) == [("a", "b", "c")]
    assert indistinguishable(ranks, 0.1) == []
    assert indistinguishable(ranks, 9.0) == [("a", "b", "c", "d")]


def test_the_front_is_what_no_other_beats_in_both() -> None:
    points = {"quick": (1.0, 0.5), "slow": (9.0, 0.9), "beaten": (5.0, 0.4), "mid": (3.0, 0.7)}
    assert pareto_front(points, higher_is_better=True) == ["quick", "mid", "slow"]
    assert pareto_front(points, higher_is_better=False) == ["quick", "beaten"]


def test_pictures_show_models_ranks_and_sets(tmp_path: Path) -> None:
    found = build_standings(field(sets=4), "regression")
    written = draw_pictures(found, tmp_path)
    assert {p.name for p in written if p.suffix == ".svg"} == {
        "regression-ranks-log-likelihood.svg", "regression-pareto-log-likelihood.svg",
        "regression-ranks-rmse.svg", "regression-pareto-rmse.svg",
    }  # fmt: skip
    assert all(path.stat().st_size > 5000 for path in written)
    figure = draw_ranks(found, LOG_DENSITY)
    assert figure is not None
    (ax,) = figure.axes
    texts = [t.get_text() for t in ax.texts]
    assert {"orthogp  1.00", "lightgbm  2.00", "3.00  svgp"} <= set(texts)
    difference = critical_difference(3, 4)
    assert f"critical difference {difference:.2f}" in texts
    # Of four sets, ranks 1 and 3 differ by more than 1.66; neighbours do not.
    bars = [line for line in ax.lines if line.get_linewidth() == 3.5]
    assert len(bars) == len(indistinguishable(mean_ranks(found, LOG_DENSITY)[0], difference)) == 2


def test_no_records_are_said(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["bench", "accuracy-table", "--out", str(tmp_path)])
    assert isinstance(found.exception, ConfigurationError)
    assert "orthogp bench accuracy" in str(found.exception)


def test_a_collected_file_gives_the_same_table(tmp_path: Path) -> None:
    for record in field():
        write_record(record, tmp_path / "records")
    cli = CliRunner()
    lines = tmp_path / "all.jsonl"
    cli.invoke(app, ["paper", "collect", "--out", str(tmp_path / "records"), str(lines)])
    assert json.loads(lines.read_text().splitlines()[0])["costs"]["fit_seconds"]
    one = build_standings(read_records(lines), "regression")
    two = build_standings(read_records(tmp_path / "records"), "regression")
    for metric in standings_module.METRICS["regression"]:
        assert to_markdown(result_table(one, metric)) == to_markdown(result_table(two, metric))
    chosen = ["--models", "svgp,orthogp", "--no-pictures"]
    shown = cli.invoke(app, ["bench", "accuracy-table", "--out", str(lines), *chosen])
    assert "svgp" in shown.output
    assert "lightgbm" not in shown.output
    assert not (tmp_path / "figures").exists()
    assert result_table(one, FIT_SECONDS).rows[0].cells[0].value == 1.0


@pytest.mark.cuda
def test_a_record_of_a_gpu(data: Path, tmp_path: Path) -> None:
    place = Place(data, tmp_path, "cuda", run=run_model)
    for name in ("orthogp", "exact-gp"):
        job = Job("accuracy-regression", "waves", method_name(name, MODELS[name], "cuda"), 0)
        record = perform(job, "regression", place)
        assert record is not None
        assert record.status == "done", record.reason
        assert record.settings["device"] == "cuda"
        assert record.costs["cuda_peak_mib"] > 0
        assert record.metrics["rmse"] < 0.4
