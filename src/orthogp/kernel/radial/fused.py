"""The radial sums on a CUDA device: one Triton kernel does the elementwise work of a tile.

A tile of K, or of K and Q = ∂ℓ/∂K ∘ W, is written once and read by matrix products while it is
still in the device's cache; for K a there is never more than a tile. Distances are sums of squared
differences: nothing cancels, and no product runs in TF32.
"""

from collections.abc import Iterator

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.errors import DataError
from orthogp.kernel.radial.fused_families import family, family_code
from orthogp.kernel.radial.fused_products import MOST_LATENTS, products
from orthogp.kernel.radial.terms import check_points

# K and Q of a float32 tile together fit the second-level cache of a large device.
TILE_ELEMENTS = 2**22
CENTRE_ROWS = 512
# Of the rectangle that one program computes.
ROWS, COLUMNS = 32, 64


class FusedBlock(torch.autograd.Function):
    """K_xz of inverse lengthscales `[k, d]` or `[k, 1]` and scales `[k]`."""

    @staticmethod
    def forward(ctx, x, z, inverse, scale, families):
        terms = ctx.terms = _FusedTerms(x, z, None, inverse, scale, families)
        K = x.new_empty(x.shape[0], z.shape[0])
        terms.launch(slice(0, z.shape[0]), K=K)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        terms: _FusedTerms = ctx.terms
        P = grad_outputs[0].contiguous()
        Q = P.new_empty(terms.groups, *P.shape)
        found = _Gradients(terms, *ctx.needs_input_grad[:2])
        found.add(slice(0, P.shape[1]), Q, terms.launch(slice(0, P.shape[1]), Q=Q, P=P))
        return found.x(), found.z(), *found.hyper(), None


class FusedMatvec(torch.autograd.Function):
    """K_xz a_c for every row a_c of a."""

    @staticmethod
    def forward(ctx, x, z, a, inverse, scale, families):
        terms = _FusedTerms(x, z, a, inverse, scale, families)
        ctx.terms, ctx.a = terms, a
        if 0 < len(a) <= MOST_LATENTS:
            return products(terms.x, terms.z, a, terms.inverse, terms.scale, families)
        out = None
        for columns in _chunks(x, z):
            K = x.new_empty(x.shape[0], columns.stop - columns.start)
            terms.launch(columns, K=K)
            product = a[:, columns] @ K.mT
            out = product if out is None else out + product
        return a.new_zeros(a.shape[0], x.shape[0]) if out is None else out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        terms: _FusedTerms = ctx.terms
        a, g = ctx.a, grad_outputs[0].contiguous()
        rows = terms.x.shape[1]
        found, grad_a = _Gradients(terms, *ctx.needs_input_grad[:2]), torch.empty_like(a)
        if rows == 0:
            grad_a.zero_()
        for columns in _chunks(terms.x[0], terms.z[0]):
            tiles = a.new_empty(1 + terms.groups, rows, columns.stop - columns.start)
            K, Q = tiles[0], tiles[1:]
            # ∂ℓ/∂K = gᵀ a has rank c: it is formed in the kernel's registers only.
            part = a[:, columns].contiguous()
            sums = terms.launch(columns, K=K, Q=Q, g=g, a=part)
            torch.mm(g, K, out=grad_a[:, columns])
            found.add(columns, Q, sums)
        return found.x(), found.z(), grad_a, *found.hyper(), None


block, matvec = FusedBlock.apply, FusedMatvec.apply


class _FusedTerms:
    """The sum and its points: all summands share one set and differ by ρ, or each has its own.

    Its own are the points over its lengthscales.
    """

    def __init__(self, x, z, a, inverse, scale, families: tuple[str, ...]):
        check_points(x, z, a, width=inverse.shape[1] if inverse.shape[1] > 1 else None)
        if scale.dtype != x.dtype or scale.device != x.device:
            raise DataError(
                f"the points are {x.dtype} on {x.device}, the kernel {scale.dtype} on "
                f"{scale.device}; expected both alike"
            )
        self.inverse, self.scale = inverse.contiguous(), scale.contiguous()
        self.families = families
        self.ard = inverse.shape[1] > 1
        self.groups = len(families) if self.ard else 1
        # Of each summand one for its scale and one for each of its lengthscales.
        self.num_sums = len(families) * (1 + inverse.shape[1])
        # [groups, rows, inputs]
        self.x, self.z = (
            t * inverse[:, None] if self.ard else t.contiguous()[None] for t in (x, z)
        )

    def launch(
        self,
        columns: slice,
        K: Tensor | None = None,
        Q: Tensor | None = None,
        P: Tensor | None = None,
        g: Tensor | None = None,
        a: Tensor | None = None,
    ) -> Tensor:
        """Fills K and Q; with Q, whose P is given or is gᵀ a, returns sums over the tile:

        Σ P ∘ κ_k, then Σ Q_k ∘ d², for each input where each has a lengthscale.
        """
        (_, rows, dims), width = self.x.shape, columns.stop - columns.start
        count = len(self.families)
        if rows * width == 0:
            return self.scale.new_zeros(self.num_sums, dtype=torch.float64)
        programs = triton.cdiv(rows, ROWS) * triton.cdiv(width, COLUMNS)
        sums = self.scale.new_empty(self.num_sums, programs, dtype=torch.float64)
        code = family_code(self.families)
        z = self.z[:, columns]
        # Triton launches on the current device, which need not be that of the points.
        with torch.cuda.device(self.x.device):
            _tile[(programs,)](  # pyright: ignore[reportIndexIssue]
                self.x, z, self.inverse, self.scale, K, Q, P, g, a, sums, rows, width, dims,
                0 if g is None else len(g), z.stride(0), 0 if Q is None else Q.stride(0),
                FAMILIES=code, COUNT=count, ARD=self.ard, WITH_K=K is not None,
                WITH_Q=Q is not None, DENSE=P is not None, ROWS=ROWS, COLUMNS=COLUMNS,
            )  # fmt: skip
        return sums.sum(1) if Q is not None else sums


class _Gradients:
    """Those of x, z, the inverse lengthscales and the scales, summed over tiles.

    With Q = P ∘ s ρ κ′, ∂ℓ/∂x_i = 2 Σ_j Q_ij (x_i − z_j); likewise z.
    """

    def __init__(self, terms: _FusedTerms, x_needed: bool, z_needed: bool):
        self.terms = terms
        needed = x_needed or z_needed
        self.x_one, self.z_one = _centred(terms.x, terms.z) if needed else (None, None)
        self.of_x: list[list[Tensor]] | None = [[] for _ in terms.x] if x_needed else None
        # Without rows there are no tiles to fill it.
        room = torch.empty_like if terms.x.shape[1] else torch.zeros_like
        self.of_z = room(self.z_one) if z_needed else None  # pyright: ignore
        self.sums: list[Tensor] = []

    def add(self, columns: slice, Q: Tensor, sums: Tensor) -> None:
        self.sums.append(sums)
        for k, q in enumerate(Q):
            if self.of_z is not None:
                torch.mm(q.mT, self.x_one[k], out=self.of_z[k, columns])  # pyright: ignore
            if self.of_x is not None:
                self.of_x[k].append(q @ self.z_one[k, columns])  # pyright: ignore

    def x(self) -> Tensor | None:
        if self.of_x is None:
            return None
        products = [_sum(parts, self.x_one[0]) for parts in self.of_x]  # pyright: ignore
        stacked = torch.stack(products) if len(products) > 1 else products[0][None]
        return self._points(self.x_one, stacked)

    def z(self) -> Tensor | None:
        return None if self.of_z is None else self._points(self.z_one, self.of_z)

    def _points(self, one: Tensor | None, products: Tensor) -> Tensor:
        """2 Σ_j Q_ij (x_i − z_j) from [x, 1] and Q [z, 1]."""
        assert one is not None
        found = torch.addcmul(products, products[..., -1:], one, value=-1.0)[..., :-1] * -2.0
        return (found * self.terms.inverse[:, None]).sum(0) if self.terms.ard else found[0]

    def hyper(self) -> tuple[Tensor, Tensor]:
        """The gradients of the inverse lengthscales and of the scales."""
        inverse, scale = self.terms.inverse, self.terms.scale
        nothing = scale.new_empty(self.terms.num_sums, dtype=torch.float64)
        sums = _sum(self.sums, nothing).to(scale.dtype)
        totals, moments = sums[: len(scale)], sums[len(scale) :]
        # The moments are Σ ∂ℓ/∂q q, and ∂q/∂inverse = 2 q / inverse.
        return 2.0 * moments.view_as(inverse) / inverse, totals


def _centred(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets, with a column of ones, about a centre of z: their gradients cancel least there."""
    # Of the first rows: a mean over the columns of a tall matrix occupies one processor alone.
    centre = z[:, :CENTRE_ROWS].mean(1, keepdim=True) if z.shape[1] else z.new_zeros(1, 1, 1)
    one = _with_ones(x, centre)
    same = x.data_ptr() == z.data_ptr() and x.shape == z.shape
    return one, one if same else _with_ones(z, centre)


def _with_ones(points: Tensor, centre: Tensor) -> Tensor:
    out = points.new_ones(*points.shape[:-1], points.shape[-1] + 1)
    torch.sub(points, centre, out=out[..., :-1])
    return out


def _sum(parts: list[Tensor], like: Tensor) -> Tensor:
    if len(parts) < 2:
        return parts[0] if parts else torch.zeros_like(like)
    return torch.stack(parts).sum(0)


def _chunks(x: Tensor, z: Tensor) -> Iterator[slice]:
    width = max(COLUMNS, TILE_ELEMENTS // max(1, x.shape[0]))
    if x.shape[0]:
        for j in range(0, z.shape[0], width):
            yield slice(j, min(j + width, z.shape[0]))


@triton.jit
def _difference(x_ptr, z_ptr, i, j, d, dims, i_inside, j_inside):
    x = tl.load(x_ptr + i * dims + d, mask=i_inside, other=0.0)
    z = tl.load(z_ptr + j * dims + d, mask=j_inside, other=0.0)
    return x[:, None] - z[None, :]


@triton.jit
def _tile(
    x_ptr, z_ptr, inverse_ptr, scale_ptr, K_ptr, Q_ptr, P_ptr, g_ptr, a_ptr, sums_ptr,
    rows, columns, dims, latents, z_step, Q_step,
    FAMILIES: tl.constexpr, COUNT: tl.constexpr, ARD: tl.constexpr, WITH_K: tl.constexpr,
    WITH_Q: tl.constexpr, DENSE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    across = tl.cdiv(columns, COLUMNS)
    i = program // across * ROWS + tl.arange(0, ROWS)
    j = program % across * COLUMNS + tl.arange(0, COLUMNS)
    i_inside, j_inside = i < rows, j < columns
    place = i[:, None].to(tl.int64) * columns + j[None, :]
    inside = i_inside[:, None] & j_inside[None, :]
    K = tl.zeros((ROWS, COLUMNS), dtype=x_ptr.dtype.element_ty)
    d2, P, W = tl.zeros_like(K), tl.zeros_like(K), tl.zeros_like(K)
    if WITH_Q:
        if DENSE:
            P = tl.load(P_ptr + place, mask=inside, other=0.0)
        else:
            for c in range(latents):
                g = tl.load(g_ptr + c * rows + i, mask=i_inside, other=0.0)
                a = tl.load(a_ptr + c * columns + j, mask=j_inside, other=0.0)
                P += g[:, None] * a[None, :]
    for k in tl.static_range(COUNT):
        x_own, z_own = x_ptr, z_ptr
        if ARD:
            x_own += k * rows * dims
            z_own += k * z_step
        if ARD or k == 0:
            d2 = tl.zeros_like(K)
            for d in range(dims):
                difference = _difference(x_own, z_own, i, j, d, dims, i_inside, j_inside)
                d2 += difference * difference
        scale = tl.load(scale_ptr + k)
        if ARD:
            value, slope = family(d2, (FAMILIES // 4**k) % 4)
        else:
            inverse = tl.load(inverse_ptr + k)
            rho = inverse * inverse
            value, slope = family(rho * d2, (FAMILIES // 4**k) % 4)
        K += scale * value
        if WITH_Q:
            # Rows and columns beyond the edge have P = 0.
            slot = sums_ptr + program
            tl.store(slot + k * programs, tl.sum(P * value).to(tl.float64))
            if ARD:
                Q = P * (scale * slope)
                tl.store(Q_ptr + k * Q_step + place, Q, mask=inside)
                slot += (COUNT + k * dims) * programs
                for d in range(dims):
                    difference = _difference(x_own, z_own, i, j, d, dims, i_inside, j_inside)
                    square = tl.sum(Q * difference * difference).to(tl.float64)
                    tl.store(slot + d * programs, square)
            else:
                own = scale * rho * slope
                W += own
                moment = tl.sum(P * own * d2).to(tl.float64)
                tl.store(slot + (COUNT + k) * programs, moment)
    if WITH_K:
        tl.store(K_ptr + place, K, mask=inside)
    if WITH_Q and not ARD:
        tl.store(Q_ptr + place, P * W, mask=inside)
