"""The paper's grid: which jobs there are, what a record holds, and what a kill costs."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from orthogp.apps.cli import app
from orthogp.apps.paper import job as job_module
from orthogp.apps.paper import runner
from orthogp.apps.paper.experiments import EXPERIMENTS, chosen_methods
from orthogp.apps.paper.job import Curve, Place, finished, perform
from orthogp.apps.paper.metrics import classification_metrics, model_metrics
from orthogp.apps.paper.models import build_model
from orthogp.apps.paper.published import figures, sizes
from orthogp.apps.paper.records import Job, read_record, read_records, write_summary
from orthogp.apps.paper.runner import grid, run_jobs
from orthogp.errors import ConfigurationError
from orthogp.likelihoods import Bernoulli, Gaussian, RobustMax
from orthogp.training import Event, Report, Rows

# Before the fixture below makes them small.
AS_PUBLISHED = dict(EXPERIMENTS)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for task in ("regression", "classification"):
        (tmp_path / "data" / task).mkdir(parents=True)
    x = rng.standard_normal((200, 3)).astype(np.float32)
    y = np.sin(x.sum(1)) + 0.1 * rng.standard_normal(200).astype(np.float32)
    np.savez(tmp_path / "data" / "regression" / "waves.npz", X=x, y=y)
    np.savez(tmp_path / "data" / "regression" / "kin40k.npz", X=x, y=2 * y)
    labels = np.digitize(y, [-0.5, 0.5]).astype(np.int64)
    np.savez(tmp_path / "data" / "classification" / "three.npz", X=x, y=labels)
    np.savez(tmp_path / "data" / "classification" / "ringnorm.npz", X=x, y=(y > 0).astype(int))
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiments with a dozen points each; all else as in the paper."""
    small = {
        name: replace(e, n_inducing=12, n_residual=15, n_coupled=14)
        for name, e in EXPERIMENTS.items()
    }
    for name, experiment in small.items():
        monkeypatch.setitem(EXPERIMENTS, name, experiment)


def test_settings_are_those_of_the_papers_appendix() -> None:
    regression = AS_PUBLISHED["regression"]
    counts = {
        m: (s.n_inducing, s.n_residual)
        for m in ("Coupled300", "CoupledNat", "Orth", "Decoupled")
        for s in [regression.model_settings("regression", m)]
    }
    assert counts == {
        "Coupled300": (300, 0), "CoupledNat": (400, 0), "Orth": (300, 700), "Decoupled": (300, 700)
    }  # fmt: skip
    config = regression.training_config(50_000, split=3, steps=None)
    assert (config.max_steps, config.batch_size, config.kl_columns) == (20_000, 1024, 64)
    assert (config.learning_rate, config.natural_step, config.seed) == (1e-3, 0.005, 3)
    assert (config.schedule, config.natural_warmup) == ("constant", 100)
    assert regression.model_settings("regression", "Orth").variance == 1.0
    binary = AS_PUBLISHED["classification"].model_settings("classification", "Orth")
    assert binary.variance == 5.0
    assert not binary.ard
    assert regression.model_settings("regression", "OrthNatARD").ard
    wall = AS_PUBLISHED["wall-clock"]
    assert (wall.n_inducing, wall.n_residual, wall.n_coupled) == (1500, 3500, 2000)
    still = AS_PUBLISHED["illustration"].training_config(7000, 0, None)
    assert (still.batch_size, still.kl_columns) == (7000, None)
    assert not still.train_points
    assert not still.train_hyperparameters


def test_a_unit_start_is_the_identity_whatever_the_kernel() -> None:
    x = torch.randn(60, 4, dtype=torch.float64)
    settings = EXPERIMENTS["classification"].model_settings("classification", "OrthARDUnit")
    model = build_model(settings, Rows(x, torch.zeros(60).long()), 3, 0, "cpu")
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    projection = model.basis.project(model.covariance, factor, model.basis.beta)
    q = model.basis.coefficients(projection)
    S = factor.L @ q.S @ factor.L.mT
    torch.testing.assert_close(S, torch.eye(len(factor.L)).expand_as(S).double())
    assert not q.v.any()


def test_models_start_as_the_paper_says() -> None:
    x = torch.randn(60, 4, dtype=torch.float64)
    settings = EXPERIMENTS["classification"].model_settings("classification", "OrthNat")
    model = build_model(settings, Rows(x, torch.zeros(60).long()), 3, 0, "cpu")
    assert isinstance(model.likelihood, RobustMax)
    assert model.likelihood.epsilon == 1e-3
    rough, smooth = model.covariance.kernel.kernels
    assert rough.outputscale.item() == pytest.approx(5.0)
    assert rough.base_kernel.lengthscale.item() == pytest.approx(0.2)
    assert smooth.base_kernel.lengthscale.item() == pytest.approx(2.0)
    assert isinstance(build_model(settings, Rows(x, x[:, 0]), 2, 0, "cpu").likelihood, Bernoulli)
    plain = EXPERIMENTS["regression"].model_settings("regression", "OrthNat")
    gaussian = build_model(plain, Rows(x, x[:, 0]), 0, 0, "cpu").likelihood
    assert isinstance(gaussian, Gaussian)
    assert gaussian.likelihood.noise.item() == pytest.approx(0.1)


def test_every_method_starts_from_the_same_points() -> None:
    x = torch.randn(80, 2, dtype=torch.float64)
    rows, e = Rows(x, x[:, 0]), EXPERIMENTS["regression"]
    models = [
        build_model(e.model_settings("regression", m), rows, 0, 5, "cpu")
        for m in ("Orth", "Hybrid", "Decoupled", "Coupled300")
    ]
    for other in models[1:]:
        torch.testing.assert_close(other.basis.beta, models[0].basis.beta)
    for other in models[1:3]:
        torch.testing.assert_close(other.basis.gamma, models[0].basis.gamma)


def test_the_papers_figures_and_sizes() -> None:
    assert figures("regression", "log_likelihood")["pol"]["OrthNat"] == 0.1586
    assert figures("regression", "rmse")["kin40k"]["Decoupled"] == 0.3501
    assert figures("classification", "accuracy")["adult"]["Selu"] == 84.76
    assert len(sizes("regression")) == 12
    assert len(sizes("classification")) == 19
    assert sizes("classification")["letter"].classes == 26
    assert sizes("regression")["3droad"].rows == 434_874


def test_grid_takes_what_is_there(data: Path) -> None:
    jobs = [job for job, _ in grid("regression", data, splits=2)]
    assert {job.dataset for job in jobs} == {"waves", "kin40k"}
    assert {job.split for job in jobs} == {0, 1}
    assert len(jobs) == 2 * 2 * 12
    named = grid("regression", data, ["waves"], ["ORTHNAT", "coupled300"])
    assert [(j.dataset, j.method, task) for j, task in named] == [
        ("waves", "OrthNat", "regression"),
        ("waves", "Coupled300", "regression"),
    ]
    curves = {(job.dataset, task) for job, task in grid("illustration", data)}
    assert curves == {("kin40k", "regression"), ("ringnorm", "classification")}
    with pytest.raises(ConfigurationError, match="have nothing"):
        grid("regression", data, ["nothing"])
    with pytest.raises(ConfigurationError, match="Best"):
        chosen_methods(EXPERIMENTS["regression"], ["Best"])


@pytest.mark.parametrize("method", ["CoupledNat300", "Orth", "OrthNat", "Hybrid", "Decoupled"])
def test_a_record_says_what_was_run(data: Path, tmp_path: Path, method: str) -> None:
    place = Place(data, tmp_path / "out", steps=5)
    record = perform(Job("regression", "waves", method, 1), "regression", place)
    assert record is not None
    assert (record.status, record.reason, record.steps) == ("done", "", 5)
    assert set(record.metrics) == {"log_likelihood", "rmse", "coverage", "bound"}
    assert record.data["train_rows"] + record.data["test_rows"] == 200
    assert record.settings["training"]["max_steps"] == 5
    assert record.versions["torch"]
    assert record.machine["device"] == "cpu"
    assert record == read_record(record.job.path(place.out))
    assert list((tmp_path / "out").rglob("*.lock")) == []
    assert list((tmp_path / "out").rglob("*.checkpoint")) == []


def test_classes_and_curves(data: Path, tmp_path: Path) -> None:
    place = Place(data, tmp_path, steps=6)
    many = perform(Job("classification", "three", "OrthNat", 0), "classification", place)
    assert many is not None
    assert set(many.metrics) == {"log_likelihood", "accuracy", "bound"}
    assert many.data["classes"] == 3
    curve = perform(Job("illustration", "kin40k", "OrthNat", 0), "regression", place)
    best = perform(Job("illustration", "kin40k", "Optimum", 0), "regression", place)
    assert curve is not None
    assert best is not None
    assert set(curve.history[-1]) >= {"step", "seconds", "bound", "rmse", "log_likelihood"}
    assert curve.history[-1]["rmse"] == pytest.approx(curve.metrics["rmse"], rel=1e-4)
    assert best.metrics["bound"] > curve.metrics["bound"]


def test_own_columns(data: Path, tmp_path: Path) -> None:
    place = Place(data, tmp_path)
    for job, task in grid("regression", data, ["waves"], ["Default", "Boosting"]):
        record = perform(job, task, place)
        assert record is not None
        assert record.status == "done", record.reason
        assert 0.5 < record.metrics["coverage"] / 100 <= 1
    job = Job("classification", "three", "Boosting", 0)
    record = perform(job, "classification", place)
    assert record is not None
    assert 0 < record.metrics["accuracy"] <= 100
    assert record.metrics["log_likelihood"] < 0


def test_finished_jobs_are_not_run_again(data: Path, tmp_path: Path) -> None:
    place, job = Place(data, tmp_path, steps=3), Job("regression", "waves", "Coupled", 0)
    first = perform(job, "regression", place)
    assert perform(job, "regression", place) == first
    assert finished(job, place) == first
    # Fewer steps than are asked for now, a failure, and a file that is no record: all run again.
    assert finished(job, replace(place, steps=4)) is None
    path = job.path(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"status": "failed"}))
    assert finished(job, place) is None
    path.write_text("{")
    assert finished(job, place) is None


def test_a_failure_is_recorded_and_the_rest_go_on(data: Path, tmp_path: Path) -> None:
    np.savez(data / "regression" / "broken.npz", X=np.full((50, 2), np.nan), y=np.zeros(50))
    records = {}
    items = grid("regression", data, ["broken", "waves"], ["Coupled300"])
    run_jobs(
        items, Place(data, tmp_path, steps=2), 1, lambda job, r: records.update({job.dataset: r})
    )
    assert records["broken"].status == "failed"
    assert "missing" in records["broken"].reason
    assert records["waves"].status == "done"


def test_a_job_that_another_process_holds_is_left_alone(data: Path, tmp_path: Path) -> None:
    job, place = Job("regression", "waves", "Coupled", 0), Place(data, tmp_path, steps=2)
    with job_module._lock_file(job.path(tmp_path).with_suffix(".lock")) as acquired:
        assert acquired
        assert perform(job, "regression", place) is None
    assert perform(job, "regression", place) is not None


def test_jobs_in_processes_of_their_own(data: Path, tmp_path: Path) -> None:
    """A worker that dies costs its job, not the grid; the records are those of one process."""
    items = grid("regression", data, methods=["Boosting"])
    records = []
    run_jobs(items, Place(data, tmp_path / "two"), 2, lambda job, record: records.append(record))
    run_jobs(items, Place(data, tmp_path / "one"), 1, lambda job, record: None)
    assert [r.status for r in records] == ["done", "done"]
    for record in read_records(tmp_path / "one", "regression"):
        twin = read_record(record.job.path(tmp_path / "two"))
        assert twin.metrics == record.metrics


def test_a_dead_worker_is_a_failed_job(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(runner, "_work", _die)
    records = []
    items = grid("regression", data, ["waves"], ["Boosting", "Coupled"])
    run_jobs(items, Place(data, tmp_path), 2, lambda job, record: records.append(record))
    assert [r.status for r in records] == ["failed", "failed"]
    assert "killed" in records[0].reason


def _die(job, task, place):
    import os

    os.kill(os.getpid(), signal.SIGKILL)


KILLED = """
import sys
from dataclasses import replace
from pathlib import Path
from orthogp.apps.paper import job
from orthogp.apps.paper.experiments import EXPERIMENTS
from orthogp.apps.paper.records import Job
from orthogp.training import fit

e = EXPERIMENTS["illustration"]
training = replace(e.training, report_every=5)
EXPERIMENTS["illustration"] = replace(e, n_inducing=12, n_residual=15, training=training)

def often(*args):
    return fit(*args, checkpoint_seconds=0.0)

job.training.fit = often
for out in sys.argv[2:]:
    place = job.Place(Path(sys.argv[1]), Path(out), steps=150)
    job.perform(Job("illustration", "kin40k", "OrthNat", 0), "regression", place)
"""


@pytest.mark.torture
def test_a_killed_job_goes_on_where_it_stopped(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(data)]
    process = subprocess.Popen([*command, str(tmp_path / "cut")])
    curve = Job("illustration", "kin40k", "OrthNat", 0).path(tmp_path / "cut").with_suffix("")
    while not (curve / "curve.jsonl").exists() or len(_lines(curve / "curve.jsonl")) < 7:
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.wait()
    kept = _lines(curve / "curve.jsonl")
    subprocess.run([*command, str(tmp_path / "cut"), str(tmp_path / "whole")], check=True)
    whole, cut = (read_records(tmp_path / name)[0] for name in ("whole", "cut"))
    assert cut.metrics == whole.metrics
    drop = ("seconds",)
    assert [{k: v for k, v in row.items() if k not in drop} for row in cut.history] == [
        {k: v for k, v in row.items() if k not in drop} for row in whole.history
    ]
    # What was measured before the kill was not measured again.
    assert cut.history[:5] == [json.loads(line) for line in kept[:5]]
    assert len(kept) < len(cut.history)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_curve_leaves_its_own_time_out(tmp_path: Path) -> None:
    def look() -> dict[str, float]:
        time.sleep(0.05)
        return {"rmse": 1.0}

    curve = Curve(tmp_path / "curve.jsonl", 10, look)
    curve(Event("start", 0))
    for step, seconds in ((1, 1.0), (2, 2.05)):
        curve(Event("report", step, Report(step, seconds, -50.0, None, 0.1, 0.1)))
    assert curve.rows[0] == {"step": 1, "seconds": 1.0, "bound": -5.0, "rmse": 1.0}
    assert curve.rows[1]["seconds"] <= 2.0
    # A line that a kill cut short, and one after the checkpoint, come again.
    with open(tmp_path / "curve.jsonl", "a") as file:
        file.write('{"step": 3, "sec')
    again = Curve(tmp_path / "curve.jsonl", 10, look)
    again(Event("start", 1, history=(Report(1, 1.5, -50.0, None, 0.1, 0.1),)))
    assert [row["step"] for row in again.rows] == [1]
    assert again.overhead == 0.5


def test_metrics_against_numpy() -> None:
    rng = np.random.default_rng(1)
    x = torch.as_tensor(rng.standard_normal((70, 2)))
    y = torch.sin(x[:, 0])
    settings = EXPERIMENTS["regression"].model_settings("regression", "OrthNat")
    model = build_model(settings, Rows(x, y), 0, 0, "cpu")
    found = model_metrics(model, Rows(x, y))
    mean, variance = (t[0].numpy() for t in model.predict(x.float().double()))
    variance = variance + 0.1
    error = y.numpy() - mean
    density = -0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
    assert found["log_likelihood"] == pytest.approx(density.mean(), rel=1e-4)
    assert found["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)
    inside = np.abs(error) <= 1.6448536 * np.sqrt(variance)
    assert found["coverage"] == pytest.approx(100 * inside.mean())


def test_a_class_that_training_has_not_seen() -> None:
    y, classes = np.array([0, 2, 1]), np.array([0, 2])
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    found = classification_metrics(y, classes, probabilities)
    assert found["accuracy"] == pytest.approx(200 / 3)
    assert found["log_likelihood"] == pytest.approx((np.log(0.9) + np.log(0.8) + np.log(1e-15)) / 3)


def test_commands(data: Path, tmp_path: Path) -> None:
    cli, out = CliRunner(), tmp_path / "out"
    listing = cli.invoke(app, ["paper", "list", "--data-dir", str(data)])
    assert "wall-clock" in listing.output
    assert "on kin40k, waves" in listing.output
    command = ["paper", "run", "regression", "--data-dir", str(data), "--out", str(out),
               "--datasets", "waves", "--methods", "COUPLED,ORTHNAT", "--splits", "2",
               "--steps", "2"]  # fmt: skip
    first = cli.invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "[4/4] regression waves OrthNat split 1: log_likelihood" in first.output
    collected = cli.invoke(
        app, ["paper", "collect", "--out", str(out), str(tmp_path / "all.jsonl")]
    )
    assert "4 records" in collected.output
    summary = read_records(tmp_path / "all.jsonl")
    assert [r.job for r in summary] == [r.job for r in read_records(out)]
    assert all(r.history == [] for r in summary)
    write_summary(summary, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "all.jsonl").read_bytes()
