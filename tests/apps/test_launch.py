"""Commands and estimators in a process group: one model, one voice, and an end whatever happens."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

import group_fits
from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.apps.launch import (
    PATIENCE,
    first_to_fail,
    fresh_name,
    is_described,
    own_gpu,
    process_group,
    warning_once,
)
from orthogp.apps.tabular.model import TableModel
from orthogp.errors import ConfigurationError
from orthogp.execution.team import Team
from tabular_cases import run, sample, write
from team import together
from torchrun import SUPPORT, torchrun

FIT = ("--target", "y", "--id", "key", "--drop", "label", "--n-inducing", 8, "--n-residual", 8,
       "--n-neighbors", 0,
       "--max-steps", 120, "--batch-size", 64, "--device", "cpu", "--dtype", "float64")  # fmt: skip


def test_alone_there_is_no_group():
    with process_group("cpu") as team:
        assert team == Team()
        assert not dist.is_initialized()


def test_a_group_is_described_by_all_variables_or_not_at_all():
    described = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    assert is_described(described)
    for name in described:
        assert not is_described({k: v for k, v in described.items() if k != name})


class Counts(dict):
    """A store that counts, as those of torch.distributed do."""

    def add(self, key, amount):
        self[key] = self.get(key, 0) + amount
        return self[key]


def test_a_warning_of_any_process_is_shown_once():
    store = Counts()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for rank, text in ((1, "a full disk"), (0, "a full disk"), (0, "a gap"), (2, "a gap")):
            with warning_once(Team(rank, 3), store):
                warnings.warn(text, stacklevel=1)
    assert [str(w.message) for w in shown] == ["process 1 of 3: a full disk", "a gap"]


def test_every_process_has_a_gpu_of_its_own():
    cuda, place = torch.device("cuda"), {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert own_gpu(cuda, place, 4) == torch.device("cuda", 1)
    with pytest.raises(ConfigurationError, match="no GPU"):
        own_gpu(cuda, place, 1)
    with pytest.raises(ConfigurationError, match="every process"):
        own_gpu(torch.device("cuda:0"), place, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("group")
    write(sample(600), place / "t.parquet")
    return place


@pytest.fixture(scope="module")
def undisturbed(folder):
    """A fit by two processes; what it said."""
    place = folder / "whole"
    command = ("fit", folder / "t.parquet", *FIT, "--out", folder / "two.orthogp",
               "--checkpoint-dir", place)  # fmt: skip
    place.mkdir()
    return torchrun(SUPPORT / "group_worker.py", "none", place, *command)


def test_a_fit_by_two_processes_is_that_of_one(folder, undisturbed):
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert undisturbed.stdout.count("the model is in") == 1
    assert undisturbed.stdout.count("task: regression") == 1
    run("fit", folder / "t.parquet", *FIT, "--out", folder / "one.orthogp")
    one, two = (TableModel.load(folder / f"{name}.orthogp") for name in ("one", "two"))
    assert one.plan == two.plan
    alone = one.estimator.model_.state_dict()
    for name, value in two.estimator.model_.state_dict().items():
        torch.testing.assert_close(value, alone[name], rtol=1e-6, atol=1e-8, msg=name)


def test_the_threads_of_a_group_end_with_it(folder, undisturbed):
    """One that is left may want the interpreter while it is being taken down, and abort."""
    assert undisturbed.returncode == 0, undisturbed.stderr
    for rank in (0, 1):
        names = (folder / "whole" / f"threads-{rank}").read_text()
        assert "python" in names
        assert "gloo" not in names


@pytest.mark.torture
def test_a_killed_process_costs_nothing_after_a_restart(folder, undisturbed):
    place = folder / "killed"
    place.mkdir()
    done = torchrun(
        SUPPORT / "group_worker.py", "kill", place, "fit", folder / "t.parquet", *FIT,
        "--out", folder / "again.orthogp", "--checkpoint-dir", place, restarts=1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("orthogp: process 0 of 2 lost contact with the others") == 1
    assert "same checkpoint_dir to go on" in done.stderr
    assert (place / "started-0").read_text() == "0"
    assert 0 < int((place / "started-1").read_text()) < 120
    again, whole = (TableModel.load(folder / f"{name}.orthogp") for name in ("again", "two"))
    assert same(group_fits.contents(again.estimator), group_fits.contents(whole.estimator))


@pytest.mark.torture
def test_an_error_of_one_is_said_once_and_ends_the_job(folder, tmp_path):
    done = torchrun(
        SUPPORT / "group_worker.py", "refuse", tmp_path, "fit", folder / "t.parquet", *FIT,
        "--out", tmp_path / "m",
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("orthogp: ") == 1
    assert "orthogp: the second process cannot read its table" in done.stderr
    assert not (tmp_path / "m").exists()


def test_of_all_that_fail_the_first_speaks():
    store = dist.HashStore()  # pyright: ignore
    assert [first_to_fail(store) for _ in range(3)] == [True, False, False]


def test_estimators_in_a_group_end_alike_and_where_one_ends(tmp_path):
    first, second = together(2, "fit_estimators", tmp_path, str(tmp_path))
    assert "were given different rows" in first["refusal"]
    assert first["refusal"] == second["refusal"]
    for kind in ("seeded", "unseeded"):
        for name in first[kind]:
            assert same(first[kind][name], second[kind][name]), (kind, name)
    X, _ = group_fits.table()
    for name, alone in group_fits.seeded_fits().items():
        expected = group_fits.contents(alone)
        for key, value in first["seeded"][name].items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-5, msg=key)
        assert first["seeded"][name]["elbo"] == pytest.approx(expected["elbo"], rel=1e-6)
        kind = OrthogonalGPClassifier if name == "classifier" else OrthogonalGPRegressor
        loaded = kind.load(tmp_path / f"{name}.orthogp", device="cpu")
        if name != "classifier":
            np.testing.assert_allclose(loaded.predict(X), alone.predict(X), rtol=1e-5)


def same(one: dict, other: dict) -> bool:
    """Equal bit for bit."""
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


def test_every_attempt_has_a_name_of_its_own():
    store, names = dist.HashStore(), []  # pyright: ignore
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            # The first comes late: what the others find meanwhile is the last attempt's.
            late = [pool.submit(fresh_name, store, rank, 4, PATIENCE) for rank in (3, 1, 2, 0)]
            found = {job.result(timeout=60) for job in late}
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3
