"""How much memory a computation may take."""

import os
from contextlib import suppress
from pathlib import Path

import torch

# Of all there is on a CPU, of what is free on a GPU.
SHARE = 0.25
# Where the system does not tell.
FALLBACK = 2**33
# The limits of a container, in the second and the first version of Linux's control groups.
LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def affordable_bytes(device: torch.device) -> int:
    """What one matrix may take on this device."""
    if device.type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(device)[0])
    return int(SHARE * _memory())


def _memory() -> int:
    """The machine's memory, or less where the process is limited to less."""
    found = []
    # Windows has no sysconf, and not every system knows both names.
    with suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in LIMITS:
        # A file may be missing, or say "max".
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min((size for size in found if size > 0), default=FALLBACK)
