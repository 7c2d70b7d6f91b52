"""The radial sums as torch operations on tiles that stay in cache.

What the backward pass needs of a tile is stored while the whole block is small and computed again
when it is not: for K a the memory is that of x, z and a, whatever their lengths.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orthogp.kernel.radial.families import families_with

# Bytes of a tile. On a CPU a tile and a temporary fit the second-level cache of two cores; on a GPU
# a tile must fill the chip.
TILE_BYTES = {"cpu": 3 * 2**19, "cuda": 2**26}
TILE_COLUMNS = {"cpu": 2**12, "cuda": 2**16}
# A block of at most this many elements stores its tiles for the backward pass.
STORED_ELEMENTS = 2**22

# ρ and s are numbers on a CPU, where they are cheaper, and tensors where reading them would wait.
Scalar = float | Tensor


FAMILIES = families_with(
    # In place: a family takes the root of a product that it uses for nothing else.
    sqrt=torch.sqrt_,
    exp_minus=lambda t: t.neg().exp_(),
    limit=lambda t: t,
    ratio=lambda e, r: torch.where(r > 0, e / r, 0.0),
)


@dataclass(frozen=True)
class Tile:
    """A rectangle of the block: d², and (κ_k, κ′_k) of each family there."""

    rows: slice
    columns: slice
    d2: Tensor
    families: list[tuple[Tensor, Tensor]]


class TiledBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, rho, scale, families):
        ctx.terms = _TiledTerms(x, z, rho, scale, families, any(ctx.needs_input_grad))
        out, scales = x.new_empty(x.shape[0], z.shape[0]), scalars(scale)
        for tile in ctx.terms.tiles():
            value = weighted([kappa for kappa, _ in tile.families], scales)
            if value.shape == out.shape:
                return value
            out[tile.rows, tile.columns] = value
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (P,) = grad_outputs
        sums = _Sums(ctx.terms)
        points = _PointSums(ctx.terms, *ctx.needs_input_grad[:2])
        for tile in ctx.terms.tiles():
            p = P[tile.rows, tile.columns]
            sums.add(tile, p)
            points.add(tile, p)
        return *points.finish(), *sums.finish(), None


class TiledMatvec(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, a, rho, scale, families):
        ctx.terms = _TiledTerms(x, z, rho, scale, families, any(ctx.needs_input_grad))
        out, scales = a.new_zeros(a.shape[0], x.shape[0]), scalars(scale)
        for tile in ctx.terms.tiles():
            part, there = a[:, tile.columns], out[:, tile.rows]
            for (kappa, _), s in zip(tile.families, scales, strict=True):
                _add_product(there, part, kappa.mT, s)
        ctx.save_for_backward(a)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (g,) = grad_outputs
        (a,) = ctx.saved_tensors
        terms, (x_needed, z_needed, *_) = ctx.terms, ctx.needs_input_grad
        # P = ∂ℓ/∂K = gᵀ a has rank c. With c = 1 its factors go to the points and it is never
        # formed; else it is formed on a tile.
        single = len(a) == 1
        points = _PointSums(terms, x_needed, z_needed, *((g[0], a[0]) if single else ()))
        # g κ_k and g (κ′_k ∘ d²): what a then makes of them are Σ P ∘ κ_k and Σ P ∘ κ′_k ∘ d².
        values, moments = a.new_zeros(2, len(terms.families), *a.shape)
        for tile in terms.tiles():
            here = g[:, tile.rows]
            for k, (kappa, slope) in enumerate(tile.families):
                _add_product(values[k, :, tile.columns], here, kappa)
                _add_product(moments[k, :, tile.columns], here, slope * tile.d2)
            points.add(tile, None if single else here.mT @ a[:, tile.columns])
        grad_a = torch.tensordot(terms.scale, values, 1)
        # One number sums millions of terms: in double, whatever the blocks are in.
        grad_scale, moment = ((t.double() * a.double()).sum((1, 2)) for t in (values, moments))
        grad_rho = terms.scale * moment.to(terms.scale)
        return *points.finish(), grad_a, grad_rho, grad_scale.to(terms.scale), None


block, matvec = TiledBlock.apply, TiledMatvec.apply


class _TiledTerms:
    """The points about the centre of z, where |x|² + |z|² − 2 xᵀz cancels least, and the sum."""

    def __init__(
        self, x, z, rho: Tensor, scale: Tensor, families: tuple[str, ...], differentiated: bool
    ):
        self.same = x is z
        centre = z.mean(0) if z.shape[0] else 0.0
        self.z = z - centre
        self.x = self.z if self.same else x - centre
        self.rho, self.scale, self.families = rho, scale, families
        self._store = differentiated and x.shape[0] * z.shape[0] <= STORED_ELEMENTS
        self._stored: list[Tile] = []

    def tiles(self) -> Iterator[Tile]:
        if self._stored:
            yield from self._stored
            return
        rho = scalars(self.rho)
        for rows, columns, d2 in self._distances():
            families = [FAMILIES[name](rho[k] * d2) for k, name in enumerate(self.families)]
            tile = Tile(rows, columns, d2, families)
            if self._store:
                self._stored.append(tile)
            yield tile

    def _distances(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Squared distances."""
        x, z = self.x, self.z
        if z.shape[0] == 0:
            return
        # |x|² + |z|² − 2 xᵀz as one product of [x, |x|², 1] and [−2z, 1, |z|²].
        left, right = _with_norms(x, 1.0, ones_last=True), _with_norms(z, -2.0, ones_last=False).mT
        device = x.device.type
        width = min(z.shape[0], TILE_COLUMNS.get(device, TILE_COLUMNS["cpu"]))
        budget = TILE_BYTES.get(device, TILE_BYTES["cpu"]) // x.element_size()
        height = max(1, budget // width)
        for j in range(0, z.shape[0], width):
            columns = slice(j, min(j + width, z.shape[0]))
            for i in range(0, x.shape[0], height):
                rows = slice(i, min(i + height, x.shape[0]))
                d2 = (left[rows] @ right[:, columns]).clamp_min_(0.0)
                if self.same:
                    # Rounding would leave a distance between a point and itself.
                    d2.diagonal(i - j).zero_()
                yield rows, columns, d2


class _Sums:
    """∂ℓ/∂s_k = Σ P ∘ κ_k and ∂ℓ/∂ρ_k = s_k Σ P ∘ κ′_k ∘ d² for P = ∂ℓ/∂K given as a matrix."""

    def __init__(self, terms: _TiledTerms):
        self.terms = terms
        # One number sums millions of terms: in double, whatever the blocks are in.
        self.sums: list[list[Scalar]] = [[0.0] * len(terms.families), [0.0] * len(terms.families)]

    def add(self, tile: Tile, p: Tensor) -> None:
        p = p.reshape(-1)
        for k, (kappa, slope) in enumerate(tile.families):
            for total, part in zip(self.sums, (kappa, slope * tile.d2), strict=True):
                found = torch.dot(p, part.reshape(-1))
                total[k] = total[k] + (found.double() if found.is_cuda else found.item())

    def finish(self) -> tuple[Tensor, Tensor]:
        """The gradients of ρ and s."""
        values, moments = (_as_tensor(parts, self.terms.scale) for parts in self.sums)
        return self.terms.scale * moments, values


class _PointSums:
    """Sums, tile by tile, what P = ∂ℓ/∂K gives for x and z, with W = Σ_k s_k ρ_k κ′_k:

    ∂ℓ/∂x_i = 2 Σ_j Q_ij (x_i − z_j) with Q = P ∘ W, likewise z. P is given on each tile, or is
    g aᵀ for all of them.
    """

    def __init__(
        self,
        terms: _TiledTerms,
        x_needed: bool,
        z_needed: bool,
        g: Tensor | None = None,
        a: Tensor | None = None,
    ):
        self.factors = scalars(terms.scale * terms.rho)
        self.g, self.a = g, a
        # With a column of ones after the points, one product gives Q z and the row sums of Q.
        self.x_one, self.z_one = _with_ones(terms.x), _with_ones(terms.z)
        self.left = self.x_one if g is None else self.x_one * g[:, None]
        self.right = self.z_one if a is None else self.z_one * a[:, None]
        self.q_z = torch.zeros_like(self.x_one) if x_needed else None
        self.q_x = torch.zeros_like(self.z_one) if z_needed else None

    def add(self, tile: Tile, p: Tensor | None) -> None:
        if self.q_z is None and self.q_x is None:
            return
        Q = weighted([slope for _, slope in tile.families], self.factors)
        if p is not None:
            Q.mul_(p)
        if self.q_z is not None:
            _add_product(self.q_z[tile.rows], Q, self.right[tile.columns])
        if self.q_x is not None:
            _add_product(self.q_x[tile.columns], Q.mT, self.left[tile.rows])

    def finish(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of x and z, None for those not needed."""
        pairs = (self.q_z, self.x_one, self.g), (self.q_x, self.z_one, self.a)
        grads = []
        for q, one, weight in pairs:
            if q is None:
                grads.append(None)
                continue
            q = q if weight is None else q * weight[:, None]
            grads.append(2.0 * (q[:, -1:] * one - q)[:, :-1])
        return grads[0], grads[1]


def _add_product(out: Tensor, left: Tensor, right: Tensor, factor: Scalar = 1.0) -> None:
    if isinstance(factor, Tensor):
        out.add_(factor * (left @ right))
    else:
        out.addmm_(left, right, alpha=factor)


def weighted(parts: list[Tensor], factors: list[Scalar]) -> Tensor:
    """Σ_k factor_k part_k."""
    total = parts[0] * factors[0]
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        if isinstance(factor, Tensor):
            total.addcmul_(part, factor)
        else:
            total.add_(part, alpha=factor)
    return total


def scalars(values: Tensor) -> list[Scalar]:
    return values.tolist() if values.device.type == "cpu" else list(values.unbind())


def _as_tensor(values: list, like: Tensor) -> Tensor:
    on_device = any(isinstance(value, Tensor) for value in values)
    return torch.stack(values).to(like) if on_device else like.new_tensor(values)


def _with_ones(points: Tensor) -> Tensor:
    return torch.nn.functional.pad(points, (0, 1), value=1.0)


def _with_norms(points: Tensor, factor: float, ones_last: bool) -> Tensor:
    norms = points.square().sum(1, keepdim=True)
    ones = torch.ones_like(norms)
    return torch.cat([factor * points, *((norms, ones) if ones_last else (ones, norms))], 1)
