"""Machine code that outlives its process: used where it is whole and one's own, else made anew."""

import hashlib
import os
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("llvmlite")

from orthogp.kernel.radial import compiled, native
from orthogp.kernel.radial.program import Kind, program

KIND = Kind(("rbf", "matern32"), double=True, ard=False, dense=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(native.CACHE_VARIABLE, str(tmp_path / "cache"))
    compiled._function.cache_clear()
    yield tmp_path / "cache"
    compiled._function.cache_clear()


def block() -> torch.Tensor:
    """By the function of `KIND`, wherever it comes from."""
    compiled._function.cache_clear()
    x = torch.linspace(-1, 1, 30, dtype=torch.float64).view(10, 3)
    two = torch.ones(2, dtype=torch.float64)
    return compiled.block(x, x, two[:, None], two, KIND.families)


def no_compiler(program: str) -> bytes:
    raise AssertionError("compiled again")


def test_what_was_compiled_once_is_loaded(folder, monkeypatch):
    first = block()
    (file,) = folder.iterdir()
    monkeypatch.setattr(native, "compile_program", no_compiler)
    torch.testing.assert_close(block(), first, rtol=0, atol=0)
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_file_that_is_not_whole_is_replaced(folder, damage):
    first = block()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    flipped = bytes([*whole[:-1], whole[-1] ^ 1])
    file.write_bytes({"cut": whole[:-9], "flipped": flipped, "empty": b""}[damage])
    torch.testing.assert_close(block(), first, rtol=0, atol=0)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("umask", [0o002, 0o000])
def test_only_the_user_may_read_or_write_what_is_cached(folder, umask):
    before = os.umask(umask)
    try:
        block()
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.fixture(scope="module")
def foreign():
    """A whole file with the code of other kernels: who runs it gets other numbers."""
    code = native.compile_program(program(replace(KIND, families=("rbf", "matern52"))))
    return hashlib.sha256(code).digest() + code


def test_a_whole_file_of_ones_own_is_run(folder, foreign):
    """What the next tests see not to happen would show."""
    first = block()
    (file,) = folder.iterdir()
    file.write_bytes(foreign)
    assert not torch.allclose(block(), first)


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o666])
def test_a_file_that_others_may_write_is_not_run_but_replaced(folder, foreign, mode):
    first = block()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(foreign)
    file.chmod(mode)
    torch.testing.assert_close(block(), first, rtol=0, atol=0)
    assert file.read_bytes() == whole
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o775, 0o707, 0o777])
def test_of_a_folder_that_others_may_write_to_nothing_is_run(folder, foreign, mode):
    first = block()
    (file,) = folder.iterdir()
    file.write_bytes(foreign)
    folder.chmod(mode)
    torch.testing.assert_close(block(), first, rtol=0, atol=0)
    assert file.read_bytes() == foreign


def test_nothing_of_another_user_is_run(folder, foreign, monkeypatch):
    first = block()
    (file,) = folder.iterdir()
    file.write_bytes(foreign)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    torch.testing.assert_close(block(), first, rtol=0, atol=0)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_symbolic_links_are_not_followed(folder, foreign, what, tmp_path):
    first = block()
    (file,) = folder.iterdir()
    file.write_bytes(foreign)
    linked = file if what == "file" else folder
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    torch.testing.assert_close(block(), first, rtol=0, atol=0)


@pytest.mark.parametrize("place", ["", "a file"])
def test_without_a_folder_code_is_compiled(folder, place, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("no folder")
    wanted = block()
    monkeypatch.setenv(native.CACHE_VARIABLE, str(tmp_path / place) if place else "")
    torch.testing.assert_close(block(), wanted, rtol=0, atol=0)


def test_another_machine_or_program_has_code_of_its_own(folder, monkeypatch):
    block()
    monkeypatch.setattr(native, "this_machine", lambda: "another")
    block()
    monkeypatch.setattr("orthogp.kernel.radial.program.STRIP", 4)
    block()
    assert len(list(folder.iterdir())) == 3


def test_a_user_without_a_home_has_no_folder(monkeypatch):
    for name in (native.CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> None:
        raise RuntimeError("no home")

    monkeypatch.setattr(native.Path, "home", homeless)
    assert native.cached_code("key", lambda: b"made") == b"made"


def test_processes_that_begin_together_do_not_disturb_each_other(folder):
    script = "from test_code_cache import block; print(block().sum().item())"
    here = os.path.dirname(__file__)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
        for _ in range(3)
    ]
    outputs = {process.communicate()[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(outputs) == 1
    assert len(list(folder.iterdir())) == 1
