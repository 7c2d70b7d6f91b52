"""Writes a function over vectors in LLVM's language.

Instructions are appended as text: an object for every instruction would take longer than compiling
it. A vector is longer than any register, and LLVM works on its parts side by side.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Bytes of a vector: as many registers as keep the pipelines full.
VECTOR_BYTES = 256
# Bytes of a vector that accumulates a sum: shorter, as these would fill the registers.
SUM_BYTES = 64
# Products and sums may be fused; nothing else is rearranged, and NaN keeps its meaning.
FLAGS = "contract"


@dataclass(frozen=True, slots=True)
class Index:
    """A 64-bit integer in a program; plain Python integers mix in."""

    program: "Program"
    text: str

    def __str__(self) -> str:
        return self.text

    def _combined(self, operation: str, other: "Index | int") -> "Index":
        return self.program.index(f"{operation} i64 {self}, {other}")

    def __add__(self, other: "Index | int") -> "Index":
        return self._combined("add", other)

    def __sub__(self, other: "Index | int") -> "Index":
        return self._combined("sub", other)

    def __mul__(self, other: "Index | int") -> "Index":
        return self._combined("mul", other)

    def __floordiv__(self, other: "Index | int") -> "Index":
        return self._combined("sdiv", other)

    def minimum(self, other: "Index") -> "Index":
        smaller = self.program.emit(f"icmp slt i64 {self}, {other}")
        return self.program.index(f"select i1 {smaller}, i64 {self}, i64 {other}")


@dataclass(frozen=True, slots=True)
class Number:
    """A float or a vector of them in a program; plain Python numbers mix in as constants."""

    program: "Program"
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"

    def _other(self, other: "Number | float") -> str:
        if isinstance(other, Number):
            return other.text
        return self.program.constant(other, self.kind).text

    def _combined(self, operation: str, other: "Number | float") -> "Number":
        return self._new(f"{operation} {FLAGS} {self}, {self._other(other)}")

    def _new(self, instruction: str) -> "Number":
        return Number(self.program, self.kind, self.program.emit(instruction))

    def __add__(self, other: "Number | float") -> "Number":
        return self._combined("fadd", other)

    def __sub__(self, other: "Number | float") -> "Number":
        return self._combined("fsub", other)

    def __mul__(self, other: "Number | float") -> "Number":
        return self._combined("fmul", other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: "Number | float") -> "Number":
        return self._combined("fdiv", other)

    def at_most(self, limit: float) -> "Number":
        """This, or the limit where this is larger; NaN stays."""
        return self._choose("ogt", limit, limit)

    def replaced(self, value: float, other: float) -> "Number":
        """This, with `other` in place of `value`."""
        return self._choose("oeq", value, other)

    def _choose(self, relation: str, compared: float, chosen: float) -> "Number":
        program = self.program
        holds = program.emit(f"fcmp {relation} {self}, {self._other(compared)}")
        chosen_one = program.constant(chosen, self.kind)
        return self._new(f"select <{program.lanes} x i1> {holds}, {chosen_one}, {self}")

    def sqrt(self) -> "Number":
        program = self.program
        name = program.declare("sqrt", program.lanes, self.kind, self.kind)
        return self._new(f"call {FLAGS} {self.kind} {name}({self})")

    def times_power_of_two(self, shifted: "Number", digits: int) -> "Number":
        """This times 2ⁿ, where n is in the last bits of `shifted`."""
        emit, bits = self.program.emit, self.program.bits
        own, n = (emit(f"bitcast {t} to {bits}") for t in (self, shifted))
        by = f"splat (i{8 * self.program.size} {digits})"
        power = emit(f"shl {bits} {n}, {by}")
        total = emit(f"add {bits} {own}, {power}")
        return self._new(f"bitcast {bits} {total} to {self.kind}")

    def partial_sums(self) -> "Number":
        """The sum of the parts of a vector, each `sum_lanes` long."""
        program, count = self.program, self.program.lanes // self.program.sum_lanes
        parts = []
        for first in range(0, program.lanes, program.sum_lanes):
            lanes = ", ".join(f"i32 {first + k}" for k in range(program.sum_lanes))
            taken = (
                f"shufflevector {self}, {self.kind} poison, <{program.sum_lanes} x i32> <{lanes}>"
            )
            parts.append(Number(program, program.sum, program.emit(taken)))
        while count > 1:
            count //= 2
            parts = [left + right for left, right in zip(parts[:count], parts[count:], strict=True)]
        return parts[0]

    def total(self) -> "Number":
        """The sum over the lanes of a vector that accumulates one."""
        program, zero = self.program, self.program.constant(-0.0, self.program.number)
        kinds = program.number, self.kind
        name = program.declare("vector.reduce.fadd", program.sum_lanes, zero.kind, *kinds)
        call = f"call reassoc {zero.kind} {name}({zero}, {self})"
        return Number(program, zero.kind, program.emit(call))


class Program:
    """One function `void name(int64 *job)` of numbers of one width, under construction."""

    def __init__(self, name: str, double: bool, fields: tuple[str, ...]):
        self.double, self.size = double, 8 if double else 4
        self.number = "double" if double else "float"
        self.lanes, self.sum_lanes = VECTOR_BYTES // self.size, SUM_BYTES // self.size
        self.vector, self.sum = (f"<{n} x {self.number}>" for n in (self.lanes, self.sum_lanes))
        self.bits = f"<{self.lanes} x i{8 * self.size}>"
        self.name, self.block = name, "begin"
        self._declared: dict[str, str] = {}
        self._allocas: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self.fields = {
            field: self.index(f"load i64, ptr {self.emit(f'getelementptr i64, ptr %job, i64 {k}')}")
            for k, field in enumerate(fields)
        }

    def _new_name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def emit(self, instruction: str) -> str:
        """Appends an instruction and returns the name of its result."""
        name = self._new_name()
        self._lines.append(f"{name} = {instruction}")
        return name

    def index(self, instruction: str) -> Index:
        return Index(self, self.emit(instruction))

    def declare(self, intrinsic: str, lanes: int, result: str, *arguments: str) -> str:
        name = f"@llvm.{intrinsic}.v{lanes}f{8 * self.size}"
        self._declared[name] = f"declare {result} {name}({', '.join(arguments)})"
        return name

    def constant(self, value: float, kind: str) -> Number:
        if not self.double:
            # LLVM writes either width with the digits of a double.
            (value,) = struct.unpack("f", struct.pack("f", value))
        digits = f"0x{struct.pack('>d', value).hex()}"
        return Number(self, kind, f"splat ({self.number} {digits})" if kind[0] == "<" else digits)

    def zeros(self, kind: str | None = None) -> Number:
        return self.constant(0.0, kind or self.vector)

    def spread(self, number: Number) -> Number:
        """A vector with the same number in every lane."""
        first = self.emit(f"insertelement {self.vector} poison, {number}, i64 0")
        everywhere = f"<{self.lanes} x i32> zeroinitializer"
        return Number(
            self,
            self.vector,
            self.emit(f"shufflevector {self.vector} {first}, {self.vector} poison, {everywhere}"),
        )

    def _begin(self, block: str) -> None:
        self._lines.append(f"{block}:")
        self.block = block

    def _jump(self, block: str) -> None:
        self._lines.append(f"br label %{block}")

    def _branch(self, condition: str, yes: str, no: str) -> None:
        self._lines.append(f"br i1 {self.emit(condition)}, label %{yes}, label %{no}")

    def _blocks(self, *names: str) -> list[str]:
        self._count += 1
        return [f"{name}{self._count}" for name in names]

    @contextmanager
    def loop(self, start: Index | int, stop: Index | int, step: int = 1) -> Iterator[Index]:
        """for index in range(start, stop, step)"""
        before = self.block
        head, body, end, after = self._blocks("head", "body", "end", "after")
        following = self._new_name()
        self._jump(head)
        self._begin(head)
        index = self.index(f"phi i64 [{start}, %{before}], [{following}, %{end}]")
        self._branch(f"icmp slt i64 {index}, {stop}", body, after)
        self._begin(body)
        yield index
        self._jump(end)
        self._begin(end)
        self._lines.append(f"{following} = add i64 {index}, {step}")
        self._jump(head)
        self._begin(after)

    @contextmanager
    def tasks(self, counter: Index, count: Index) -> Iterator[Index]:
        """Loops over the tasks that this thread draws from a counter shared by all threads."""
        head, body, after = self._blocks("draw", "task", "done")
        self._jump(head)
        self._begin(head)
        pointer = self.emit(f"inttoptr i64 {counter} to ptr")
        task = self.index(f"atomicrmw add ptr {pointer}, i64 1 monotonic")
        self._branch(f"icmp slt i64 {task}, {count}", body, after)
        self._begin(body)
        yield task
        self._jump(head)
        self._begin(after)

    def variable(self, kind: str | None = None) -> str:
        """Memory for a vector that lives as long as the call."""
        name = self._new_name()
        self._allocas.append(f"{name} = alloca {kind or self.vector}, align {SUM_BYTES}")
        return name

    def array_of_sums(self, count: Index) -> str:
        """Memory for so many sums. To be called outside of loops: in one it would grow."""
        return self.emit(f"alloca {self.sum}, i64 {count}, align {SUM_BYTES}")

    def place(self, address: Index, index: Index | int) -> str:
        """A pointer to a number of the array at an address, or to the vector that begins there."""
        pointer = self.emit(f"inttoptr i64 {address} to ptr")
        return self._element(self.number, pointer, index)

    def element_of_sums(self, memory: str, index: Index | int) -> str:
        """A pointer to one of the sums of an array."""
        return self._element(self.sum, memory, index)

    def _element(self, kind: str, pointer: str, index: Index | int) -> str:
        return self.emit(f"getelementptr {kind}, ptr {pointer}, i64 {index}")

    def scalar(self, pointer: str) -> Number:
        return self.load(pointer, self.number)

    def load(self, pointer: str, kind: str | None = None) -> Number:
        # Arrays come from torch: vectors in them may begin anywhere.
        kind = kind or self.vector
        return Number(self, kind, self.emit(f"load {kind}, ptr {pointer}, align {self.size}"))

    def store(self, number: Number, pointer: str) -> None:
        self._lines.append(f"store {number}, ptr {pointer}, align {self.size}")

    def add_to(self, pointer: str, number: Number) -> None:
        """Adds a number or a vector to the one stored there."""
        self.store(self.load(pointer, number.kind) + number, pointer)

    def add_double(self, address: Index, index: Index | int, number: Number) -> None:
        """Adds to one number of an array of float64."""
        pointer = self._element("double", self.emit(f"inttoptr i64 {address} to ptr"), index)
        value = number.text if self.double else self.emit(f"fpext {number} to double")
        before = self.emit(f"load double, ptr {pointer}")
        self._lines.append(
            f"store double {self.emit(f'fadd double {before}, {value}')}, ptr {pointer}"
        )

    def store_part(self, numbers: Number, place: str, count: Index) -> None:
        """Stores the first `count` numbers of a vector."""
        whole, part, after = self._blocks("whole", "part", "after")
        self._branch(f"icmp sge i64 {count}, {self.lanes}", whole, part)
        self._begin(whole)
        self.store(numbers, place)
        self._jump(after)
        self._begin(part)
        memory = self.variable()
        self.store(numbers, memory)
        self._copy(memory, place, count)
        self._jump(after)
        self._begin(after)

    def load_part(self, place: str, count: Index) -> Number:
        """The first `count` numbers of a vector, zeros after them."""
        whole, part, after = self._blocks("whole", "part", "after")
        memory = self.variable()
        self._branch(f"icmp sge i64 {count}, {self.lanes}", whole, part)
        self._begin(whole)
        self.store(self.load(place), memory)
        self._jump(after)
        self._begin(part)
        self.store(self.zeros(), memory)
        self._copy(place, memory, count)
        self._jump(after)
        self._begin(after)
        return self.load(memory)

    def _copy(self, source: str, target: str, count: Index) -> None:
        with self.loop(0, count) as j:
            here, there = (self._element(self.number, t, j) for t in (source, target))
            self.store(self.scalar(here), there)

    def text(self) -> str:
        body = "\n".join((*self._allocas, *self._lines))
        declarations = "\n".join(self._declared.values())
        return (
            f"{declarations}\ndefine void @{self.name}(ptr %job) {{\nbegin:\n{body}\nret void\n}}\n"
        )
