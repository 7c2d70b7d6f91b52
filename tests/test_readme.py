"""The Python in the README runs as it stands there, with fewer steps."""

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert "max_steps=500" in code
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(code.replace("max_steps=500", "max_steps=20"), names)
    assert names["mean"].shape == names["variance"].shape == (1, 10)
    assert names["bound"] < 0
