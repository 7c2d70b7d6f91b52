"""Sums of radial kernels, k(x, z) = Σ_k s_k κ_k(ρ_k |x − z|²): blocks, and blocks times vectors.

A fused backend computes a whole sum in one pass: machine code on a CPU (`compiled`), a Triton
kernel on a CUDA device (`fused`). Plain torch (`tiled`) serves everywhere.
"""

import importlib.util
import os
import warnings
from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import ConfigurationError

# What walks over the columns of x one by one is not for wide tables: they want a matrix product.
WIDEST = 64
# Names what is switched off, with commas between: llvm (machine code on a CPU), openmp (torch's own
# threads for that code), triton (the fused kernel on a CUDA device). Each is looked up when it is
# first needed.
VARIABLE = "ORTHOGP_DISABLE"
ACCELERATORS = ("llvm", "openmp", "triton")


def one_sided(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """x as the rows of K_xx, with twice the gradient, and as its columns, with none."""
    return _TwiceGradient.apply(x), x.detach()  # pyright: ignore[reportReturnType]


class _TwiceGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return 2.0 * grad_outputs[0]


def fused_backend(x: Tensor) -> ModuleType | None:
    """The module with the fused `block` and `matvec` for points like x, or None.

    They take the lengthscales of every summand, not points divided by them.
    """
    if x.is_cuda:
        return _triton_backend(x.device) if x.shape[1] <= WIDEST else None
    return compiled_backend(x)


def products_are_independent(x: Tensor, latents: int) -> bool:
    """Whether `matvec` for points like x works on every row alone."""
    backend = fused_backend(x)
    return backend is not None and (not x.is_cuda or latents <= backend.MOST_LATENTS)


def compiled_backend(x: Tensor, widest: int = WIDEST) -> ModuleType | None:
    """The module of machine code where it serves points like x, else None.

    `widest` is the most columns for which it is the faster way.
    """
    narrow = x.dtype in (torch.float32, torch.float64) and x.shape[1] <= widest
    return _llvm_backend() if narrow and x.device.type == "cpu" else None


def disabled(accelerator: str) -> bool:
    """Whether the environment switches this accelerator off."""
    named = os.environ.get(VARIABLE, "").split(",")
    names = [name.strip() for name in named if name.strip()]
    unknown = [name for name in names if name not in ACCELERATORS]
    if unknown:
        raise ConfigurationError(
            f"{VARIABLE} names {', '.join(unknown)}; expected some of {', '.join(ACCELERATORS)}, "
            "with commas between"
        )
    return accelerator in names


@cache
def _llvm_backend() -> ModuleType | None:
    """`compiled` where LLVM is there and can compile for this machine."""
    if disabled("llvm") or importlib.util.find_spec("llvmlite") is None:
        return None
    try:
        from orthogp.kernel.radial import compiled

        one = torch.ones(1, 1, device="cpu")
        compiled.block(one, one, one, one[0], ("rbf",))
    except Exception as error:
        warnings.warn(
            f"LLVM cannot compile here ({type(error).__name__}: {error}), so radial kernels take "
            "the slower way of plain torch; installing llvmlite anew is what usually helps",
            stacklevel=2,
        )
        return None
    return compiled


@cache
def _triton_backend(device: torch.device) -> ModuleType | None:
    """`fused` where Triton is there and can compile it, which takes a C compiler."""
    if disabled("triton") or importlib.util.find_spec("triton") is None:
        return None
    try:
        from orthogp.kernel.radial import fused

        one = torch.ones(1, 1, device=device)
        fused.block(one, one, one, one[0], ("rbf",))
    except Exception as error:
        warnings.warn(
            f"Triton cannot compile here ({type(error).__name__}), so radial kernels take the "
            "slower way of plain torch; a C compiler on the PATH is what it usually wants",
            stacklevel=2,
        )
        return None
    return fused
