"""Both products of a tile of a symmetric matrix, K a and Kᵀ b, by machine code on a CPU.

Products with a large matrix take as long as it takes to read it. Both are done in one pass here; a
library for dense matrices takes two.
"""

from array import array
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from orthogp.kernel.radial import native
from orthogp.kernel.radial.tiles import rows_in_registers
from orthogp.kernel.radial.writer import NAME, SUM_BYTES, Function, Value

# Tasks that the rows of a tile are cut into: so are the sums.
TASKS = 8
# matrix is [rows, width]; a [width] and b [rows], of_rows [rows] and of_columns [tasks, width].
ADDRESSES = ("matrix", "a", "b", "of_rows", "of_columns")
SIZES = ("rows", "width", "tasks")


class CompiledTile:
    """A tile in memory, with zeros beyond its last row and column up to whole vectors."""

    def __init__(self, K: Float[Tensor, "n m"]):
        self.shape = K.shape
        lanes = SUM_BYTES // K.dtype.itemsize
        below, beyond = -K.shape[0] % rows_in_registers(), -K.shape[1] % lanes
        self.K = pad(K, (0, beyond, 0, below)) if below or beyond else K.contiguous()

    @property
    def dtype(self) -> torch.dtype:
        return self.K.dtype

    def products(
        self, a: Float[Tensor, "c m"], b: Float[Tensor, "c n"]
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c m"]]:
        """K a and Kᵀ b for every row of a and b."""
        rows, columns = self.shape
        assert a.shape[1] == columns
        assert b.shape[1] == rows
        if len(a) > 1:
            K = self.K[:rows, :columns]
            return a @ K.mT, b @ K
        of_rows, of_columns = self._call(a[0], b[0])
        return of_rows[None, :rows], of_columns[None, :columns]

    def _call(self, a: Float[Tensor, " m"], b: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """The only place where tensors of this module become addresses."""
        height, width = self.K.shape
        buffers = {
            "matrix": self.K,
            "a": pad(a, (0, width - len(a))).contiguous(),
            "b": pad(b, (0, height - len(b))).contiguous(),
            "of_rows": self.K.new_empty(height),
            "of_columns": self.K.new_zeros(TASKS, width),
        }
        for name, tensor in buffers.items():
            assert tensor.is_cpu
            assert tensor.is_contiguous(), name
            assert tensor.dtype == self.K.dtype, name
        record = array("q", [0, *(buffers[name].data_ptr() for name in ADDRESSES)])
        record.extend((height, width, TASKS))
        function = _function(self.K.dtype == torch.float64)
        native.run(function, record.buffer_info()[0], torch.get_num_threads())
        return buffers["of_rows"], buffers["of_columns"].sum(0)


@cache
def _function(double: bool) -> int:
    return native.load_function(program(double), NAME)


def program(double: bool) -> str:
    """The function `void NAME(int64 *record)`."""
    f = Function(double, SUM_BYTES // (8 if double else 4), ADDRESSES, SIZES)
    together = rows_in_registers()
    groups = f["rows"] // together
    with f.tasks() as task:
        start, stop = (t * groups // f["tasks"] * together for t in (task, task + 1))
        with f.loop(start, stop, together) as i:
            _write_rows(f, task, [i + n for n in range(together)])
    return f.text()


def _write_rows(f: Function, task: Value, rows: list[Value]) -> None:
    """What some rows give to both products."""
    of_rows = [f.variable(f.constant(0.0, f.vector)) for _ in rows]
    numbers = [f.spread(f.at(f["b"], i)) for i in rows]
    with f.loop(0, f["width"], f.lanes) as j:
        a, place = f.load(f.at(f["a"], j)), f.at(f["of_columns"], task * f["width"] + j)
        total = f.load(place)
        for i, sums, b in zip(rows, of_rows, numbers, strict=True):
            K = f.load(f.at(f["matrix"], i * f["width"] + j))
            f.add_to(sums, K * a)
            total = total + K * b
        f.store(total, place)
    for i, sums in zip(rows, of_rows, strict=True):
        f.store(f.load(sums).total(), f.at(f["of_rows"], i))
