"""Numbers of a program under construction: what is done with them is written down in it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orthogp.kernel.radial.emit import Program

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

    def or_less(self, other: "Index") -> "Index":
        smaller = self.program.said(f"icmp slt i64 {self}, {other}")
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
        return Number(self.program, self.kind, self.program.said(instruction))

    def __add__(self, other: "Number | float") -> "Number":
        return self._combined("fadd", other)

    def __sub__(self, other: "Number | float") -> "Number":
        return self._combined("fsub", other)

    def __mul__(self, other: "Number | float") -> "Number":
        return self._combined("fmul", other)

    def __truediv__(self, other: "Number | float") -> "Number":
        return self._combined("fdiv", other)

    def at_most(self, limit: float) -> "Number":
        """This, or the limit where this is larger; NaN stays."""
        return self._choose("ogt", limit, limit)

    def or_else(self, value: float, other: float) -> "Number":
        """This, or `other` where this is `value`."""
        return self._choose("oeq", value, other)

    def _choose(self, relation: str, compared: float, chosen: float) -> "Number":
        program = self.program
        holds = program.said(f"fcmp {relation} {self}, {self._other(compared)}")
        chosen_one = program.constant(chosen, self.kind)
        return self._new(f"select <{program.lanes} x i1> {holds}, {chosen_one}, {self}")

    def sqrt(self) -> "Number":
        program = self.program
        name = program.declared("sqrt", program.lanes, self.kind, self.kind)
        return self._new(f"call {FLAGS} {self.kind} {name}({self})")

    def times_power_of_two(self, shifted: "Number", digits: int) -> "Number":
        """This times 2ⁿ, where n is in the last bits of `shifted`."""
        said, bits = self.program.said, self.program.bits
        own, n = (said(f"bitcast {t} to {bits}") for t in (self, shifted))
        by = f"splat (i{8 * self.program.size} {digits})"
        power = said(f"shl {bits} {n}, {by}")
        total = said(f"add {bits} {own}, {power}")
        return self._new(f"bitcast {bits} {total} to {self.kind}")

    def folded(self) -> "Number":
        """The sum of the parts of a vector, as long as sums are."""
        program, count = self.program, self.program.lanes // self.program.sum_lanes
        parts = []
        for first in range(0, program.lanes, program.sum_lanes):
            lanes = ", ".join(f"i32 {first + k}" for k in range(program.sum_lanes))
            taken = (
                f"shufflevector {self}, {self.kind} poison, <{program.sum_lanes} x i32> <{lanes}>"
            )
            parts.append(Number(program, program.sum, program.said(taken)))
        while count > 1:
            count //= 2
            parts = [left + right for left, right in zip(parts[:count], parts[count:], strict=True)]
        return parts[0]

    def total(self) -> "Number":
        """The sum over the lanes of a sum."""
        program, zero = self.program, self.program.constant(-0.0, self.program.number)
        kinds = program.number, self.kind
        name = program.declared("vector.reduce.fadd", program.sum_lanes, zero.kind, *kinds)
        call = f"call reassoc {zero.kind} {name}({zero}, {self})"
        return Number(program, zero.kind, program.said(call))
