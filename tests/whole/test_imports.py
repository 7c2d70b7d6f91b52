"""What importing orthogp brings in, which takes time, and what it leaves as it was."""

import subprocess
import sys

import pytest

import orthogp

LIGHT = """
import sys
import orthogp
import orthogp.apps.cli
import orthogp.apps.tabular.commands
assert not {"torch", "sklearn", "pyarrow", "numpy"} & set(sys.modules)
import orthogp.apps.paper.figures
import orthogp.apps.paper.tables
assert not {"matplotlib", "pandas"} & set(sys.modules)
"""

HEAVY = """
import sys, warnings
import gpytorch, torch

def settings():
    return (torch.get_default_dtype(), torch.get_num_threads(), torch.random.get_rng_state().sum(),
            len(warnings.filters), gpytorch.settings.cholesky_jitter.value(torch.float32))

before = settings()
import orthogp.model, orthogp.posterior.optimum, orthogp.training
assert settings() == before
assert "rich" not in sys.modules
import orthogp.plotting.pages
assert "matplotlib" not in sys.modules
import numpy as np
from orthogp import OrthogonalGPRegressor
x = np.random.default_rng(0).normal(size=(60, 2))
OrthogonalGPRegressor(8, 8, max_steps=3, random_state=0).fit(x, x[:, 0])
assert not {"botorch", "matplotlib", "ray", "dask", "torch._dynamo"} & set(sys.modules)
"""


@pytest.mark.parametrize("code", [LIGHT, HEAVY], ids=["the program", "a fit"])
def test_nobody_pays_for_what_is_not_used(code):
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        orthogp.Nothing  # noqa: B018
