"""Programs under torchrun on loopback, as tests see them end."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent


def torchrun(*arguments: object, processes: int = 2, restarts: int = 0):
    """What `torchrun --nproc-per-node … ARGUMENTS` said, and how it ended."""
    start = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d",
             "--rdzv-endpoint=localhost:0", f"--nproc-per-node={processes}",
             f"--max-restarts={restarts}"]  # fmt: skip
    # What the tests import, a copy of the source among it, is what the processes import.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    return subprocess.run(
        [*start, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300
    )
