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


PAGE_FAULTS = """
import resource
import numpy as np
from orthogp import OrthogonalGPRegressor

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        np.ones(2**19)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

page_faults()
before = page_faults()
X = np.random.default_rng(0).normal(size=(300, 2))
gp = OrthogonalGPRegressor(n_inducing=10, n_residual=0, max_steps=2).fit(X, X[:, 0])
gp.predict(X)
print(before, page_faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the thresholds are those of glibc")
def test_a_fit_leaves_the_allocator_of_memory_as_it_was():
    """An array of 4 MiB, freed and asked for again, is the same pages as before a fit."""
    command = [sys.executable, "-c", PAGE_FAULTS]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = map(int, found.stdout.split())
    # A hundred arrays whose pages were new each time would be a hundred thousand faults.
    assert after < before + 20_000
