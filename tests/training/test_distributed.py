"""Several processes end where one does, and all in the same place."""

import time

import pytest
import torch

import team_jobs
from orthogp.execution.team import Team, current_team
from runs import same
from team import start, together


@pytest.mark.parametrize(
    ("size", "runs"),
    [
        (2, ("orthogonal,natural,gaussian,200,20", "orthogonal,adam,gaussian,200,20",
             "decoupled,adam,gaussian,200,20", "orthogonal,natural,gaussian,200,20,shard",
             "hybrid,adam,gaussian,200,20,shard")),
        # Three rows for four processes: one has none.
        (4, ("orthogonal,natural,bernoulli,200,20", "coupled,natural,gaussian,3,20",
             "orthogonal,natural,bernoulli,200,20,shard",
             # Two γ for four processes: everyone has both.
             "orthogonal,natural,gaussian,12,20,shard")),
    ],
)  # fmt: skip
def test_processes_end_where_one_does(tmp_path, size, runs):
    ends = together(size, "train_all", tmp_path, *runs)
    for k, alone in enumerate(team_jobs.train_all(*runs)):
        for end in ends[1:]:
            assert same(moved(end[k]), moved(ends[0][k]))
        for name, value in alone.items():
            torch.testing.assert_close(ends[0][k][name], value, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("shard", ["", "shard"])
def test_what_fails_in_one_process_is_recovered_from_in_all(tmp_path, shard):
    first, last = together(2, "fail_in_one", tmp_path, shard)
    assert first["recoveries"] > 0
    assert same(first, last)
    assert all(value.isfinite().all() for value in first.values())


def moved(end):
    """Without the history, whose bounds each process adds up for itself."""
    return {name: value for name, value in end.items() if name != "bounds"}


def test_shares_are_all_there_is():
    for size in (1, 2, 3, 7):
        for count in (0, 1, 5, 64):
            shares = [Team(rank, size).share(count) for rank in range(size)]
            assert [k for s in shares for k in range(count)[s]] == list(range(count))
            lengths = [s.stop - s.start for s in shares]
            assert max(lengths) - min(lengths) <= 1


def test_alone_there_is_nothing_to_say():
    team, tensors = current_team(), [torch.ones(2), torch.zeros(1, dtype=torch.float64)]
    assert team == Team(0, 1)
    assert team.leads
    assert team.sum(tensors)[0] is tensors[0]
    assert team.agree("x") == "x"


def test_a_killed_process_ends_the_job_and_nothing_is_lost(tmp_path):
    """Each process holds a part of γ. (The program's own test has γ whole.)"""
    points = tmp_path / "points"
    arguments = ("orthogonal", "natural", "gaussian", "200", "60", "shard", str(points))
    whole = together(2, "train", tmp_path / "whole", *arguments[:-1], str(tmp_path / "other"))
    processes = start(2, "train", tmp_path, *arguments)
    while not list(points.rglob("step-00000001*")):
        assert all(p.exitcode is None for p in processes)
        time.sleep(0.005)
    processes[1].kill()
    processes[0].join(timeout=60)
    message = (tmp_path / "stderr-0").read_text()
    assert processes[0].exitcode == 1
    assert "process 0 of 2 lost contact with the others" in message
    assert "same checkpoint_dir to go on" in message
    again = together(2, "train", tmp_path / "again", *arguments)
    assert same(again[0], whole[0])
    assert same(again[1], whole[1])
