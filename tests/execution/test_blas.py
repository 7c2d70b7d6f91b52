import numpy  # noqa: F401, loads the library
import pytest
import scipy.linalg  # noqa: F401, likewise
from threadpoolctl import threadpool_info

from orthogp.execution.blas import LIBRARY, one_blas_thread


def _threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["prefix"] == LIBRARY]


def test_numpy_and_scipy_have_one_thread_within_and_as_many_as_before_after() -> None:
    before = _threads()
    if not before:
        pytest.skip("NumPy's linear algebra is not that of its wheel")
    with one_blas_thread():
        assert _threads() == [1] * len(before)
    assert _threads() == before
