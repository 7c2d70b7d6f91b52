"""The checkpoint files of a run: damaged, foreign, too many, or impossible to write."""

import errno
import os
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

from interrupted import checkpoints, crash, names, steps, train
from orthogp.errors import FileError
from orthogp.execution import files
from orthogp.model import VariationalGP, default_kernel
from orthogp.training import Rows, fit
from orthogp.training.checkpoint import Checkpoints, fingerprint
from runs import contents, data, finite, model, same, settings


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crashed")
    crash(folder, 15)
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def replace_by_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"step": 10}))


@pytest.mark.parametrize("damage", [truncate, flip, replace_by_pickle])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path, crashed, undisturbed, damage
):
    shutil.copytree(crashed, tmp_path, dirs_exist_ok=True)
    assert steps(tmp_path) == [5, 10]
    newest = checkpoints(tmp_path)[-1]
    damage(newest)
    starts = []
    with pytest.warns(UserWarning, match="passed over") as warned:
        m, _ = train(tmp_path, [lambda e: starts.append((e.kind, e.step))])
    assert len(warned) == 1
    assert str(warned[0].message).startswith(f"{newest} is ")
    assert str(warned[0].message).endswith("; it is passed over")
    assert starts[0] == ("start", 5)
    assert same(contents(m), undisturbed[1])
    assert steps(tmp_path) == [15, 20]


def test_a_damaged_checkpoint_ahead_of_the_run_is_not_kept_in_place_of_a_whole_one(tmp_path):
    crash(tmp_path, 20)
    for path in checkpoints(tmp_path):
        truncate(path)
    with pytest.warns(UserWarning, match="is damaged"):
        crash(tmp_path, 15)
    # 10 and 15 were damaged; from the start again, 5 and 10 were written.
    assert steps(tmp_path) == [5, 10]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(tmp_path)


def smoother(m: VariationalGP) -> VariationalGP:
    """Another kernel whose parameters have the same names and shapes."""
    kernel = default_kernel(2)
    kernel.kernels[0].base_kernel = RBFKernel()
    other = VariationalGP(kernel, m.likelihood, m.basis)
    assert [*other.state_dict()] == [*m.state_dict()]
    return other


def rougher(m: VariationalGP) -> VariationalGP:
    """The same kernel with another ν, which is no parameter."""
    kernel = default_kernel(2)
    kernel.kernels[0].base_kernel.nu = 1.5
    return VariationalGP(kernel, m.likelihood, m.basis)


OTHERS = {
    "rows": lambda rows: {"rows": Rows(rows.x[:-1], rows.y[:-1])},
    "a target": lambda rows: {"rows": Rows(rows.x, rows.y.index_fill(0, torch.tensor([150]), 9.0))},
    "weights": lambda rows: {"rows": Rows(rows.x, rows.y, torch.ones(len(rows)))},
    "settings": lambda rows: {"learning_rate": 0.02},
    "basis": lambda rows: {"m": model(rows, b=11)},
    "kernel": lambda rows: {"m": smoother(model(rows))},
    "smoothness": lambda rows: {"m": rougher(model(rows))},
    "held fixed": lambda rows: {"m": model(rows, hold_fixed="dual")},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path, crashed, other):
    shutil.copytree(crashed, tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in checkpoints(tmp_path)}
    options = OTHERS[other](data())
    starts = []
    with pytest.warns(UserWarning, match="passed over") as warned:
        m, _ = train(tmp_path, [lambda e: starts.append(e.step)], **options)
    assert starts[0] == 0
    assert [str(w.message) for w in warned] == [
        f"{path} belongs to a run with other data or settings; it is passed over"
        for path in reversed(before)
    ]
    assert finite(m)
    # Both runs can go on from here: this one's files do not displace the other's.
    assert {path: path.read_bytes() for path in before} == before
    assert steps(tmp_path) == [5, 10, 15, 20]


def test_more_time_is_no_other_run(tmp_path):
    rows, m = data(), model(data())
    assert fingerprint(m, rows, settings(max_time=5.0)) == fingerprint(m, rows, settings())
    assert fingerprint(m, rows, settings()) == fingerprint(model(rows), data(), settings())


def test_a_renamed_checkpoint_of_another_run_is_still_another_runs(tmp_path):
    own, other = Checkpoints(tmp_path, "a" * 64), Checkpoints(tmp_path, "b" * 64)
    other.save(5, {}, {})
    (path,) = checkpoints(tmp_path)
    path.rename(str(path).replace("b" * 12, "a" * 12))
    with pytest.warns(UserWarning, match="other data"):
        assert own.latest() is None


def test_two_checkpoints_are_kept(tmp_path):
    seen = []
    train(tmp_path, [lambda e: seen.append(steps(tmp_path))])
    # A report is told before its checkpoint is written.
    assert seen == [[], [], [5], [5, 10], [10, 15], [15, 20]]


def test_checkpoints_come_no_more_often_than_asked(tmp_path):
    rows, seen = data(), []
    fit(
        model(rows), rows, settings(), None, [lambda e: seen.append(names(tmp_path))], tmp_path, 1e6
    )
    # None on the way, and one at the end.
    assert seen[:-1] == [[]] * 5
    assert steps(tmp_path) == [20]


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    tmp_path, monkeypatch, undisturbed, function
):
    real, count = getattr(os, function), iter(range(1, 10**6))

    def full(*args):
        if next(count) in (3, 4):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, function, full)
    with pytest.warns(UserWarning, match="No space left") as warned:
        m, _ = train(tmp_path)
    assert len(warned) >= 1
    assert same(contents(m), undisturbed[1])
    assert not [name for name in names(tmp_path) if name.startswith(".")]
    assert steps(tmp_path)[-1] == 20


def test_a_directory_that_cannot_be_made_costs_the_checkpoints_and_not_the_run(
    tmp_path, undisturbed
):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="not be written"):
        m, result = train(tmp_path / "file" / "folder")
    assert result.steps == 20
    assert same(contents(m), undisturbed[1])


def test_an_interrupt_while_a_checkpoint_is_written_leaves_no_part_of_it(tmp_path, monkeypatch):
    real, count = os.replace, iter(range(1, 10**6))

    def interrupted(*args):
        if next(count) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(os, "replace", interrupted)
    _, result = train(tmp_path)
    assert (result.reason, result.steps) == ("interrupt", 10)
    assert steps(tmp_path) == [5, 10]


def test_a_checkpoint_holds_tensors_and_the_settings(undisturbed):
    newest = checkpoints(undisturbed[0])[-1]
    tensors, meta = files.read(newest, "checkpoint")
    assert meta["config"] == settings().as_dict()
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())
    with pytest.raises(FileError):
        files.read(newest, "model")
