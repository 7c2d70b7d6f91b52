"""The Python in the README runs as it stands there, with fewer steps."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert all("max_steps=500" in code for code in found)
    results = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in found:
            names: dict = {}
            exec(code.replace("max_steps=500", "max_steps=20"), names)
            results.append(names)
    return results


def test_the_examples_run(examples):
    estimators, research = examples
    assert (estimators["low"] < estimators["high"]).all()
    assert estimators["mean"].shape == estimators["std"].shape == (10,)
    np.testing.assert_allclose(estimators["probabilities"].sum(1), 1.0)
    assert research["mean"].shape == research["variance"].shape == (1, 10)
    assert research["bound"] < 0
