"""Machine code that outlives its process: used where it is whole and one's own, else made anew."""

import hashlib
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("llvmlite")

from orthogp.radial import compiled, functions, kept, kernels, native
from orthogp.radial.kernels import Kind

KIND = Kind(("rbf", "matern32"), double=True, ard=False, dense=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.CACHE_VARIABLE, str(tmp_path / "cache"))
    functions.function.cache_clear()
    yield tmp_path / "cache"
    functions.function.cache_clear()


def block() -> torch.Tensor:
    """By the function of `KIND`, wherever it comes from."""
    functions.function.cache_clear()
    x = torch.linspace(-1, 1, 30, dtype=torch.float64).view(10, 3)
    two = torch.ones(2, dtype=torch.float64)
    return compiled.Block.apply(x, x, two[:, None], two, KIND.families)


def no_compiler(kind: Kind) -> bytes:
    raise AssertionError("compiled again")


def test_what_was_compiled_once_is_loaded(folder, monkeypatch):
    first = block()
    (file,) = folder.iterdir()
    monkeypatch.setattr(kernels, "object_code", no_compiler)
    torch.testing.assert_close(block(), first, rtol=0, atol=0)
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_file_that_is_not_whole_is_replaced(folder, damage, monkeypatch):
    first = block()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    if damage == "foreign":
        # As if someone else had written it.
        monkeypatch.setattr(os, "getuid", lambda: os.stat(file).st_uid + 1)
        spoiled = b"not code"
        file.write_bytes(hashlib.sha256(spoiled).digest() + spoiled)
    else:
        flipped = bytes([*whole[:-1], whole[-1] ^ 1])
        file.write_bytes({"cut": whole[:-9], "flipped": flipped, "empty": b""}[damage])
    torch.testing.assert_close(block(), first, rtol=0, atol=0)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("place", ["", "a file"])
def test_without_a_folder_code_is_compiled(folder, place, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("no folder")
    wanted = block()
    monkeypatch.setenv(kept.CACHE_VARIABLE, str(tmp_path / place) if place else "")
    torch.testing.assert_close(block(), wanted, rtol=0, atol=0)


def test_another_machine_or_source_has_code_of_its_own(folder, monkeypatch):
    block()
    monkeypatch.setattr(native, "this_machine", lambda: "another")
    block()
    monkeypatch.setattr(functions, "_source", lambda: "another")
    block()
    assert len(list(folder.iterdir())) == 3


def test_a_user_without_a_home_has_no_folder(monkeypatch):
    for name in (kept.CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> None:
        raise RuntimeError("no home")

    monkeypatch.setattr(kept.Path, "home", homeless)
    assert kept.kept("key", lambda: b"made") == b"made"


def test_processes_that_begin_together_do_not_disturb_each_other(folder):
    script = "from test_radial_kept import block; print(block().sum().item())"
    here = os.path.dirname(__file__)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
        for _ in range(3)
    ]
    said = {process.communicate()[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(said) == 1
    assert len(list(folder.iterdir())) == 1
