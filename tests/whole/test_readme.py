"""The Python in the README runs as it stands there."""

import re
from pathlib import Path

import torch

README = Path(__file__).parents[2] / "README.md"


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(code, names)
    assert (names["low"] < names["high"]).all()
    assert names["mean"].shape == names["std"].shape == (10,)
    assert (tmp_path / "model.orthogp").exists()
