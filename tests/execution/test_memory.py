"""The memory that a computation may take."""

import os

import pytest
import torch

from orthogp.execution import memory

CPU = torch.device("cpu")


@pytest.fixture
def limit(tmp_path, monkeypatch):
    path = tmp_path / "limit"
    monkeypatch.setattr(memory, "LIMITS", (path, tmp_path / "missing"))
    return path


def test_it_is_a_share_of_the_machines(limit):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.affordable_bytes(CPU) == int(memory.SHARE * whole)
    limit.write_text("max\n")
    assert memory.affordable_bytes(CPU) == int(memory.SHARE * whole)


def test_a_container_may_have_less(limit):
    limit.write_text("1048576\n")
    assert memory.affordable_bytes(CPU) == int(memory.SHARE * 2**20)


def test_a_system_that_does_not_tell(limit, monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert memory.affordable_bytes(CPU) == int(memory.SHARE * memory.FALLBACK)
