"""A file is whole or refused; a write that fails leaves what was there."""

import errno
import os
import pickle
import sys

import pytest
import torch

from orthogp.errors import FileError
from orthogp.execution import files

TENSORS = {
    "a": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "b": torch.arange(5),
    "c": torch.tensor(2.5, dtype=torch.float64),
    "view": torch.arange(6.0).reshape(2, 3).T,
}
META = {"step": 3, "name": "γ", "best": -float("inf"), "history": [{"x": 0.1}]}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "deep" / "file"
    files.write(path, "model", TENSORS, META)
    return path


def test_what_was_written_is_read_bit_for_bit(path):
    tensors, meta = files.read(path, "model")
    assert meta == META
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)
    assert os.listdir(path.parent) == ["file"]


def test_no_truncation_is_read(path):
    whole = path.read_bytes()
    for length in [0, 1, 16, 17, 80, 81, 82, 90, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=str(path)):
            files.read(path, "model")


def test_no_flipped_bit_is_read(path):
    whole = path.read_bytes()
    for position in [*range(120), *range(120, len(whole), 7), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.raises(FileError):
            files.read(path, "model")


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_a_pickle_is_refused_and_never_run(tmp_path, path):
    path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(FileError, match="orthogp model"):
        files.read(path, "model")
    assert not (tmp_path / "sprung").exists()


def test_other_kinds_missing_files_and_longer_files_are_refused(tmp_path, path):
    with pytest.raises(FileError, match="orthogp checkpoint"):
        files.read(path, "checkpoint")
    with pytest.raises(FileError, match="No such file"):
        files.read(tmp_path / "nothing", "model")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(FileError, match="damaged"):
        files.read(path, "model")


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize(
    ("failure", "error"), [(full, FileError), (interrupted, KeyboardInterrupt)]
)
def test_a_failed_write_leaves_the_old_file_and_no_other(
    path, monkeypatch, function, failure, error
):
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failure)
        with pytest.raises(error):
            files.write(path, "model", TENSORS, {"step": 4})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["file"]


def test_a_place_that_cannot_be_written_is_named_with_the_reason(path):
    with pytest.raises(FileError, match=r"Not a directory|File exists"):
        files.write(path / "below", "model", TENSORS, META)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are looked up in /proc")
def test_a_system_without_locks_that_opens_no_folders_and_renames_no_open_files(path, monkeypatch):
    """As Windows is."""
    rename, opened = os.replace, os.open

    def replace(source, target):
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        if str(source) in [os.readlink(link) for link in links if os.path.lexists(link)]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, target)

    def open_file(name, *arguments, **options):
        if os.path.isdir(name):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, *arguments, **options)

    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "open", open_file)
    files.write(path, "model", TENSORS, {"step": 5})
    assert files.read(path, "model")[1] == {"step": 5}
    assert os.listdir(path.parent) == ["file"]
