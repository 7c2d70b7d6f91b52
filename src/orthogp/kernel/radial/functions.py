"""The functions of `kernels` at hand: loaded when first asked for, compiled if on no disk."""

import hashlib
from functools import cache
from pathlib import Path

from orthogp.kernel.radial import emit, families, kernels, native
from orthogp.kernel.radial.code_cache import cached_code


@cache
def function(kind: kernels.Kind) -> int:
    """The address of the function of this kind."""
    key = f"{kind} {_source()} {native.this_machine()}"
    code = cached_code(key, lambda: kernels.compile_function(kind))
    return native.load_function(code, kernels.NAME)


@cache
def _source() -> str:
    """What the functions are made by: another version of it makes others."""
    files = (module.__file__ for module in (emit, families, kernels, native))
    content = b"".join(Path(file).read_bytes() for file in files if file)
    return hashlib.sha256(content).hexdigest()
