"""Compiled work in the threads that torch already has.

torch's OpenMP threads wait for their next work by spinning: a second pool beside them would have to
share the cores with threads that do nothing. So the work is given to the very same pool, at the
place where torch has its OpenMP library; where that is not GNU's, Python's threads run it.
"""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from orthogp.kernel.radial.accelerators import disabled

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run(function: int, argument: int, threads: int) -> None:
    """Calls the machine code at `function` with `argument` in so many threads and waits for them.

    The interpreter is free meanwhile; torch's own number of threads stays what it is.
    """
    if threads <= 1:
        _FUNCTION(function)(argument)
        return
    parallel = _parallel()
    if parallel is not None:
        parallel(function, argument, threads, 0)
        return
    work = _FUNCTION(function)
    with ThreadPoolExecutor(threads - 1) as pool:
        for _ in range(threads - 1):
            pool.submit(work, argument)
        work(argument)


@cache
def _parallel():
    """`GOMP_parallel(function, argument, threads, flags)` of torch's own OpenMP, or None."""
    if disabled("openmp"):
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            parallel = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
        parallel.restype = None
        return parallel
    return None
