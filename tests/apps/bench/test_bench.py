"""The benchmarks at toy size: what is in a result, and that a contestant cannot spoil it."""

import json
import math
import mmap
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from orthogp.apps.bench import contest, measurements, worker
from orthogp.apps.bench.contestants import OUR_MODEL, OURS, Entry, gpytorch_models, lineup, ours
from orthogp.apps.bench.contestants.contract import Setup, make_data
from orthogp.apps.bench.measurements import (
    ImportsConfig,
    PredictConfig,
    ScalingConfig,
    SpeedConfig,
    predict,
    scaling,
)
from orthogp.apps.bench.results import draw_bars, draw_scaling, table
from orthogp.apps.cli import app
from orthogp.errors import ConfigurationError

TINY = Setup(n_inducing=8, n_residual=5, batch=16, dims=3, rows=200, threads=1)
OPTIONS = "--n-inducing 8 --n-residual 5 --batch 16 --dims 3 --steps 2 --repeats 1 --threads 1"
BUILDERS = {
    "ours": ours.OrthogpModel,
    "gpytorch": gpytorch_models.GPyTorchModel,
    "large_batch": gpytorch_models.LargeBatchModel,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A whole run by command: GPyTorch takes part, and two peers whose Python is no use."""
    file = tmp_path_factory.mktemp("bench") / "speed.json"
    pythons = "--python gpjax=/nowhere/python --python gpflow=/bin/false"
    command = f"bench speed {OPTIONS} {pythons} --json {file}"
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(file.read_text()), done.output


def test_a_result_has_every_contestant_and_their_ratios(result):
    result, _ = result
    names = [OURS, "orthogp_coupled", "orthogp_coupled_108"]
    names += ["gpytorch_orthogonal", "gpytorch_svgp", "gpytorch_large_batch"]
    assert list(result["ms"]) == list(result["peak_mb"]) == names
    assert list(result["ratio"]) == names[1:]
    for name, ratio in result["ratio"].items():
        assert ratio == pytest.approx(result["ms"][name] / result["ms"][OURS])
    assert result["config"]["n_inducing"] == 8
    assert result["config"]["steps"] == 2
    assert result["versions"]["torch"] == torch.__version__
    assert result["machine"]["cores"] >= 1


def test_a_peer_that_cannot_run_is_skipped_with_its_reason(result):
    result, shown = result
    assert list(result["skipped"]) == ["gpjax_svgp", "gpflow_svgp"]
    assert "could not be started" in result["skipped"]["gpjax_svgp"]
    assert "ended with code 1" in result["skipped"]["gpflow_svgp"]
    assert "gpflow_svgp" in shown


def test_a_contestant_that_is_not_installed_says_so():
    outcome = contest.compete(
        {"absent": Entry("absent", TINY, "absent")}, {}, {"do": "train"}, {"do": "train"}, "-", 1
    )
    assert outcome.values == {}
    assert "No module named" in outcome.skipped["absent"]


class Scripted:
    """Stands for a process whose contestant is named by its Python, and answers from a script."""

    calls: list = []  # noqa: RUF012
    script: dict = {}  # noqa: RUF012

    def __init__(self, python, threads, chatter):
        self.name = python

    def ask(self, do, **arguments):
        self.calls.append((self.name, do))
        if do == "finish":
            return {"peak_mb": 1.0}
        if do in ("build", "warm"):
            return {"versions": {}}
        figure = self.script[self.name].pop(0)
        if figure is None:
            raise contest.ContestantError("out of breath")
        return {"seconds": figure}

    def close(self):
        pass


def test_rounds_are_interleaved_and_their_median_kept(monkeypatch):
    monkeypatch.setattr(contest, "Process", Scripted)
    monkeypatch.setattr(Scripted, "calls", [])
    script = {"a": [9.0, 1.0, 2.0], "b": [5.0, None], "c": [3.0, 3.0, 4.0]}
    monkeypatch.setattr(Scripted, "script", script)
    entries = {name: Entry(OUR_MODEL, TINY, name) for name in "abc"}
    pythons = {name: name for name in "abc"}
    outcome = contest.compete(entries, pythons, {"do": "warm"}, {"do": "train"}, "seconds", 3)
    assert [name for name, do in Scripted.calls if do == "train"] == list("abcabcac")
    assert outcome.values == {"a": 2.0, "c": 3.0}
    assert outcome.skipped == {"b": "out of breath"}


@pytest.mark.parametrize("library", BUILDERS)
@pytest.mark.parametrize("n_residual", [0, 5])
def test_every_model_begins_at_the_same_prior_and_learns(library, n_residual):
    # k(x, x) = 2: a Matérn and an RBF, each of variance one.
    setup = replace(TINY, n_residual=n_residual, test_rows=50, n_inducing=30)
    model = BUILDERS[library](setup, make_data(setup))
    mean, variance = model.predict(0, 50)
    # GPyTorch starts its mean with noise of size 1e-3.
    assert mean == pytest.approx(0.0, abs=0.02)
    assert variance == pytest.approx(2.0, rel=2e-3)
    before = model.train(1)
    model.train(30)
    assert model.train(1) > before + 1.0


def test_a_bound_that_is_not_finite_is_refused():
    class Spoiled:
        def train(self, steps):
            return math.nan

    host = worker.Worker()
    host.model = Spoiled()
    with pytest.raises(FloatingPointError, match="not finite"):
        host.train(3)


def test_the_fastest_chunk_is_the_last_before_the_rate_falls(monkeypatch):
    rates = {256: 1.0, 1024: 3.0, 4096: 2.0, 16384: 9.0}
    monkeypatch.setattr(worker.Worker, "rate", lambda self, chunk, rows: rates[chunk])
    host = worker.Worker()
    host.setup = replace(TINY, test_rows=10**6)
    assert host.fastest_chunk() == 1024
    host.setup = replace(TINY, test_rows=500)
    assert host.fastest_chunk() == 256


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_peak_counts_what_was_held_and_given_back():
    size = 64 * worker.MIB
    worker.reset_peak()
    before = worker.memory("VmRSS")
    # Pages of its own: an allocator may have some left over.
    with mmap.mmap(-1, size) as held:
        for page in range(0, size, mmap.PAGESIZE):
            held[page] = 1
    assert 0.9 * size < worker.memory("VmHWM") - before < 1.5 * size


def test_prediction_is_measured_in_rows_a_second(monkeypatch):
    alone = {OURS: Entry(OUR_MODEL, replace(TINY, test_rows=40), "orthogp")}
    monkeypatch.setattr(measurements, "lineup", lambda setup, peers: alone)
    out = predict(PredictConfig(replace(TINY, test_rows=40), repeats=1))
    assert out["skipped"] == out["ratio"] == {}
    assert out["rows_per_s"][OURS] > 0


def test_scaling_measures_the_sizes_asked_for():
    out = scaling(ScalingConfig(TINY, residuals=(20,), steps=1, repeats=1))
    assert list(out["ms"]) == list(out["peak_mb"]) == ["20"]
    assert out["ms"]["20"] > 0


def test_results_are_drawn_even_where_figures_are_missing(tmp_path):
    out = {"ms": {"0": 1.0, "10": 2.0, "100": 9.0}, "peak_mb": {"0": None, "10": None}}
    draw_scaling(out, tmp_path / "scaling.png")
    draw_bars(out, "ms", "ms", tmp_path / "bars.png")
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in ("scaling", "bars"))


def test_imports_are_compared_with_torch_and_gpytorch(monkeypatch):
    # The first round is not counted.
    script = {s: [99.0, base, 7.0, base] for s, base in zip(
        measurements.STATEMENTS.values(), (2.0, 1.0, 3.0), strict=True
    )}  # fmt: skip
    monkeypatch.setattr(measurements, "seconds_of", lambda statement: script[statement].pop(0))
    out = measurements.imports(ImportsConfig(repeats=3))
    assert out["ms"]["torch_gpytorch"] == 2000.0
    assert out["ratio"] == {"orthogp": 0.5, "orthogp_regressor": 1.5}


def test_the_time_of_an_import_is_that_of_a_fresh_process():
    assert (
        0
        < measurements.seconds_of("import json")
        < measurements.seconds_of("import time; time.sleep(1)")
    )
    with pytest.raises(ConfigurationError, match="absent"):
        measurements.seconds_of("import absent")


def test_the_coupled_basis_of_equal_cost_has_a_hundred_points_more():
    entries = lineup(Setup(), ())
    assert list(entries) == [OURS, "orthogp_coupled", "orthogp_coupled_400"]
    assert entries["orthogp_coupled_400"].setup == replace(Setup(), n_inducing=400, n_residual=0)


def test_what_is_missing_is_shown_as_missing():
    out = {"ms": {"a": 1234.5}, "ratio": {}, "peak_mb": {"a": None}, "skipped": {"b": "no b"}}
    shown = table("", "contestant", out)
    cells = [list(column.cells) for column in shown.columns]
    assert cells == [["a", "b"], ["1,234", "–"], ["–", "–"], ["–", "–"], ["", "no b"]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SpeedConfig(peers=("sklearn",)), "'sklearn' is no peer"),
        (lambda: SpeedConfig(pythons={"x": "y"}), "'x' is no peer"),
        (lambda: SpeedConfig(Setup(n_residual=0)), "n_residual is 0"),
        (lambda: SpeedConfig(Setup(device="tpu")), "device is 'tpu'"),
        (lambda: SpeedConfig(repeats=0), "repeats is 0"),
        (lambda: PredictConfig(Setup()), "test_rows is 0"),
        (lambda: ScalingConfig(residuals=(-1,)), "residuals is"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(build, message):
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.peer
def test_gpjax_takes_part():
    pytest.importorskip("gpjax")
    entries = {k: v for k, v in lineup(TINY, ("gpjax",)).items() if v.library == "gpjax"}
    task = {"do": "train", "steps": 1}
    outcome = contest.compete(entries, {"gpjax": sys.executable}, task, task, "seconds", 1)
    assert outcome.skipped == {}
    assert outcome.values["gpjax_svgp"] > 0
