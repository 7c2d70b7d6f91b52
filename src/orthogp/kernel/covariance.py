"""The only caller of a kernel: blocks, diagonals, and blocks times vectors.

Sums of scaled RBF and Matérn kernels take the fused path of `radial`; any other GPyTorch kernel is
evaluated as GPyTorch would. The two agree to rounding, values and gradients.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import gpytorch
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from orthogp.errors import ConfigurationError
from orthogp.kernel import radial
from orthogp.kernel.radial import tiled
from orthogp.kernel.radial.terms import Reading, check_points, radial_terms

GENERIC_TILE = {"cpu": 2**20, "cuda": 2**24}
# A kernel of GPyTorch is evaluated with its parameters exchanged for copies in another dtype, and
# with one of GPyTorch's own settings changed: threads take turns.
_ONE_AT_A_TIME = threading.RLock()


class Covariance(nn.Module):
    """k(·, ·) of a GPyTorch kernel without batch dimensions.

    Kernel parameters are cast to the dtype of the inputs, so float64 blocks of a float32 model
    are exact to float64 rounding.
    """

    def __init__(self, kernel: Kernel):
        super().__init__()
        if len(kernel.batch_shape) > 0:
            raise ConfigurationError(
                f"the kernel has batch shape {tuple(kernel.batch_shape)}; expected a kernel "
                "without batch dimensions, which all latent functions share"
            )
        self.kernel = kernel
        self.terms = radial_terms(kernel)
        lengthscales = [term.kernel.ard_num_dims for term in self.terms or ()]
        # How many inputs a kernel with a lengthscale for each is for.
        self._width = next((count for count in lengthscales if count not in (None, 1)), None)
        # By thread: several may predict with one model.
        self._held: dict[int, Reading] = {}

    @contextmanager
    def held(self, x: Float[Tensor, "n d"]) -> Iterator[None]:
        """Reads the kernel's parameters once for all blocks inside, of points like x or in float64.

        The parameters must stand still.
        """
        if self.terms is not None:
            held = self._held[threading.get_ident()] = Reading(self.terms)
            if x.is_cuda:
                held.prepare({x.dtype, torch.float64}, radial.at_once(x) is not None)
        try:
            yield
        finally:
            self._held.pop(threading.get_ident(), None)

    def held_tensors(self) -> list[Tensor]:
        """What every block inside `held` reads, where blocks may run beside each other."""
        held = self._held.get(threading.get_ident())
        return [] if held is None else held.prepared

    def extra_repr(self) -> str:
        """Names what no parameter shows, such as the smoothness of a Matérn kernel."""
        return "generic" if self.terms is None else " + ".join(t.family for t in self.terms)

    @property
    def fused(self) -> bool:
        return self.terms is not None

    def row_by_row(self, x: Float[Tensor, "n d"]) -> bool:
        """Whether what comes out for one of these points is the same bits beside any others."""
        return self.fused and radial.compiled_for(x) is not None

    def block(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
        """K_xz."""
        check_points(x, z, width=self._width)
        if self.terms is None:
            return self._generic_block(x, z)
        whole = radial.at_once(x)
        if whole is not None:
            terms = self._reading().sum(x.dtype)
            return whole.Block.apply(x, z, terms.inverse, terms.scale, terms.families)
        total = None
        for group in self._reading().groups(x.dtype):
            scaled = group.inputs(x)
            other = scaled if x is z else group.inputs(z)
            part = tiled.Block.apply(scaled, other, group.rho, group.scale, group.families)
            total = part if total is None else total + part
        assert total is not None
        return total

    def own_block(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """K_xx; what comes back as its gradient must be symmetric.

        A point's share as a row is then its share as a column, and one of them is enough.
        """
        check_points(x, x, width=self._width)
        if self.terms is None:
            return self._generic_block(x, x)
        whole = radial.at_once(x)
        # Plain torch takes distances by products: those of a point to itself are exact only there.
        if whole is None:
            return self.block(x, x)
        terms = self._reading().sum(x.dtype)
        sides = radial.one_sided(x)
        return whole.Block.apply(*sides, terms.inverse, terms.scale, terms.families)

    def diagonal(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """k(x_i, x_i) for every row."""
        check_points(x, x, width=self._width)
        if self.terms is None:
            return self._call_dense(x, x, diagonal=True)
        reading = self._reading()
        if radial.at_once(x) is not None:
            scales = reading.sum(x.dtype).scale
        else:
            scales = torch.cat([group.scale for group in reading.groups(x.dtype)])
        return scales.sum().expand(x.shape[0])

    def matvec(
        self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"], a: Float[Tensor, "c m"]
    ) -> Float[Tensor, "c n"]:
        """K_xz a_c for every latent function c, in memory that does not grow with n · m."""
        check_points(x, z, a, self._width)
        if self.terms is None:
            return self._generic_matvec(x, z, a)
        whole = radial.at_once(x)
        if whole is not None:
            terms = self._reading().sum(x.dtype)
            return whole.Matvec.apply(x, z, a, terms.inverse, terms.scale, terms.families)
        total = None
        for group in self._reading().groups(x.dtype):
            scaled = group.inputs(x)
            other = scaled if x is z else group.inputs(z)
            part = tiled.Matvec.apply(scaled, other, a, group.rho, group.scale, group.families)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _reading(self) -> Reading:
        assert self.terms is not None
        held = self._held.get(threading.get_ident())
        return Reading(self.terms) if held is None else held

    def _generic_block(self, x: Tensor, z: Tensor) -> Tensor:
        out = self._call_dense(x, z, diagonal=False)
        if out.shape != (x.shape[0], z.shape[0]):
            raise ConfigurationError(
                f"the kernel gave a block of shape {tuple(out.shape)} for {x.shape[0]} and "
                f"{z.shape[0]} points; expected one number for each pair of points"
            )
        return out

    def _generic_matvec(self, x: Tensor, z: Tensor, a: Tensor) -> Tensor:
        budget = GENERIC_TILE.get(x.device.type, GENERIC_TILE["cpu"])
        width = max(1, min(z.shape[0], budget))
        height = max(1, budget // width)
        rows = []
        for xi in x.split(height):
            row = a.new_zeros(a.shape[0], xi.shape[0])
            for zj, aj in zip(z.split(width), a.split(width, dim=1), strict=True):
                row = row + checkpoint(
                    lambda s, t, b: b @ self._generic_block(s, t).mT, xi, zj, aj,
                    use_reentrant=False, preserve_rng_state=False,
                )  # fmt: skip
            rows.append(row)
        return torch.cat(rows, dim=1) if rows else a.new_zeros(a.shape[0], 0)

    def _call_dense(self, x: Tensor, z: Tensor, diagonal: bool) -> Tensor:
        dense = _Dense(self.kernel)
        with _ONE_AT_A_TIME:
            state = {
                name: value.to(x.dtype) if value.is_floating_point() else value
                for name, value in [*dense.named_parameters(), *dense.named_buffers()]
            }
            return torch.func.functional_call(dense, state, (x, z, diagonal))


class _Dense(nn.Module):
    """A kernel evaluated at once to a plain tensor."""

    def __init__(self, kernel: Kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor, z: Tensor, diagonal: bool) -> Tensor:
        if diagonal:
            return self.kernel(x, diag=True)  # pyright: ignore[reportReturnType]
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(x, z).to_dense()
