"""How much memory a computation may take."""

import os
from contextlib import suppress
from pathlib import Path

import torch

# Of all there is on a CPU, of what is free on a GPU.
SHARE = 0.25
# Where the system does not tell.
FALLBACK = 2**33
# Numbers in the largest temporary of what is computed chunk after chunk; on a GPU one for each so
# many bytes of its memory, within limits.
CPU_ELEMENTS, FEWEST_ELEMENTS, MOST_ELEMENTS = 2**20, 2**26, 2**28
BYTES_AN_ELEMENT = 512
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


def chunk_elements(device: torch.device) -> int:
    """Numbers in the largest temporary of a chunk: few on a CPU, to stay in its cache."""
    if device.type != "cuda":
        return CPU_ELEMENTS
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(FEWEST_ELEMENTS, min(memory // BYTES_AN_ELEMENT, MOST_ELEMENTS))


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
