"""A function in LLVM's language, written one instruction after the other."""

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

NAME = "radial"
# Bytes of a vector that accumulates a sum: shorter, as these would fill the registers.
SUM_BYTES = 64

Constant = float | int


@dataclass(frozen=True, slots=True)
class Value:
    """An integer, a float or a vector of floats; Python's numbers mix in as constants."""

    function: "Function"
    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def _new(self, instruction: str) -> "Value":
        return self.function.value(self.type, instruction)

    def _combine(self, operation: str, other: "Value | Constant") -> "Value":
        # Products and sums may be fused; nothing else is rearranged, and NaN keeps its meaning.
        operation = operation if self.type == "i64" else f"f{operation} contract"
        return self._new(f"{operation} {self}, {self.function.constant(other, self.type).text}")

    def __add__(self, other: "Value | Constant") -> "Value":
        return self._combine("add", other)

    def __sub__(self, other: "Value | Constant") -> "Value":
        return self._combine("sub", other)

    def __mul__(self, other: "Value | Constant") -> "Value":
        return self._combine("mul", other)

    def __truediv__(self, other: "Value | Constant") -> "Value":
        return self._combine("div", other)

    def __floordiv__(self, other: "Value | int") -> "Value":
        return self._combine("sdiv", other)

    __radd__, __rmul__ = __add__, __mul__

    def at_most(self, limit: "Value | Constant") -> "Value":
        """This, or the limit where this is larger; NaN stays."""
        return self.replaced("gt", limit, limit)

    def replaced(self, relation: str, other: "Value | Constant", by: "Value | Constant") -> "Value":
        """This, with another value in its place where it stands in a relation."""
        f = self.function
        compare = f"icmp s{relation}" if self.type == "i64" else f"fcmp o{relation}"
        holds = f.emit(f"{compare} {self}, {f.constant(other, self.type).text}")
        bit = f"<{f.lanes} x i1>" if self.type[0] == "<" else "i1"
        return self._new(f"select {bit} {holds}, {f.constant(by, self.type)}, {self}")

    def sqrt(self) -> "Value":
        return self._new(f"call contract {self.type} @llvm.sqrt.{self.function.suffix}({self})")

    def partial_sums(self) -> "Value":
        """The sum of the parts of a vector, each as long as those that accumulate sums."""
        f, parts = self.function, []
        for first in range(0, f.lanes, f.sum_lanes):
            chosen = ", ".join(f"i32 {first + k}" for k in range(f.sum_lanes))
            part = f"shufflevector {self}, {self.type} poison, <{f.sum_lanes} x i32> <{chosen}>"
            parts.append(f.value(f.sum, part))
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [left + right for left, right in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    def total(self) -> "Value":
        """The sum over the lanes of a vector that accumulates one."""
        f = self.function
        given = f"{f.constant(-0.0, f.number)}, {self}"
        call = f"call reassoc {f.number} @llvm.vector.reduce.fadd.{f.sum_suffix}({given})"
        return f.value(f.number, call)


class Function:
    """A function under construction: the text of its instructions, one after the other."""

    def __init__(
        self, double: bool, lanes: int, addresses: tuple[str, ...], sizes: tuple[str, ...]
    ):
        self.double, self.lanes = double, lanes
        self.number, self.size = ("double", 8) if double else ("float", 4)
        self.sum_lanes = SUM_BYTES // self.size
        self.vector, self.sum = (f"<{n} x {self.number}>" for n in (self.lanes, self.sum_lanes))
        bits = 8 * self.size
        self.suffix, self.sum_suffix = f"v{self.lanes}f{bits}", f"v{self.sum_lanes}f{bits}"
        self._count, self._lines, self._variables = 0, [], []
        self.fields, record = {}, Value(self, "ptr", "%record")
        # Before the fields is the counter of tasks.
        for k, name in enumerate(addresses + sizes, start=1):
            field = Value(self, "ptr" if name in addresses else "i64", f"%{name}")
            place = self.at(record, k, "i64")
            self._lines.append(f"{field.text} = load {field.type}, {place}")
            self.fields[name] = field

    def __getitem__(self, field: str) -> Value:
        """A field of the record."""
        return self.fields[field]

    def _new_name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def emit(self, instruction: str) -> str:
        """Appends an instruction and returns the name of its result."""
        name = f"%{self._new_name()}"
        self._lines.append(f"{name} = {instruction}")
        return name

    def value(self, type_: str, instruction: str) -> Value:
        return Value(self, type_, self.emit(instruction))

    def constant(self, number: Value | Constant, type_: str) -> Value:
        """A number as a value of this type, in every lane of a vector; a value as it is."""
        if isinstance(number, Value):
            return number
        if type_ == "i64":
            return Value(self, type_, str(number))
        # LLVM writes a float with the digits of a double.
        width = "d" if self.double else "f"
        (rounded,) = struct.unpack(width, struct.pack(width, number))
        digits = f"0x{struct.pack('>d', rounded).hex()}"
        return Value(self, type_, f"splat ({self.number} {digits})" if type_[0] == "<" else digits)

    @contextmanager
    def _while_below(self, stop: Value | int, draw: Callable[[], Value]) -> Iterator[Value]:
        """Loops over the integers whose computation `draw` emits, until one is not below `stop`."""
        head, body, after = (f"{self._new_name()}.{name}" for name in ("head", "body", "after"))
        self._lines.append(f"br label %{head}\n{head}:")
        index = draw()
        inside = self.emit(f"icmp slt {index}, {self.constant(stop, 'i64').text}")
        self._lines.append(f"br i1 {inside}, label %{body}, label %{after}\n{body}:")
        yield index
        self._lines.append(f"br label %{head}\n{after}:")

    def tasks(self) -> AbstractContextManager[Value]:
        """Loops over the tasks that this thread draws from the counter that all threads share."""
        draw = "atomicrmw add ptr %record, i64 1 monotonic"
        return self._while_below(self["tasks"], lambda: self.value("i64", draw))

    def loop(
        self, start: Value | int, stop: Value | int, step: int = 1
    ) -> AbstractContextManager[Value]:
        """for index in range(start, stop, step)"""
        counter = self.variable(self.constant(start, "i64"))

        def draw() -> Value:
            index = self.load(counter, "i64")
            self.store(index + step, counter)
            return index

        return self._while_below(stop, draw)

    def variable(self, value: Value) -> Value:
        """A pointer to memory that lives as long as the call, with this value stored in it."""
        pointer = Value(self, "ptr", f"%{self._new_name()}")
        self._variables.append(f"{pointer.text} = alloca {value.type}, align {SUM_BYTES}")
        self.store(value, pointer)
        return pointer

    def at(self, array: Value, index: Value | int, type_: str | None = None) -> Value:
        """A pointer to an element of an array, or to the vector that begins there."""
        index = self.constant(index, "i64")
        return self.value("ptr", f"getelementptr {type_ or self.number}, {array}, {index}")

    def load(self, pointer: Value, type_: str | None = None) -> Value:
        # Arrays come from torch: vectors in them may begin anywhere.
        type_ = type_ or self.vector
        return self.value(type_, f"load {type_}, {pointer}, align {self.size}")

    def spread(self, pointer: Value) -> Value:
        """The number there, in every lane of a vector."""
        number = self.load(pointer, self.number)
        first = self.emit(f"insertelement {self.vector} poison, {number}, i64 0")
        spread = f"{self.vector} {first}, {self.vector} poison, <{self.lanes} x i32>"
        return self.value(self.vector, f"shufflevector {spread} zeroinitializer")

    def store(self, value: Value, pointer: Value) -> None:
        self._lines.append(f"store {value}, {pointer}, align {self.size}")

    def add_to(self, pointer: Value, value: Value) -> None:
        self.store(self.load(pointer, value.type) + value, pointer)

    def copy_part(self, source: Value, target: Value, count: Value) -> None:
        """Copies a vector, or its first `count` numbers where that is fewer."""
        count = count.at_most(self.lanes)
        whole = count // self.lanes
        with self.loop(0, whole):
            self.store(self.load(source), target)
        with self.loop(whole * self.lanes, count) as j:
            self.store(self.load(self.at(source, j), self.number), self.at(target, j))

    def text(self) -> str:
        number, vector = self.number, self.vector
        declared = (
            f"declare {vector} @llvm.sqrt.{self.suffix}({vector})\n"
            f"declare {number} @llvm.vector.reduce.fadd.{self.sum_suffix}({number}, {self.sum})\n"
        )
        body = "\n".join(self._variables + self._lines)
        return f"{declared}define void @{NAME}(ptr %record) {{\n{body}\nret void\n}}\n"
