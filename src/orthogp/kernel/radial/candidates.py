"""Points among which the nearest to x are, for many x at once, by machine code on a CPU.

Points are in panels, and of half the squared distances to a panel, in float32, the smallest is
kept. Where `count` of these are below a threshold, so are at least `count` points, and few more: of
a panel seldom two. Those are listed with their squared distances in float64.
"""

from array import array
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from orthogp.kernel.radial import native
from orthogp.kernel.radial.program import Kind, RadialSum
from orthogp.kernel.radial.tiles import products, rows_in_registers
from orthogp.kernel.radial.writer import NAME, SUM_BYTES, Function, Value

# The highest and the lowest bit of a float that the threshold is found to.
HIGHEST_BIT, LOWEST_BIT = 30, 16
# x are in blocks of one vector. numbers are [blocks, dims + 2, lanes], slack and beyond [blocks,
# lanes], growth [1], table [panels, dims + 2, lanes]; x and points are those of float64, [m, dims]
# and [n, dims]. A task has minima and values [panels, lanes] and a list of panels. Of every x come
# out `room` places of found and squares, and one of number.
ADDRESSES = (
    "numbers", "slack", "beyond", "growth", "table", "x", "points", "minima", "values", "hits",
    "found", "squares", "number",
)  # fmt: skip
SIZES = ("blocks", "dims", "panels", "count", "room", "tasks")


class Candidates(NamedTuple):
    """Of every x the points below a threshold, in order, and their squared distances.

    `number` says how many there are; those that `found` has no place for are left out. Places
    beyond are of point zero at an infinite distance.
    """

    found: Int[Tensor, "m l"]
    squares: Float[Tensor, "m l"]
    number: Int[Tensor, " m"]
    beyond: Float[Tensor, " m"]


@dataclass(frozen=True)
class CandidatesKind(Kind):
    """In float32; the lanes of a vector are x, or points of a panel."""

    @property
    def lanes(self) -> int:
        return SUM_BYTES // 4


KIND = CandidatesKind((), double=False, ard=False, dense=False)


class PointTable:
    """Points z as panels of [z, ½|z|², 1] about a centre; times [−x, 1, ½|x|²] it is ½|x − z|².

    A panel has points far apart in their order, as those close in it may be near one another.
    """

    def __init__(self, points: Float[Tensor, "n d"], centre: Float[Tensor, " d"]):
        self.points, self.centre = points.contiguous(), centre
        z = points - centre
        rows = torch.cat([z, 0.5 * z.square().sum(1, True), torch.ones_like(z[:, :1])], 1).float()
        panels = -(-len(z) // KIND.lanes)
        table = rows.new_zeros(panels * KIND.lanes, rows.shape[1])
        table[len(z) :, -2] = torch.inf
        table[: len(z)] = rows
        self.table = table.view(KIND.lanes, panels, -1).permute(1, 2, 0).contiguous()
        # Of ½|x − z|² in float32, relative to (|x| + |z|)².
        self.rounding = (points.shape[1] + 5) * torch.finfo(torch.float32).eps

    def candidates(self, x: Float[Tensor, "m d"], count: int, room: int) -> Candidates:
        """All points that may be among the `count` nearest as far as float32 can tell."""
        (number, dims), lanes, panels = x.shape, KIND.lanes, len(self.table)
        blocks, threads = -(-number // lanes), torch.get_num_threads()
        tasks = min(blocks, 2 * threads)
        x = pad(x, (0, 0, 0, blocks * lanes - number)).contiguous()
        from_centre = x - self.centre
        square = from_centre.square().sum(1, True)
        numbers = torch.cat([-from_centre, torch.ones_like(square), 0.5 * square], 1).float()
        # |z| ≤ |x| + |x − z|, so that (|x| + |z|)² ≤ 8 |x|² + 2 |x − z|²; both what is found and
        # what is missed may be off by as much.
        buffers = {
            "numbers": numbers.view(blocks, lanes, -1).mT.contiguous(),
            "slack": (16.0 * self.rounding * square).float(),
            "beyond": numbers.new_empty(len(x)),
            "growth": numbers.new_full((1,), 8.0 * self.rounding),
            "table": self.table,
            "x": x,
            "points": self.points,
            "minima": numbers.new_empty(tasks, panels, lanes),
            "values": numbers.new_empty(tasks, panels, lanes),
            "hits": torch.empty(tasks, panels + 1, dtype=torch.long),
            "found": torch.zeros(len(x), room, dtype=torch.long),
            "squares": x.new_full((len(x), room), torch.inf),
            "number": torch.zeros(len(x), dtype=torch.long),
        }
        _call(buffers, (blocks, dims, panels, count, room, tasks), threads)
        parts = (buffers[name][:number] for name in ("found", "squares", "number", "beyond"))
        return Candidates(*parts)


def _call(buffers: dict[str, Tensor], sizes: tuple[int, ...], threads: int) -> None:
    """The only place where tensors of this module become addresses, each of them in one piece."""
    wide, whole = {"points", "x", "squares"}, {"hits", "found", "number"}
    for name, tensor in buffers.items():
        dtype = torch.float64 if name in wide else torch.int64 if name in whole else torch.float32
        assert tensor.is_cpu
        assert tensor.is_contiguous()
        assert tensor.dtype == dtype, name
    record = array("q", [0, *(buffers[name].data_ptr() for name in ADDRESSES), *sizes])
    native.run(_function(), record.buffer_info()[0], threads)


@cache
def _function() -> int:
    return native.load_function(program(), NAME)


def program() -> str:
    """The function `void NAME(int64 *record)`."""
    f = Function(KIND.double, KIND.lanes, ADDRESSES, SIZES)
    whole = f.fields.copy()
    with f.tasks() as task:
        start, stop = (t * f["blocks"] // f["tasks"] for t in (task, task + 1))
        for name in ("minima", "values"):
            f.fields[name] = f.at(whole[name], task * f["panels"] * f.lanes)
        f.fields["hits"] = f.at(whole["hits"], task * (f["panels"] + 1), "i64")
        with f.loop(start, stop) as block:
            f.fields["numbers"] = f.at(whole["numbers"], block * (f["dims"] + 2) * f.lanes)
            _Block(KIND, f).write(block)
        f.fields.update(whole)
    return f.text()


class _Block(RadialSum):
    """Writes what happens to one block of x."""

    def write(self, block: Value) -> None:
        f = self.f
        with f.loop(0, f["panels"]) as panel:
            self.store_minima(panel)
        limits = f.at(f["beyond"], block * f.lanes)
        f.store(self.thresholds(block), limits)
        with f.loop(0, f.lanes) as n:
            limit, row = f.at(limits, n), block * f.lanes + n
            hits = self.store_hits(n, limit)
            with f.loop(0, f.lanes) as lane, f.loop(0, hits) as hit:
                value = f.load(f.at(f["values"], hit * f.lanes + lane), f.number)
                with f.loop(0, self.is_below(value, f.load(limit, f.number))):
                    panel = f.load(f.at(f["hits"], hit, "i64"), "i64")
                    self.append(lane * f["panels"] + panel, row)

    def panel(self, panel: Value) -> Value:
        return self.f.at(self.f["table"], panel * (self.f["dims"] + 2) * self.f.lanes)

    def store_minima(self, panel: Value) -> None:
        """The smallest ½|x − z|² of a panel, for every x of the block."""
        f, size, points = self.f, self.f["dims"] + 2, self.panel(panel)
        least = f.variable(f.constant(float("inf"), f.vector))
        tile = rows_in_registers()
        with f.loop(0, f.lanes, tile) as n:
            for total in products(f, f.at(points, n), tile, f.lanes, f["numbers"], size):
                f.store(f.load(least).at_most(total), least)
        f.store(f.load(least), f.at(f["minima"], panel * f.lanes))

    def store_hits(self, n: Value, limit: Value) -> Value:
        """Lists the panels with points below the limit of an x, with the values of these panels."""
        f, number = self.f, self.f.variable(self.f.constant(0, "i64"))
        with f.loop(0, f["panels"]) as panel:
            least = f.load(f.at(f["minima"], panel * f.lanes + n), f.number)
            f.store(panel, f.at(f["hits"], f.load(number, "i64"), "i64"))
            f.add_to(number, self.is_below(least, f.load(limit, f.number)))
        hits, start = f.load(number, "i64"), f.at(f["numbers"], n)
        with f.loop(0, hits) as hit:
            points = self.panel(f.load(f.at(f["hits"], hit, "i64"), "i64"))
            (values,) = products(f, start, 1, f.lanes, points, f["dims"] + 2)
            f.store(values, f.at(f["values"], hit * f.lanes))
        return hits

    def append(self, point: Value, row: Value) -> None:
        """Lists a point and its distance to x."""
        f, square = self.f, self.f.variable(self.f.constant(0.0, "double"))
        with f.loop(0, f["dims"]) as d:
            x, z = (
                f.load(f.at(f[name], i * f["dims"] + d, "double"), "double")
                for name, i in (("x", row), ("points", point))
            )
            f.add_to(square, (x - z) * (x - z))
        number = f.at(f["number"], row, "i64")
        place = row * f["room"] + f.load(number, "i64").at_most(f["room"] - 1)
        f.store(point, f.at(f["found"], place, "i64"))
        f.store(f.load(square, "double"), f.at(f["squares"], place, "double"))
        f.add_to(number, f.constant(1, "i64"))

    def thresholds(self, block: Value) -> Value:
        """What the smallest of `count` panels are below, and what float32 may be off by.

        The bits of positive floats are ordered as they are: the bits are found one by one.
        """
        f, words = self.f, f"<{self.f.lanes} x i32>"

        def as_floats(bits: str) -> Value:
            return f.value(f.vector, f"bitcast {words} {bits} to {f.vector}")

        count = f.variable(f.value(f.number, f"sitofp {f['count']} to {f.number}"))
        bits = f.variable(Value(f, words, "zeroinitializer"))
        for bit in range(HIGHEST_BIT, LOWEST_BIT - 1, -1):
            found = f.load(bits, words)
            more = Value(f, words, f.emit(f"or {found}, splat (i32 {1 << bit})"))
            trial, total = as_floats(more.text), f.variable(self.zero)
            with f.loop(0, f["panels"]) as panel:
                least = f.load(f.at(f["minima"], panel * f.lanes))
                one = f.constant(1.0, f.vector)
                holds = f.emit(f"fcmp olt {least}, {trial.text}")
                counted = f"select <{f.lanes} x i1> {holds}, {one}, {self.zero}"
                f.add_to(total, f.value(f.vector, counted))
            too_few = f.emit(f"fcmp olt {f.load(total)}, {f.spread(count).text}")
            chosen = f"select <{f.lanes} x i1> {too_few}, {more}, {found}"
            f.store(f.value(words, chosen), bits)
        up = f.emit(f"add {f.load(bits, words)}, splat (i32 {1 << LOWEST_BIT})")
        limit, slack = as_floats(up), f.load(f.at(f["slack"], block * f.lanes))
        return limit + slack + f.spread(f["growth"]) * limit

    def is_below(self, u: Value, v: Value) -> Value:
        """One where u is below v, else zero."""
        f = self.f
        holds = f.emit(f"fcmp olt {u}, {v.text}")
        return f.value("i64", f"zext i1 {holds} to i64")
