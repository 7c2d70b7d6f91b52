"""A run that was killed, at whatever moment, ends where the undisturbed run ends."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

import killed_run
from interrupted import crash, everything, names, train
from orthogp.training.step import Step
from runs import contents, data, model, same, untimed


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    folder = tmp_path_factory.mktemp("killed")
    script = [sys.executable, killed_run.__file__, str(folder), *killed_run.MOMENTS]
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run(script, check=True, env=os.environ | {"PYTHONPATH": path}, timeout=120)
    return folder


@pytest.mark.parametrize(
    ("moment", "left"),
    [("report", [5, 10]), ("step", [5, 10]), ("rename", [5, 10]), ("written", [5, 10, 15])],
)
def test_a_killed_run_ends_where_the_undisturbed_one_does(killed, undisturbed, moment, left):
    folder, (other, expected, result) = killed / moment, undisturbed
    whole = [name for name in names(folder) if not name.startswith(".")]
    assert [int(name.split("-")[1]) for name in whole] == left
    # Killed before the rename, the write has left its temporary file.
    assert (len(names(folder)) > len(whole)) == (moment == "rename")
    starts = []
    m, again = train(folder, [lambda e: starts.append(e.step) if e.kind == "start" else None])
    assert starts == [left[-1]]
    assert same(contents(m), expected)
    assert untimed(again) == untimed(result)
    assert (again.steps, again.reason) == (result.steps, result.reason)
    # Optimizer state and generators too, so that any continuation is the same.
    assert same(everything(folder), everything(other))
    assert names(folder) == names(other)


@pytest.mark.parametrize(
    ("basis", "optimizer", "changes"),
    [
        ("coupled", "natural", {}),
        ("hybrid", "adam", {}),
        ("orthogonal", "adam", {"kl_columns": None}),
        # 10 is no multiple of 15, so what was refreshed is older than the checkpoint.
        ("orthogonal", "natural", {"residual_rule": "exact", "residual_step": 1e-4,
                                   "refresh_every": 15}),
        ("orthogonal", "natural", {"residual_rule": "diagonal", "residual_step": 1e-4,
                                   "refresh_every": 15}),
        ("orthogonal", "natural", {"schedule": "cosine", "clip_norm": 0.1, "refresh_every": 15}),
    ],
)  # fmt: skip
def test_every_method_resumes_exactly(tmp_path, basis, optimizer, changes):
    rows = data(dtype=torch.float64)
    options = {"rows": rows, "validation": False, **changes}
    m, result = train(None, m=model(rows, basis, optimizer), **options)
    crash(tmp_path, 15, m=model(rows, basis, optimizer), **options)
    n, again = train(tmp_path, m=model(rows, basis, optimizer), **options)
    assert same(contents(m), contents(n))
    assert untimed(result) == untimed(again)


def test_a_resumed_run_does_only_the_steps_that_are_left(tmp_path, monkeypatch):
    crash(tmp_path, 15)
    count, run = [], Step._run
    monkeypatch.setattr(Step, "_run", lambda self: (count.append(1), run(self)))
    train(tmp_path)
    assert len(count) == 10


def test_a_finished_run_returns_at_once_with_the_finished_model(undisturbed, monkeypatch):
    folder, expected, result = undisturbed
    monkeypatch.setattr(Step, "_run", lambda self: pytest.fail("a step was taken"))
    m, again = train(folder)
    assert same(contents(m), expected)
    assert again == result


def test_recoveries_survive_the_process(tmp_path, monkeypatch):
    """Jitter, dtype, caution and count come back with the checkpoint."""
    bound, ends = Step._run, []
    for folder, stop in ((None, None), (tmp_path, 15)):
        count = iter(range(1, 10**6))

        def failing(self, count=count):
            bound(self)
            if next(count) in (3, 8, 13):
                self.watch.failed[2] = True

        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patch.setattr(Step, "_run", failing)
            if stop is None:
                ends.append(train(folder))
            else:
                crash(folder, stop)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ends.append(train(tmp_path))
    (m, result), (n, again) = ends
    assert again.recoveries == result.recoveries == 3
    assert m.jitter == n.jitter
    assert n.basis.beta.dtype == torch.float64
    assert same(contents(m), contents(n))
    assert untimed(result) == untimed(again)
