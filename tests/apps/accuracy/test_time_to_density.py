"""`orthogp bench time-to-density`: fits to some rows, and the quickest that is good enough."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import accuracy_cases as cases
from orthogp.apps.accuracy.job import base_name, training_rows
from orthogp.apps.accuracy.models import MODELS
from orthogp.apps.accuracy.models.contract import FittedModel
from orthogp.apps.accuracy.predictive import GaussianPredictive
from orthogp.apps.accuracy.time_to_density import density_tables, jobs_by_rows
from orthogp.apps.cli import app
from orthogp.apps.paper.datasets import Split
from orthogp.apps.paper.records import Job, Record, read_records
from orthogp.errors import ConfigurationError


def job(method: str, split: int = 0) -> Job:
    return Job("accuracy-regression", "waves", method, split)


def made(method: str, density: float, seconds: float, status="done") -> Record:
    metrics, costs = {"log_likelihood": density}, {"fit_seconds": seconds}
    return Record(job(method), status, metrics=metrics, costs=costs)


def test_jobs_have_the_fewest_rows_first_and_then_all() -> None:
    items = [(job("svgp-cuda"), "regression")]
    found = jobs_by_rows(items, [50, 7], {"waves": 60})
    assert [j.method for j, _ in found] == ["svgp-cuda@7", "svgp-cuda@50", "svgp-cuda"]
    assert {base_name(j.method) for j, _ in found} == {"svgp"}
    # As many rows as there are is the last of them.
    found = jobs_by_rows(items, [50, 7], {"waves": 50})
    assert [j.method for j, _ in found] == ["svgp-cuda@7", "svgp-cuda"]
    with pytest.raises(ConfigurationError, match="expected whole numbers from 1"):
        jobs_by_rows([], [0], {})


def test_rows_are_drawn_by_the_split() -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20.0)
    parts = Split(x, y, x[:1], y[:1], 0.0, 1.0)
    some, targets = training_rows(job("orthogp@5"), parts)
    np.testing.assert_array_equal(some[:, 0], 2 * targets)
    assert len(set(targets)) == 5
    np.testing.assert_array_equal(training_rows(job("svgp@5"), parts)[1], targets)
    assert set(training_rows(job("svgp@5", split=1), parts)[1]) != set(targets)
    assert training_rows(job("orthogp"), parts)[0] is x
    assert len(training_rows(job("orthogp@99"), parts)[1]) == 20


def test_the_quickest_fit_that_reaches_a_density_counts() -> None:
    records = [
        made("orthogp@100", 0.0, 1.0), made("orthogp@200", 0.5, 2.0), made("orthogp", 1.0, 9.0),
        # More rows, less time: an exact process is quicker with few than with many.
        made("svgp@100", 0.6, 5.0), made("svgp", 0.7, 4.0), made("xgboost", 9.0, 0.1, "failed"),
        made("other", 9.0, 0.1),
    ]  # fmt: skip
    (table,) = density_tables(records, [0.5, 0.0, 0.9])
    assert table.columns == ("orthogp", "svgp")
    seconds = {row.name: [cell.value for cell in row.cells] for row in table.rows}
    assert seconds == {"0.000": [1.0, 4.0], "0.500": [2.0, 4.0], "0.900": [9.0, None]}
    (below,) = density_tables(records)
    assert below.rows[0].name == "0.000"
    assert below.rows[-1].name == "0.980"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x, y = cases.numbers()
    (tmp_path / "data" / "regression").mkdir(parents=True)
    np.savez(tmp_path / "data" / "regression" / "waves.npz", X=x, y=y)
    return tmp_path / "data"


def test_the_command(data: Path, tmp_path: Path, monkeypatch) -> None:
    sizes = []

    def fit(problem):
        sizes.append(len(problem.y))
        return FittedModel(lambda x: GaussianPredictive(np.zeros(len(x)), np.ones(len(x))))

    quick = replace(MODELS["lightgbm"], fit=fit, package="numpy")
    monkeypatch.setitem(MODELS, "lightgbm", quick)
    command = [
        "bench", "time-to-density", "--data-dir", str(data), "--out", str(tmp_path / "out"),
        "--models", "lightgbm", "--rows", "30,60,600", "--densities", "-1.6,5",
    ]  # fmt: skip
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert sizes == [30, 60, len(cases.numbers()[1]) * 9 // 10]
    assert len(read_records(tmp_path / "out")) == 3
    text = (tmp_path / "out" / "tables" / "time-to-density.md").read_text()
    assert "### waves: seconds of the quickest fit that reaches a log density" in text
    assert "| model | -1.600 | 5.000 |" in text
    # A second run goes by the records.
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(sizes) == 3
    bad = CliRunner().invoke(app, [*command[:-1], "half"])
    assert "which is not a number" in str(bad.exception)
