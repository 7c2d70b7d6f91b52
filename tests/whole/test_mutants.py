"""The deliberate errors of `tools/mutants.py` still fit the source and the tests they are about."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = runpy.run_path(str(ROOT / "tools" / "mutants.py"))["MUTANTS"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant):
    assert (ROOT / "src" / mutant.file).read_text().count(mutant.find) == 1
    for name in mutant.tests:
        file, _, function = name.partition("::")
        text = (ROOT / file).read_text()
        assert not function or f"def {function.partition('[')[0]}(" in text
