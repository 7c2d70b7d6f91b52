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
from orthogp.kernel.radial.batched import batched_block
from orthogp.kernel.radial.terms import Parameters, check_points, radial_terms

GENERIC_TILE = {"cpu": 2**20, "cuda": 2**24}
# A kernel of GPyTorch is evaluated with its parameters exchanged for copies in another dtype, and
# with one of GPyTorch's own settings changed: threads take turns.
_GENERIC_LOCK = threading.RLock()


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
        # Of `parameters_read_once`, by thread: several may predict with one model.
        self._parameters_by_thread: dict[int, Parameters] = {}

    @contextmanager
    def parameters_read_once(self, x: Float[Tensor, "n d"]) -> Iterator[None]:
        """Reads the kernel's parameters once for all blocks inside, of points like x or in float64.

        They must not change meanwhile.
        """
        if self.terms is not None:
            parameters = self._parameters_by_thread[threading.get_ident()] = Parameters(self.terms)
            if x.is_cuda:
                parameters.convert({x.dtype, torch.float64}, radial.fused_backend(x) is not None)
        try:
            yield
        finally:
            self._parameters_by_thread.pop(threading.get_ident(), None)

    @contextmanager
    def constant_parameters(self, x: Float[Tensor, "n d"]) -> Iterator[None]:
        """Blocks inside are functions of their points alone: no gradient reaches the kernel.

        Of radial kernels; any other one is differentiated with respect to its parameters too.
        """
        with torch.no_grad():
            read = self.parameters_read_once(x)
            read.__enter__()
        try:
            yield
        finally:
            read.__exit__(None, None, None)

    def shared_parameters(self) -> list[Tensor]:
        """What all blocks inside `parameters_read_once` read, for CUDA streams that run them."""
        parameters = self._parameters_by_thread.get(threading.get_ident())
        return [] if parameters is None else parameters.converted

    def extra_repr(self) -> str:
        """Names what no parameter shows, such as the smoothness of a Matérn kernel."""
        return "generic" if self.terms is None else " + ".join(t.family for t in self.terms)

    @property
    def fused(self) -> bool:
        """Whether the kernel is a sum of radial kernels, for which there are fused operations."""
        return self.terms is not None

    def rows_are_independent(self, x: Float[Tensor, "n d"]) -> bool:
        """Whether a row of K_xz is the same to the last bit whatever the other rows are."""
        return self.fused and radial.compiled_backend(x) is not None

    def products_are_independent(self, x: Float[Tensor, "n d"], latents: int) -> bool:
        """Whether K_xz a of a row is the same to the last bit whatever the other rows are."""
        return self.fused and radial.products_are_independent(x, latents)

    def block(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
        """K_xz."""
        check_points(x, z, width=self._width)
        if self.terms is None:
            return self._generic_block(x, z)
        return self._radial_sum("block", x, z)

    def symmetric_block(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """K_xx, for a loss whose gradient with respect to it is symmetric.

        A point's share in the gradient as a row is then its share as a column: on a GPU only the
        first is computed, and on a CPU every pair of points once.
        """
        check_points(x, x, width=self._width)
        backend = radial.fused_backend(x)
        # Plain torch takes distances by products: those of a point to itself are exact only there.
        if self.terms is None or backend is None:
            return self.block(x, x)
        if hasattr(backend, "symmetric_block"):
            terms = self._read_parameters().sum(x.dtype)
            return backend.symmetric_block(x, terms.inverse, terms.scale, terms.families)
        return self._radial_sum("block", *radial.one_sided(x))

    def diagonal(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """k(x_i, x_i) for every row."""
        check_points(x, x, width=self._width)
        if self.terms is None:
            return self._call_dense(x, x, diagonal=True)
        parameters = self._read_parameters()
        if radial.fused_backend(x) is not None:
            scales = parameters.sum(x.dtype).scale
        else:
            scales = torch.cat([group.scale for group in parameters.groups(x.dtype)])
        return scales.sum().expand(x.shape[0])

    def batched_block(
        self, x: Float[Tensor, "m n d"], z: Float[Tensor, "m l d"]
    ) -> Float[Tensor, "m n l"]:
        """K_xz of every pair of tables of a batch, for many small tables."""
        check_points(x[0], z[0], width=self._width)
        if self.terms is None:
            return self._call_dense(x, z, diagonal=False)
        if x is z and radial.compiled_backend(x[0]) is not None:
            from orthogp.kernel.radial.tables import table_blocks

            terms = self._read_parameters().sum(x.dtype)
            return table_blocks(x, terms.inverse, terms.scale, terms.families)
        if x.is_cuda and not torch.is_grad_enabled() and radial.fused_backend(x[0]) is not None:
            from orthogp.kernel.radial.fused_batches import batched_values

            terms = self._read_parameters().sum(x.dtype)
            return batched_values(x, z, terms.inverse, terms.scale, terms.families)
        total = None
        for group in self._read_parameters().groups(x.dtype):
            scaled = group.inputs(x)
            other = scaled if x is z else group.inputs(z)
            part = batched_block(scaled, other, group.rho, group.scale, group.families)
            total = part if total is None else total + part
        assert isinstance(total, Tensor)
        return total

    def relevance(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
        """ρ_d, by which distances are nearness: Σ_d ρ_d (x_d − z_d)².

        For a sum of radial kernels the mean of 1/ℓ² over the summands, weighted by their scales.
        For other kernels that of all lengthscales which are for these inputs; ones if there are
        none.
        """
        count = x.shape[-1]
        if self.terms is not None:
            terms = self._read_parameters().sum(torch.float64)
            share = (terms.scale / terms.scale.sum()).unsqueeze(-1)
            return (share * terms.inverse.square()).sum(0).expand(count)
        whole = [part for part in self.kernel.modules() if _sees_all_inputs(part, count)]
        found = [part.lengthscale.double().reshape(-1) for part in whole]  # pyright: ignore
        if not found:
            return x.new_ones(count, dtype=torch.float64)
        return torch.stack([t.expand(count).square().reciprocal() for t in found]).mean(0)

    def matvec(
        self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"], a: Float[Tensor, "c m"]
    ) -> Float[Tensor, "c n"]:
        """K_xz a_c for every latent function c, in memory that does not grow with n · m."""
        check_points(x, z, a, self._width)
        if self.terms is None:
            return self._generic_matvec(x, z, a)
        return self._radial_sum("matvec", x, z, a)

    @torch.no_grad()
    def symmetric_matvec(
        self, x: Float[Tensor, "n d"], a: Float[Tensor, "c n"]
    ) -> Float[Tensor, "c n"]:
        """K_xx a_c for every latent function c, without gradients: on a CPU in half of the time."""
        backend = None if self.terms is None else radial.compiled_backend(x)
        if backend is None:
            return self.matvec(x, x, a)
        check_points(x, x, a, self._width)
        terms = self._read_parameters().sum(x.dtype)
        return backend.symmetric_matvec(x, a, terms.inverse, terms.scale, terms.families)

    def _read_parameters(self) -> Parameters:
        assert self.terms is not None
        return self._parameters_by_thread.get(threading.get_ident()) or Parameters(self.terms)

    def _radial_sum(self, operation: str, x: Tensor, z: Tensor, *a: Tensor) -> Tensor:
        """`block` or `matvec` of the fused backend, or of torch tiles, group by group."""
        parameters, backend = self._read_parameters(), radial.fused_backend(x)
        if backend is not None:
            terms = parameters.sum(x.dtype)
            function = getattr(backend, operation)
            return function(x, z, *a, terms.inverse, terms.scale, terms.families)
        total = None
        for group in parameters.groups(x.dtype):
            scaled = group.inputs(x)
            other = scaled if x is z else group.inputs(z)
            function = getattr(tiled, operation)
            part = function(scaled, other, *a, group.rho, group.scale, group.families)
            total = part if total is None else total + part
        assert total is not None
        return total

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
        with _GENERIC_LOCK:
            state = {
                name: value.to(x.dtype) if value.is_floating_point() else value
                for name, value in [*dense.named_parameters(), *dense.named_buffers()]
            }
            return torch.func.functional_call(dense, state, (x, z, diagonal))


def _sees_all_inputs(part: nn.Module, count: int) -> bool:
    """Whether this part of a kernel has lengthscales, for all inputs of `count` columns."""
    if not isinstance(part, Kernel) or not part.has_lengthscale or part.active_dims is not None:
        return False
    return part.lengthscale.numel() in (1, count)


class _Dense(nn.Module):
    """A kernel evaluated to a plain tensor."""

    def __init__(self, kernel: Kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor, z: Tensor, diagonal: bool) -> Tensor:
        if diagonal:
            return self.kernel(x, diag=True)  # pyright: ignore[reportReturnType]
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(x, z).to_dense()
