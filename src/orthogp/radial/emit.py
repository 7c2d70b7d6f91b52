"""Loops over vectors as machine code: a few words around LLVM's builder, and its compiler.

The code is written with explicit vectors of 64 bytes, which LLVM splits where registers are
smaller. It is compiled in memory in some hundred milliseconds: no compiler needs to be installed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite
from llvmlite import binding, ir

VECTOR_BYTES = 64
INDEX = ir.IntType(64)
POINTER = ir.PointerType()
# Products and sums may be fused; nothing else is rearranged, and NaN keeps its meaning.
FLAGS = ("contract",)


@dataclass(frozen=True)
class Number:
    """A float or a vector of them in a program; plain Python numbers mix in as constants."""

    program: "Program"
    value: Any

    def _other(self, other: "Number | float") -> Any:
        if isinstance(other, Number):
            return other.value
        return self.program.constant(other, self.value.type).value

    def _with(self, value: Any) -> "Number":
        return Number(self.program, value)

    def _combined(self, operation: str, other: "Number | float") -> "Number":
        combine = getattr(self.program.builder, operation)
        return self._with(combine(self.value, self._other(other), flags=FLAGS))

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
        return self._choose(">", limit, limit)

    def or_else(self, value: float, other: float) -> "Number":
        """This, or `other` where this is `value`."""
        return self._choose("==", value, other)

    def _choose(self, relation: str, compared: float, chosen: float) -> "Number":
        builder = self.program.builder
        holds = builder.fcmp_ordered(relation, self.value, self._other(compared))
        return self._with(builder.select(holds, self._other(chosen), self.value))

    def sqrt(self) -> "Number":
        return self.program.intrinsic("sqrt", self)

    def times_power_of_two(self, shifted: "Number", digits: int) -> "Number":
        """This times 2ⁿ, where n is in the last bits of `shifted`."""
        program, builder = self.program, self.program.builder
        own, n = (builder.bitcast(t.value, program.integers) for t in (self, shifted))
        by = ir.Constant(program.integers, [digits] * program.lanes)
        return self._with(builder.bitcast(builder.add(own, builder.shl(n, by)), program.vector))

    def total(self) -> "Number":
        """The sum over the lanes."""
        zero = self.program.constant(-0.0, self.program.number)
        return self.program.intrinsic("vector.reduce.fadd", zero, self, flags=("reassoc",))


class Program:
    """One function `void name(int64 *job)` of numbers of one width, under construction."""

    def __init__(self, name: str, double: bool, fields: tuple[str, ...]):
        self.double = double
        self.number = ir.DoubleType() if double else ir.FloatType()
        self.size = 8 if double else 4
        self.lanes = VECTOR_BYTES // self.size
        self.vector = ir.VectorType(self.number, self.lanes)
        self.suffix = f"v{self.lanes}f{8 * self.size}"
        self.integers = ir.VectorType(ir.IntType(8 * self.size), self.lanes)
        self.module = ir.Module(name)
        signature = ir.FunctionType(ir.VoidType(), [POINTER])
        self.function = ir.Function(self.module, signature, name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        job = self.function.args[0]
        self.fields = {
            field: self.builder.load(
                self.builder.gep(job, [INDEX(k)], source_etype=INDEX), typ=INDEX
            )
            for k, field in enumerate(fields)
        }

    def constant(self, value: float, kind: Any) -> Number:
        many = isinstance(kind, ir.VectorType)
        return Number(self, ir.Constant(kind, [value] * kind.count if many else value))

    def zeros(self) -> Number:
        return self.constant(0.0, self.vector)

    def spread(self, number: Number) -> Number:
        """A vector with the same number in every lane."""
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(empty, number.value, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return Number(self, self.builder.shuffle_vector(first, empty, mask))

    def intrinsic(self, name: str, *arguments: Number, flags: tuple[str, ...] = FLAGS) -> Number:
        kinds = [argument.value.type for argument in arguments]
        full = f"llvm.{name}.{self.suffix}"
        result = kinds[0]
        declared = self.module.globals.get(full) or ir.Function(
            self.module, ir.FunctionType(result, kinds), full
        )
        values = [argument.value for argument in arguments]
        return Number(self, self.builder.call(declared, values, fastmath=flags))

    @contextmanager
    def loop(self, start: Any, stop: Any, step: int = 1) -> Iterator[Any]:
        """for index in range(start, stop, step)"""
        builder = self.builder
        before, head, body, after = (
            builder.block,
            *(builder.append_basic_block(name) for name in ("head", "body", "after")),
        )
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(INDEX)
        index.add_incoming(start, before)
        builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, INDEX(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    @contextmanager
    def tasks(self, counter: Any, count: Any) -> Iterator[Any]:
        """for every task that is drawn from a counter that all threads share"""
        builder = self.builder
        head, body, after = (builder.append_basic_block(n) for n in ("draw", "task", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        pointer = builder.inttoptr(counter, POINTER)
        task = builder.atomic_rmw("add", pointer, INDEX(1), "monotonic")
        builder.cbranch(builder.icmp_signed("<", task, count), body, after)
        builder.position_at_end(body)
        yield task
        builder.branch(head)
        builder.position_at_end(after)

    def smaller(self, left: Any, right: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed("<", left, right), left, right)

    def variable(self, count: Any = None) -> Any:
        """Room for vectors that lives as long as the call; `count` of them, or one."""
        with self.builder.goto_entry_block():
            room = self.builder.alloca(self.vector, count)
        # The builder would take it for a pointer to vectors only.
        room.type = POINTER
        return room

    def at(self, base: Any, *steps: tuple[Any, Any]) -> Any:
        """base + Σ index · stride"""
        for index, stride in steps:
            base = self.builder.add(base, self.builder.mul(index, stride))
        return base

    def place(self, address: Any, index: Any) -> Any:
        """A pointer to a number of the array at an address, or to the vector that begins there."""
        pointer = self.builder.inttoptr(address, POINTER)
        return self.builder.gep(pointer, [index], source_etype=self.number)

    def scalar(self, pointer: Any) -> Number:
        return self._load(pointer, self.number)

    def load(self, pointer: Any) -> Number:
        return self._load(pointer, self.vector)

    def _load(self, pointer: Any, kind: Any) -> Number:
        # Arrays come from torch: vectors in them may begin anywhere.
        return Number(self, self.builder.load(pointer, align=self.size, typ=kind))

    def store(self, number: Number, pointer: Any) -> None:
        self.builder.store(number.value, pointer, align=self.size)

    def add_to(self, pointer: Any, number: Number) -> None:
        """Adds a number or a vector to what is there."""
        self.store(self._load(pointer, number.value.type) + number, pointer)

    def add_double(self, address: Any, index: Any, number: Number) -> None:
        """Adds to one number of an array of float64."""
        builder, wide = self.builder, ir.DoubleType()
        pointer = builder.gep(builder.inttoptr(address, POINTER), [index], source_etype=wide)
        value = number.value if self.double else builder.fpext(number.value, wide)
        builder.store(builder.fadd(builder.load(pointer, typ=wide), value), pointer)

    def element(self, room: Any, index: Any) -> Any:
        """A pointer to one of the vectors of a `variable`."""
        return self.builder.gep(room, [index], source_etype=self.vector)

    def store_part(self, numbers: list[Number], place: Any, count: Any) -> None:
        """Stores the first `count` numbers of a row of vectors."""
        with self._whole(len(numbers), count) as (whole, part):
            with whole:
                for u, number in enumerate(numbers):
                    self.store(number, self.element(place, INDEX(u)))
            with part:
                room = self.variable(INDEX(len(numbers)))
                for u, number in enumerate(numbers):
                    self.store(number, self.element(room, INDEX(u)))
                self._copy(room, place, count)

    def load_part(self, place: Any, vectors: int, count: Any) -> list[Number]:
        """The first `count` numbers of a row of vectors, zeros after them."""
        room = self.variable(INDEX(vectors))
        with self._whole(vectors, count) as (whole, part):
            with whole:
                for u in range(vectors):
                    self.store(
                        self.load(self.element(place, INDEX(u))), self.element(room, INDEX(u))
                    )
            with part:
                for u in range(vectors):
                    self.store(self.zeros(), self.element(room, INDEX(u)))
                self._copy(place, room, count)
        return [self.load(self.element(room, INDEX(u))) for u in range(vectors)]

    def _whole(self, vectors: int, count: Any) -> Any:
        enough = INDEX(vectors * self.lanes)
        return self.builder.if_else(self.builder.icmp_signed(">=", count, enough), likely=True)

    def _copy(self, source: Any, target: Any, count: Any) -> None:
        with self.loop(INDEX(0), count) as j:
            here, there = (
                self.builder.gep(t, [j], source_etype=self.number) for t in (source, target)
            )
            self.store(self.scalar(here), there)

    def object_code(self) -> bytes:
        """The finished function, compiled for this machine."""
        self.builder.ret_void()
        module, machine = binding.parse_assembly(str(self.module)), _machine()
        module.verify()
        # The vectors are explicit already: a level of optimisation takes longer and finds no more.
        passes = binding.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        options = binding.create_pipeline_tuning_options()
        passes.run(module, binding.create_pass_builder(machine, options))
        return machine.emit_object(module)


# Code lives as long as the engine that holds it.
_engines: list[binding.ExecutionEngine] = []


def loaded(code: bytes, name: str) -> int:
    """The address of a function in object code."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address(name)


def this_machine() -> str:
    """All that code compiled here depends on, beside the program."""
    features = binding.get_host_cpu_features().flatten()
    triple, cpu = binding.get_process_triple(), binding.get_host_cpu_name()
    return f"{llvmlite.__version__} {binding.llvm_version_info} {triple} {cpu} {features}"


def _machine() -> binding.TargetMachine:
    """What this processor can do. An engine owns the one that it is given: none is shared."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
