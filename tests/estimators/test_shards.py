"""Rows that differ between processes: the model of all of them, the same in every process."""

import time

import pytest
import torch

import shard_fits
from orthogp.estimators import sharded
from orthogp.sources import blocks
from team import start, together


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return together(3, "fit_shards", folder, str(folder))


def test_shards_end_where_one_process_with_all_rows_ends(ends, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "ARRAY_ROWS", shard_fits.BLOCK)
    monkeypatch.setattr(sharded, "ARRAY_ROWS", shard_fits.BLOCK)
    alone = shard_fits.all_fits(None, tmp_path)
    for found, _ in ends:
        assert found.keys() == alone.keys()
        for fit, values in alone.items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    same = {"rtol": 1e-6, "atol": 1e-8, "msg": lambda m, k=(fit, name): f"{k} {m}"}
                    torch.testing.assert_close(found[fit][name], value, **same)
            if "elbo" in values:
                assert found[fit]["elbo"] == pytest.approx(values["elbo"], rel=1e-6)


def test_every_process_has_the_same_bits(ends):
    first, *others = [found for found, _ in ends]
    for other in others:
        for fit, values in first.items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value, other[fit][name]), (fit, name)


def test_shards_that_are_not_of_one_table_are_refused_in_every_process(ends):
    expected = [
        "process 2 has the columns 0 and process 0 has 0, 1",
        "process 2 has text in the column b and process 0 has numbers",
        "process 2 has weights and process 0 has none",
        "X has 1 values that are infinite",
        "none of the 3 processes has any rows",
        "process 2 of 3: nowhere.parquet is not there",
        "process 2 of 3: rows 0 to 99: X has 1 values that are infinite",
    ]
    for _, messages in ends:
        assert len(messages) == len(expected)
        for sentence, beginning in zip(messages, expected, strict=True):
            assert sentence.startswith(beginning), sentence


def test_a_killed_process_ends_the_job_which_then_resumes(tmp_path):
    whole = together(2, "fit_resumable_shards", tmp_path / "whole", str(tmp_path / "other"))
    points = tmp_path / "points"
    processes = start(2, "fit_resumable_shards", tmp_path, str(points))
    while not list(points.rglob("step-000000050*")):
        assert all(p.exitcode is None for p in processes)
        time.sleep(0.005)
    processes[1].kill()
    processes[0].join(timeout=60)
    assert processes[0].exitcode == 1
    messages = (tmp_path / "stderr-0").read_text()
    assert "process 0 of 2 lost contact with the others" in messages
    again = together(2, "fit_resumable_shards", tmp_path / "again", str(points))
    assert whole[0]["started"] == [0]
    assert again[0]["started"][0] > 0
    for one, other in zip(whole, again, strict=True):
        for name, value in one.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other[name]), name
