"""Pages that a step gives back are the pages the next one asks for: let the process keep them."""

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Of glibc's malloc.h, and the sizes it starts with.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SMALL = {M_TRIM_THRESHOLD: 2**17, M_TOP_PAD: 2**17, M_MMAP_THRESHOLD: 2**17}
# The largest that glibc takes for a threshold of mmap is 32 MiB.
LARGE = {M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26, M_MMAP_THRESHOLD: 2**25}


_inside = 0
_COUNTING = threading.Lock()


@contextmanager
def kept_pages() -> Iterator[None]:
    """Spares a CPU run the page faults of its temporaries, thousands a step; elsewhere nothing."""
    global _inside
    libc = _glibc()
    if libc is None:
        yield
        return
    with _COUNTING:
        _inside += 1
        _set(libc, LARGE)
    try:
        yield
    finally:
        with _COUNTING:
            _inside -= 1
            if not _inside:
                _set(libc, SMALL)
                libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def _set(libc: ctypes.CDLL, sizes: dict[int, int]) -> None:
    for parameter, size in sizes.items():
        libc.mallopt(ctypes.c_int(parameter), ctypes.c_int(size))
