"""Sums of radial kernels, k(x, z) = Σ_k s_k κ_k(ρ_k |x − z|²): blocks, and blocks times vectors."""

import importlib.util
import warnings
from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.radial import tiled
from orthogp.radial.tiled import FAMILIES

__all__ = ["FAMILIES", "block", "compiled_for", "matvec", "one_sided", "own_block"]


def block(
    x: Float[Tensor, "n d"],
    z: Float[Tensor, "m d"],
    rho: Float[Tensor, " k"],
    scale: Float[Tensor, " k"],
    families: tuple[str, ...],
) -> Float[Tensor, "n m"]:
    """K_xz, O(n m (d + k)) operations."""
    return _backend(x).Block.apply(x, z, rho, scale, families)  # pyright: ignore[reportReturnType]


def own_block(
    x: Float[Tensor, "n d"],
    rho: Float[Tensor, " k"],
    scale: Float[Tensor, " k"],
    families: tuple[str, ...],
) -> Float[Tensor, "n n"]:
    """K_xx, for gradients that are symmetric."""
    backend = _backend(x)
    # Plain torch takes distances by products, and those of a point to itself are exact only there.
    sides = (x, x) if backend is tiled else one_sided(x)
    return backend.Block.apply(*sides, rho, scale, families)  # pyright: ignore[reportReturnType]


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


def matvec(
    x: Float[Tensor, "n d"],
    z: Float[Tensor, "m d"],
    a: Float[Tensor, "c m"],
    rho: Float[Tensor, " k"],
    scale: Float[Tensor, " k"],
    families: tuple[str, ...],
) -> Float[Tensor, "c n"]:
    """(K_xz a_c)_c for every row a_c of a, in memory that does not grow with n · m."""
    return _backend(x).Matvec.apply(x, z, a, rho, scale, families)  # pyright: ignore[reportReturnType]


# The fused kernel walks over the columns of x one by one; wide tables want a matrix product.
WIDEST_FUSED = 64


def _backend(x: Tensor) -> ModuleType:
    if x.is_cuda and x.shape[1] <= WIDEST_FUSED:
        return _on_device(x.device)
    return tiled


def compiled_for(x: Tensor) -> ModuleType | None:
    """The module of compiled sums where it serves points like x, else None.

    Its functions take the lengthscales of every summand, not points divided by them.
    """
    narrow = x.dtype in (torch.float32, torch.float64) and x.shape[1] <= WIDEST_FUSED
    return _on_host() if narrow and x.device.type == "cpu" else None


@cache
def _on_host() -> ModuleType | None:
    """The compiled sums where LLVM is there and can compile for this machine."""
    if importlib.util.find_spec("llvmlite") is None:
        return None
    try:
        from orthogp.radial import compiled

        one = torch.ones(1, 1)
        compiled.Block.apply(one, one, one, one[0], ("rbf",))
    except Exception as error:
        warnings.warn(
            f"LLVM cannot compile here ({type(error).__name__}: {error}), so radial kernels take "
            "the slower way of plain torch; installing llvmlite anew is what usually helps",
            stacklevel=2,
        )
        return None
    return compiled


@cache
def _on_device(device: torch.device) -> ModuleType:
    """The fused kernel where Triton is there and can compile it, which takes a C compiler."""
    if importlib.util.find_spec("triton") is None:
        return tiled
    try:
        from orthogp.radial import fused

        one = torch.ones(1, 1, device=device)
        fused.Block.apply(one, one, one[0], one[0], ("rbf",))
    except Exception as error:
        warnings.warn(
            f"Triton cannot compile here ({type(error).__name__}), so radial kernels take the "
            "slower way of plain torch; a C compiler on the PATH is what it usually wants",
            stacklevel=2,
        )
        return tiled
    return fused
