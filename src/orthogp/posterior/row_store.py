"""Rows in a folder on the disk, in cells of neighbours: for tables that no memory holds.

The folder has two files. `rows.f32` is a plain matrix of float32, a row of which is x, y and, where
there are any, the weight. Its rows are in the order of their cells, so that a cell is read at once.
`cells.orthogp` says where each cell begins and where its centre is; it is written last, so that a
folder without it is not finished.

Writing takes one pass over the table, in bounded memory. Rows are distributed over boxes by a tree
of medians of a sample, and spooled in runs that are sorted by box; then each box is read back, put
into the order of a balanced tree of its own rows, and cut into cells. While it is written the
folder has twice its final size.
"""

import contextlib
import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orthogp.errors import FileError
from orthogp.execution import files
from orthogp.execution.memory import affordable_bytes

KIND = "cells"
ROWS, CELLS, SPOOL = "rows.f32", "cells.orthogp", "spool.f32"
# Rows that are sorted by box in memory, and those of a box, on average and at most at a time.
RUN_ROWS, BOX_ROWS, MOST_BOX_ROWS = 2**20, 2**17, 2**19
# A search looks at all centres and at the rows of a few cells: √n / 4 rows of a cell balance both.
FEWEST_CELL_ROWS = 1024
# Rows by which a tree chooses the column to halve.
SPREAD_ROWS = 2**10

Array = NDArray[np.float32]


@dataclass(frozen=True)
class RowStore:
    """The rows of a folder; `starts` has the first row of every cell, and the number of rows."""

    folder: Path
    inputs: int
    outputs: int
    weighted: bool
    identity: str
    starts: Int[Tensor, " edges"]
    centres: Float[Tensor, "cells d"]

    @staticmethod
    def open(folder: str | Path) -> "RowStore":
        """The finished store of a folder; a `FileError` where there is none."""
        folder = Path(folder)
        tensors, meta = files.read(folder / CELLS, KIND)
        try:
            inputs, outputs, weighted = (meta[key] for key in ("inputs", "outputs", "weighted"))
            starts, centres, identity = tensors["starts"], tensors["centres"], meta["identity"]
            types = [type(value) for value in (inputs, outputs, weighted, identity)]
            if types != [int, int, bool, str] or starts.dtype != torch.int64:
                raise FileError(f"{folder / CELLS} does not describe rows in cells")
            found = RowStore(folder, inputs, outputs, weighted, identity, starts, centres.float())
            found._require_whole()
        except (KeyError, OSError) as error:
            raise FileError(f"the rows of {folder} cannot be read: {error}") from error
        return found

    def _require_whole(self) -> None:
        starts, size = self.starts, os.stat(self.folder / ROWS).st_size
        rising = len(starts) > 1 and int(starts[0]) == 0 and bool((starts.diff() > 0).all())
        shapes = min(self.inputs, self.outputs) > 0 and self.centres.shape == (
            len(starts) - 1,
            self.inputs,
        )
        if not rising or not shapes or size != 4 * self.width * int(starts[-1]):
            raise FileError(f"{self.folder / ROWS} is not as long as its cells say")

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def width(self) -> int:
        return self.inputs + self.outputs + self.weighted

    @property
    def nbytes(self) -> int:
        return 4 * self.width * len(self)

    @property
    def num_cells(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def _file(self) -> int:
        # Read and not mapped: pages of a map count as the process's memory once they are touched.
        file = os.open(self.folder / ROWS, os.O_RDONLY)
        weakref.finalize(self, os.close, file)
        return file

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor | None]:
        return {}

    def on_device(self, device: torch.device) -> Float[Tensor, "n w"] | None:
        """All rows on this device, copied once; None where they take too much of its memory."""
        if device not in self._copies:
            found = None
            if self.nbytes <= affordable_bytes(device):
                found = torch.empty(len(self), self.width, device=device)
                for first in range(0, len(self), RUN_ROWS):
                    last = min(first + RUN_ROWS, len(self))
                    found[first:last] = self.read(first, last).to(device)
            self._copies[device] = found
        return self._copies[device]

    def read(self, first: int, last: int) -> Float[Tensor, "n w"]:
        """The rows from `first` to before `last`, on the host."""
        found = np.empty((last - first, self.width), dtype=np.float32)
        view, offset = found.data.cast("B"), 4 * self.width * first
        while view:
            count = os.preadv(self._file, [view], offset)
            if count == 0:
                raise FileError(f"{self.folder / ROWS} has become shorter")
            view, offset = view[count:], offset + count
        return torch.from_numpy(found)

    def rows(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n w"]:
        """The rows at these places, which rise; every cell that has one is read once."""
        starts = self.starts.numpy()
        wanted = places.cpu().numpy()
        found = torch.empty(len(wanted), self.width)
        cells = np.searchsorted(starts, wanted, side="right") - 1
        edges = np.flatnonzero(np.diff(cells, prepend=-1, append=-1))
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            first, last = int(wanted[begin]), int(wanted[end - 1]) + 1
            within = torch.from_numpy(wanted[begin:end] - first)
            found[begin:end] = self.read(first, last)[within]
        return found

    def parts(self, rows: Float[Tensor, "n w"]) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, y as `[c, n]`, and the weights, if any."""
        x, y, weight = rows.split([self.inputs, self.outputs, int(self.weighted)], dim=1)
        return x, y.mT, weight[:, 0] if self.weighted else None

    def __getstate__(self) -> dict[str, Any]:
        passing = ("_file", "_copies")
        return {name: value for name, value in self.__dict__.items() if name not in passing}

    def __deepcopy__(self, memo: Any) -> "RowStore":
        return self


def cell_rows(num_rows: int) -> int:
    return max(FEWEST_CELL_ROWS, 2 ** round(np.log2(max(1.0, num_rows**0.5 / 4))))


def write_store(
    folder: str | Path,
    blocks: Iterable[tuple[Array, Array, Array | None]],
    num_rows: int,
    sample: Float[Tensor, "n d"],
    scale: Float[Tensor, " d"],
) -> RowStore:
    """Writes blocks of x `[n, d]`, y `[n, c]` and weights, in one pass, and opens what it wrote.

    Cells are made in the units of x times `scale`. What fails on the way leaves no files.
    """
    folder = Path(folder)
    if (folder / CELLS).exists():
        raise FileError(
            f"{folder} holds the rows of another fit, which its models need; choose another folder "
            "or remove this one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        scaled = sample.double().cpu() * scale.double().cpu()
        boxes = Boxes.of(scaled.numpy(), num_rows)
        factor = scale.cpu().numpy().astype(np.float32)
        spooled = _spool(folder / SPOOL, blocks, lambda x: boxes.number(x * factor), boxes.count)
        starts, centres = _sorted_by_cell(folder, spooled, factor)
        columns = {key: spooled.shape[key] for key in ("inputs", "outputs", "weighted")}
        meta = {**columns, "identity": secrets.token_hex(16)}
        tensors = {"starts": torch.from_numpy(starts), "centres": torch.from_numpy(centres)}
        (folder / SPOOL).unlink()
        files.write(folder / CELLS, KIND, tensors, meta)
    except OSError as error:
        remove_store(folder)
        raise FileError(f"rows could not be written to {folder}: {error}") from error
    except BaseException:
        remove_store(folder)
        raise
    return RowStore.open(folder)


def remove_store(folder: Path) -> None:
    """Removes what `write_store` writes, and the folder where nothing else is in it."""
    for name in (ROWS, SPOOL, CELLS):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


@dataclass(frozen=True)
class Boxes:
    """A balanced tree of boxes: every inner node halves one column at a median."""

    depth: int
    column: NDArray[np.int64]
    threshold: Array

    @staticmethod
    def of(sample: NDArray[np.float64], num_rows: int) -> "Boxes":
        """As many boxes as have some hundred thousand of `num_rows` rows each."""
        most = max(0, int(np.log2(max(1, len(sample)))) - 2)
        depth = min(most, max(0, round(np.log2(max(1, num_rows / BOX_ROWS)))))
        column = np.zeros(2**depth - 1, dtype=np.int64)
        threshold = np.zeros(2**depth - 1, dtype=np.float32)
        members = {0: np.arange(len(sample))}
        for node in range(2**depth - 1):
            rows = members.pop(node)
            part = sample[rows]
            if len(rows):
                column[node] = np.ptp(np.quantile(part, [0.1, 0.9], axis=0), axis=0).argmax()
                threshold[node] = np.median(part[:, column[node]])
            above = part[:, column[node]] > threshold[node]
            members[2 * node + 1], members[2 * node + 2] = rows[~above], rows[above]
        return Boxes(depth, column, threshold)

    @property
    def count(self) -> int:
        return 2**self.depth

    def number(self, x: Array) -> NDArray[np.int64]:
        """The box of every row."""
        node, flat = np.zeros(len(x), dtype=np.int64), np.ascontiguousarray(x).ravel()
        first = np.arange(len(x)) * x.shape[1]
        for _ in range(self.depth):
            above = flat[first + self.column[node]] > self.threshold[node]
            node = 2 * node + 1 + above
        return node - (self.count - 1)


@dataclass(frozen=True)
class _Spool:
    """Runs of rows, each sorted by box: `edges[r, b]` is where box b of run r begins."""

    path: Path
    shape: dict[str, Any]
    edges: NDArray[np.int64]

    @property
    def width(self) -> int:
        return self.shape["inputs"] + self.shape["outputs"] + int(self.shape["weighted"])

    def box(self, number: int) -> Iterator[Array]:
        """The rows of a box, some at a time."""
        firsts, lasts = self.edges[:, number], self.edges[:, number + 1]
        parts, held = [], 0
        with open(self.path, "rb", buffering=0) as file:
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                file.seek(4 * self.width * first)
                part = np.fromfile(file, np.float32, (last - first) * self.width)
                parts.append(part.reshape(-1, self.width))
                held += last - first
                if held >= MOST_BOX_ROWS:
                    yield np.concatenate(parts)
                    parts, held = [], 0
        if held:
            yield np.concatenate(parts)


def _spool(
    path: Path,
    blocks: Iterable[tuple[Array, Array, Array | None]],
    box_of: Callable[[Array], NDArray[np.int64]],
    num_boxes: int,
) -> _Spool:
    shape, edges, written, waiting, held = {}, [], 0, [], 0

    def write_run() -> None:
        nonlocal written, waiting, held
        rows = np.concatenate(waiting)
        box = box_of(rows[:, : shape["inputs"]])
        file.write(rows[np.argsort(box, kind="stable")].tobytes())
        counts = np.bincount(box, minlength=num_boxes)
        edges.append(written + np.concatenate([[0], np.cumsum(counts)]))
        written, waiting, held = written + len(rows), [], 0

    with open(path, "wb") as file:
        for x, y, weight in blocks:
            shape = {"inputs": x.shape[1], "outputs": y.shape[1], "weighted": weight is not None}
            weights = [] if weight is None else [weight.reshape(-1, 1)]
            waiting.append(np.concatenate([x, y, *weights], axis=1, dtype=np.float32))
            held += len(x)
            if held >= RUN_ROWS:
                write_run()
        if held:
            write_run()
    if not written:
        raise FileError("there are no rows to write")
    return _Spool(path, shape, np.stack(edges))


def _sorted_by_cell(
    folder: Path, spool: _Spool, scale: Array
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Writes the rows in the order of their cells; the cells' first rows and centres."""
    inputs, leaf = spool.shape["inputs"], cell_rows(int(spool.edges[-1, -1]))
    starts, centres = [0], []
    with open(folder / ROWS, "wb") as file:
        for number in range(spool.edges.shape[1] - 1):
            for rows in spool.box(number):
                for places in _cells_of(rows[:, :inputs] * scale, leaf):
                    cell = rows[places]
                    file.write(cell.tobytes())
                    centre = cell[:, :inputs].mean(0, dtype=np.float64)
                    centres.append(centre.astype(np.float32))
                    starts.append(starts[-1] + len(cell))
        file.flush()
        os.fsync(file.fileno())
    return np.array(starts, dtype=np.int64), np.stack(centres)


def _cells_of(x: Array, most: int) -> Iterator[NDArray[np.int64]]:
    """The rows of each cell, at most so many: the leaves of a balanced tree.

    As `leaf_order` of `neighbors`, for many rows: it halves the column of the largest spread of
    some rows, which a single row far away does not change.
    """
    waiting = [(np.arange(len(x)), x)]
    while waiting:
        rows, part = waiting.pop()
        if len(rows) <= most:
            yield rows
            continue
        spread = part[:: -(-len(part) // SPREAD_ROWS)].std(0)
        cells = -(-len(rows) // most)
        middle = len(rows) * (cells // 2) // cells
        order = np.argpartition(part[:, spread.argmax()], middle)
        rows, part = rows[order], part[order]
        waiting += [(rows[middle:], part[middle:]), (rows[:middle], part[:middle])]
