"""What a sum of scaled radial kernels consists of, its parameters, and the points that it takes."""

from dataclasses import dataclass, replace
from functools import cached_property, reduce

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from orthogp.errors import DataError
from orthogp.kernel.grouped import GroupedMaternKernel, GroupedRBFKernel

MATERN_FAMILIES = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


@dataclass(frozen=True)
class RadialTerm:
    """One summand: a family, the kernel that holds its lengthscale, the kernels that scale it."""

    family: str
    kernel: Kernel
    scales: tuple[ScaleKernel, ...]

    def scale(self) -> Tensor:
        if not self.scales:
            return self.kernel.lengthscale.new_ones(())
        return reduce(torch.mul, [kernel.outputscale for kernel in self.scales])


@dataclass(frozen=True)
class RadialGroup:
    """Summands that share one distance matrix: all isotropic ones, or a single ARD one."""

    lengthscale: Tensor
    scale: Tensor
    families: tuple[str, ...]
    ard: bool

    def to(self, dtype: torch.dtype) -> "RadialGroup":
        return replace(self, lengthscale=self.lengthscale.to(dtype), scale=self.scale.to(dtype))

    @cached_property
    def rho(self) -> Tensor:
        """ρ_k = 1/ℓ_k², or 1 when the inputs come divided by their lengthscales."""
        if self.ard:
            return torch.ones_like(self.scale)
        return self.lengthscale.square().reciprocal()

    def inputs(self, x: Tensor) -> Tensor:
        return x / self.lengthscale if self.ard else x


@dataclass(frozen=True)
class RadialSum:
    """All summands, with one lengthscale each, `[k, 1]`, or with one for every input, `[k, d]`."""

    lengthscale: Tensor
    scale: Tensor
    families: tuple[str, ...]

    def to(self, dtype: torch.dtype) -> "RadialSum":
        return replace(self, lengthscale=self.lengthscale.to(dtype), scale=self.scale.to(dtype))

    @cached_property
    def inverse(self) -> Tensor:
        return self.lengthscale.reciprocal()


class Parameters:
    """The kernel's parameters, each read once, in every form and dtype that is asked for."""

    def __init__(self, terms: tuple[RadialTerm, ...]):
        self.lengthscales = [term.kernel.lengthscale for term in terms]
        self.scales = [term.scale().reshape(1) for term in terms]
        self.families = tuple(term.family for term in terms)
        self._sums: dict[torch.dtype, RadialSum] = {}
        self.converted: list[Tensor] = []

    def convert(self, dtypes: set[torch.dtype], fused: bool) -> None:
        """Computes `converted` now, what blocks in several CUDA streams would each compute."""
        if fused:
            sums = [self.sum(dtype) for dtype in dtypes]
            self.converted = [t for s in sums for t in (s.inverse, s.scale)]
        else:
            self.converted = [t for g in self._groups for t in (g.lengthscale, g.scale)]

    @cached_property
    def _groups(self) -> list[RadialGroup]:
        groups: list[RadialGroup] = []
        isotropic: list[int] = []
        for k, (lengthscale, scale) in enumerate(zip(self.lengthscales, self.scales, strict=True)):
            if lengthscale.numel() == 1:
                isotropic.append(k)
                continue
            groups.append(RadialGroup(lengthscale, scale, (self.families[k],), ard=True))
        if isotropic:
            lengthscales = torch.cat([self.lengthscales[k].reshape(1) for k in isotropic])
            scales = torch.cat([self.scales[k] for k in isotropic])
            families = tuple(self.families[k] for k in isotropic)
            groups.append(RadialGroup(lengthscales, scales, families, ard=False))
        return groups

    def groups(self, dtype: torch.dtype) -> list[RadialGroup]:
        return [group.to(dtype) for group in self._groups]

    def sum(self, dtype: torch.dtype) -> RadialSum:
        if dtype not in self._sums:
            self._sums[dtype] = self._stacked.to(dtype)
        return self._sums[dtype]

    @cached_property
    def _stacked(self) -> RadialSum:
        width = max(t.numel() for t in self.lengthscales)
        rows = [t.reshape(1, -1).expand(1, width) for t in self.lengthscales]
        return RadialSum(torch.cat(rows), torch.cat(self.scales), self.families)


def radial_terms(
    kernel: Kernel, scales: tuple[ScaleKernel, ...] = ()
) -> tuple[RadialTerm, ...] | None:
    """The summands of a sum of scaled radial kernels, or None for any other kernel."""
    # Exact types only: a subclass may compute anything.
    kind = type(kernel)
    if kernel.active_dims is not None:
        return None
    if kind is ScaleKernel:
        return radial_terms(kernel.base_kernel, (*scales, kernel))  # pyright: ignore
    if kind is AdditiveKernel:
        parts = [radial_terms(part, scales) for part in kernel.kernels]  # pyright: ignore
        return None if any(p is None for p in parts) else sum(parts, start=())  # pyright: ignore
    if kind in (RBFKernel, GroupedRBFKernel):
        return (RadialTerm("rbf", kernel, scales),)
    if kind in (MaternKernel, GroupedMaternKernel):
        return (RadialTerm(MATERN_FAMILIES[kernel.nu], kernel, scales),)  # pyright: ignore
    return None


def check_points(x: Tensor, z: Tensor, a: Tensor | None = None, width: int | None = None) -> None:
    """Refuses points and weights of which K_xz or K_xz a would not be what it says.

    x is `[n, d]`, z `[m, d]` and a `[c, m]`, of one floating dtype and on one device; d is `width`
    where the kernel has a lengthscale for each input.
    """
    x_shape, z_shape, dtype, device = x.shape, z.shape, x.dtype, x.device
    if len(x_shape) != 2 or len(z_shape) != 2 or x_shape[1] != z_shape[1]:
        raise DataError(
            f"x has shape {tuple(x_shape)} and z has shape {tuple(z_shape)}; expected two tables "
            "with the same number of columns"
        )
    if width is not None and x_shape[1] != width:
        raise DataError(
            f"the points have {x_shape[1]} columns, and the kernel has lengthscales for {width}; "
            "pass as many columns as there are lengthscales"
        )
    if z.dtype != dtype or not dtype.is_floating_point or (a is not None and a.dtype != dtype):
        weights = "" if a is None else f", a is {a.dtype}"
        raise DataError(
            f"x is {dtype}, z is {z.dtype}{weights}; expected one floating dtype for all of them: "
            "cast them with .to(dtype)"
        )
    if z.device != device or (a is not None and a.device != device):
        weights = "" if a is None else f", a on {a.device}"
        raise DataError(
            f"x is on {device}, z on {z.device}{weights}; expected one device: move them with "
            ".to(device)"
        )
    if a is not None and (a.dim() != 2 or a.shape[1] != z_shape[0]):
        raise DataError(
            f"a has shape {tuple(a.shape)}; expected a row for each latent function and a column "
            f"for each of the {z_shape[0]} points of z"
        )
