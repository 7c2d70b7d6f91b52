"""CUDA tests are skipped where there is no device; figures that tests measure close the run."""

import os
import sys
from pathlib import Path

import pytest
import torch

import shape_checks

# Code that tests compile stays out of the user's own folder.
os.environ.setdefault("ORTHOGP_CACHE", str(Path(__file__).parent.parent / "build" / "cache"))

# Before jaxtyping's own finder.
sys.meta_path.insert(0, shape_checks.TritonModules)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True, scope="module")
def _shapes_are_checked():
    shape_checks.start_again()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run with checkpoints that nothing disturbed: its folder, its contents, its result."""
    # Imported late: what is imported before the run begins escapes the check of shapes.
    from interrupted import train
    from runs import contents

    folder = tmp_path_factory.mktemp("undisturbed")
    m, result = train(folder)
    return folder, contents(m), result


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    from browser import launched

    with launched() as found:
        yield found


def pytest_terminal_summary(terminalreporter):
    """What tests gave to `record_property("figure", …)`, from every worker."""
    passed = terminalreporter.stats.get("passed", [])
    figures = [value for r in passed for key, value in r.user_properties if key == "figure"]
    if figures:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(sorted(figures)))
