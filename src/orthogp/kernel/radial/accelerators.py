"""Accelerators switched off by the environment; plain torch or Python's threads do their work.

`ORTHOGP_DISABLE` names them, with commas between: llvm (machine code for the kernel sums on a CPU),
openmp (torch's own threads for that code), triton (the fused kernel on a CUDA device). Each is
looked up when it is first needed.
"""

import os

from orthogp.errors import ConfigurationError

VARIABLE = "ORTHOGP_DISABLE"
ACCELERATORS = ("llvm", "openmp", "triton")


def disabled(accelerator: str) -> bool:
    named = os.environ.get(VARIABLE, "").split(",")
    names = [name.strip() for name in named if name.strip()]
    unknown = [name for name in names if name not in ACCELERATORS]
    if unknown:
        raise ConfigurationError(
            f"{VARIABLE} names {', '.join(unknown)}; expected some of {', '.join(ACCELERATORS)}, "
            "with commas between"
        )
    return accelerator in names
