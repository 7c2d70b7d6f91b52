"""From a program in LLVM's language to calls of its machine code in torch's threads.

Compiling takes a second of a process's first fit, so machine code outlives the process: in
`ORTHOGP_CACHE`, by default `orthogp` in the user's folder for caches; nowhere if that is set to
nothing. What is read there is executed, so a file is used only if it is whole, and if nobody but
the user can have written it: file and folder are the user's own, and no one else may write to
them. Where that cannot be had, or cannot be told, code is compiled and not stored.
"""

import contextlib
import ctypes
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import llvmlite
import torch
from llvmlite import binding

from orthogp.errors import FileError
from orthogp.execution.files import write_atomically
from orthogp.kernel.radial import disabled

CACHE_VARIABLE = "ORTHOGP_CACHE"
DIGEST_BYTES = 32
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

# Code lives as long as the engine that holds it.
_engines: list[binding.ExecutionEngine] = []
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def load_function(program: str, name: str) -> int:
    """The address of a program's function, compiled now or by an earlier process."""
    code = cached_code(f"{this_machine()}\n{program}", lambda: compile_program(program))
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address(name)


def compile_program(program: str) -> bytes:
    module, machine = binding.parse_assembly(program), _machine()
    module.verify()
    # The vectors are explicit already: a level of optimisation takes longer and finds no more.
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    options = binding.create_pipeline_tuning_options()
    passes.run(module, binding.create_pass_builder(machine, options))
    return machine.emit_object(module)


def this_machine() -> str:
    """All that the code of a program depends on besides its text."""
    features = binding.get_host_cpu_features().flatten()
    triple, cpu = binding.get_process_triple(), binding.get_host_cpu_name()
    return f"{llvmlite.__version__} {binding.llvm_version_info} {triple} {cpu} {features}"


def has_long_registers() -> bool:
    """Whether a register of this processor holds 64 bytes."""
    return binding.get_host_cpu_features().get("avx512f", False)


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


def run(function: int, argument: int, threads: int) -> None:
    """Calls the machine code at `function` with `argument` in so many threads and waits for them.

    torch's OpenMP threads wait for their next work by spinning: a second pool would have to share
    the cores with threads that do nothing. So the work goes to the very same pool, where torch has
    GNU's OpenMP library; elsewhere Python's threads run it. The interpreter is free meanwhile.
    """
    parallel = _openmp_parallel() if threads > 1 else None
    if threads <= 1:
        _FUNCTION(function)(argument)
    elif parallel is not None:
        parallel(function, argument, threads, 0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(_FUNCTION(function), [argument] * threads))


@cache
def _openmp_parallel():
    """`GOMP_parallel(function, argument, threads, flags)` of torch's own OpenMP, or None."""
    if disabled("openmp"):
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        with contextlib.suppress(OSError, AttributeError):
            parallel = ctypes.CDLL(str(path)).GOMP_parallel
            parallel.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
            parallel.restype = None
            return parallel
    return None


def cached_code(key: str, compile_code: Callable[[], bytes]) -> bytes:
    """What `compile_code` gave for this key, in this process or an earlier one."""
    folder = _cache_folder()
    if folder is None:
        return compile_code()
    name = f"{hashlib.sha256(key.encode()).hexdigest()}.o"
    code = _read(folder, name)
    if code is None:
        code = compile_code()
        with contextlib.suppress(OSError, FileError):
            folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            with _open_private(folder, os.O_DIRECTORY):
                content = [hashlib.sha256(code).digest(), code]
                write_atomically(folder / name, content, mode=PRIVATE_FILE)
    return code


def _cache_folder() -> Path | None:
    # Elsewhere owners and modes cannot be looked at, or not without a race.
    if not (hasattr(os, "geteuid") and hasattr(os, "O_DIRECTORY") and hasattr(os, "O_NOFOLLOW")):
        return None
    given = os.environ.get(CACHE_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orthogp"
    except RuntimeError:
        # A user without a home.
        return None


def _read(folder: Path, name: str) -> bytes | None:
    try:
        with (
            _open_private(folder, os.O_DIRECTORY) as opened,
            _open_private(name, 0, within=opened) as descriptor,
            open(descriptor, "rb", closefd=False) as file,
        ):
            content = file.read()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


@contextlib.contextmanager
def _open_private(path: str | Path, flags: int, within: int | None = None) -> Iterator[int]:
    """A descriptor of something that is the user's own and that nobody else can write to.

    Anything else, a symbolic link too, is an OSError. It is looked at once it is open: what has the
    name may be exchanged meanwhile.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=within)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & WRITABLE_BY_OTHERS:
            raise PermissionError(f"{path} could have been written by another user")
        yield descriptor
    finally:
        os.close(descriptor)
