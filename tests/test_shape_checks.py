"""Every test runs under a check of shapes, which long runs are spared after a while."""

import jaxtyping
import pytest
import torch

import shape_checks
from orthogp.posterior.optimum import coupled_optimum


@pytest.mark.parametrize("turn", ["first", "second"])
def test_the_first_calls_in_each_file_are_checked(turn):
    shape_checks.start_again()
    w, y = torch.ones(2, 5), torch.ones(5)
    with pytest.raises(jaxtyping.TypeCheckError, match="coupled_optimum"):
        coupled_optimum(w, y[:, None], 0.1)
    for _ in range(shape_checks.CALLS):
        coupled_optimum(w, y, 0.1)
    coupled_optimum(w, y[:, None], 0.1)
