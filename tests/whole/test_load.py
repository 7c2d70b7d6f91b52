"""Many at once: threads that predict, processes that fit; and nothing global is touched."""

import json
import subprocess
import sys

import pytest

import load_job
from load_job import MODELS, ROUNDS, SEEDS, THREADS


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, load_job.__file__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out)


@pytest.fixture(scope="module")
def alone():
    return result(start("alone"))


@pytest.mark.parametrize("name", MODELS)
def test_eight_threads_get_exactly_what_one_gets(alone, name):
    nothing_wrong = {"answers": THREADS * ROUNDS, "wrong": 0, "changed": [], "exchanged": []}
    assert alone["threads"][name] == nothing_wrong


def test_processes_that_fit_at_once_get_exactly_what_one_alone_gets(alone):
    first, second = alone["fits"]
    assert first != second
    at_once = [start("fit", seed) for seed in SEEDS]
    assert [result(process) for process in at_once] == [first, second]


def test_what_everyone_shares_is_as_found(alone):
    found = alone["states"]
    assert list(found) == ["import", "fit", "predict", "draw", "save", "load", "refuse"]
    assert not any(found.values()), found
