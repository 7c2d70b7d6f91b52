"""Jobs for compiled functions: the only place where tensors become addresses.

Machine code knows neither dtypes nor shapes. A tensor of another kind than the one it was made for
gives wrong numbers or ends the process, so every tensor is checked on its way into a job.
"""

import ctypes
import hashlib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from orthogp.errors import DataError
from orthogp.kernel.radial import emit, families, kernels, native, threads
from orthogp.kernel.radial.code_cache import cached_code
from orthogp.kernel.radial.kernels import FIELDS, Kind

# Fewer entries than this are done before a second thread has begun.
SMALLEST_SHARED = 2**13


class _Record(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in FIELDS]


class TileJob:
    """The work on a tile: all rows of x and `columns` columns of a block, from `left` on.

    z and a hold the columns padded to whole vectors; the block has `stride` columns in all.
    """

    def __init__(
        self,
        kind: Kind,
        x: Tensor,
        z: Tensor,
        a: Tensor | None,
        rho: Tensor,
        scale: Tensor,
        left: int,
        columns: int,
        stride: int,
        tasks: int,
    ):
        (rows, dims), width, count = x.shape, z.shape[-1], len(kind.families)
        latents = 0 if a is None else a.shape[0]
        self.columns, self.width, self.tasks = columns, width, tasks
        self._threads = torch.get_num_threads() if rows * columns >= SMALLEST_SHARED else 1
        self._dtype = torch.float64 if kind.double else torch.float32
        # Bytes before the tile in the first row of a block.
        skipped = left * self._dtype.itemsize if kind.dense else 0
        self._offsets: dict[str, int] = {"out": skipped, "P": skipped}
        self._shapes = {
            "x": (rows, dims),
            "z": (dims, width),
            "a": (latents, width),
            "rho": (count, dims if kind.ard else 1),
            "scale": (count,),
            "out": (rows, stride) if kind.dense else (latents, rows),
            "P": (rows, stride),
            "g": (latents, rows),
            "grad_x": (rows, dims),
            "grad_z": (dims, tasks, width),
            "grad_a": (latents, tasks, width),
            "sums": (tasks, count * (2 + (dims if kind.ard else 0))),
        }
        self._counter = ctypes.c_int64(0)
        self._record = _Record(
            next=ctypes.addressof(self._counter), rows=rows, columns=columns, dims=dims,
            width=width, stride=stride, latents=latents, tasks=tasks,
        )  # fmt: skip
        # What an address points to must live as long as the job.
        self._inputs = {"x": x, "z": z, "rho": rho, "scale": scale}
        if a is not None:
            self._inputs["a"] = a
        self._point_to(self._inputs)

    def run(self, kind: Kind, **tensors: Tensor) -> None:
        """Calls the function of this kind, which reads and writes these tensors too."""
        self._point_to(tensors)
        self._counter.value = 0
        threads.run(function_address(kind), ctypes.addressof(self._record), self._threads)

    def _point_to(self, tensors: dict[str, Tensor]) -> None:
        for field, tensor in tensors.items():
            shape = self._shapes[field]
            dtype = torch.float64 if field == "sums" else self._dtype
            if (
                tensor.dtype != dtype
                or tensor.shape != shape
                or not tensor.is_cpu
                or not tensor.is_contiguous()
            ):
                raise DataError(
                    f"{field} is {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}; "
                    f"expected {dtype} of shape {shape} on the CPU, in one piece: the points, the "
                    "weights, the kernel and the gradients must agree"
                )
            setattr(self._record, field, tensor.data_ptr() + self._offsets.get(field, 0))


@cache
def function_address(kind: Kind) -> int:
    """The address of the function of this kind, loaded from the cache on disk or compiled."""
    key = f"{kind} {_source_digest()} {native.this_machine()}"
    code = cached_code(key, lambda: kernels.compile_function(kind))
    return native.load_function(code, kernels.NAME)


@cache
def _source_digest() -> str:
    """The digest of the source that writes the functions: code of another version is not used."""
    files = (module.__file__ for module in (emit, families, kernels, native))
    content = b"".join(Path(file).read_bytes() for file in files if file)
    return hashlib.sha256(content).hexdigest()
