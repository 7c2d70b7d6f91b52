"""The radial sums as torch operations on tiles that stay in cache.

What the backward pass needs of a tile is kept while the whole block is small and computed again
when it is not: for K a the memory is that of x, z and a, whatever their lengths.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Elements of a tile. On a CPU 2¹⁷ float32 numbers and their temporaries fit the second-level
# cache; on a GPU a tile must fill the chip.
TILE_ELEMENTS = {"cpu": 2**17, "cuda": 2**24}
TILE_COLUMNS = {"cpu": 2**12, "cuda": 2**16}
# A block of at most this many elements keeps its tiles for the backward pass.
KEPT_ELEMENTS = 2**22

# ρ and s are numbers on a CPU, where they are cheaper, and tensors where reading them would wait.
Scalar = float | Tensor

# Each family: (d², ρ) ↦ (κ(q), σ(q), ζ) at q = ρ d², with κ′ = ζ σ. σ may be κ itself.


def _rbf(d2: Tensor, rho: Scalar) -> tuple[Tensor, Tensor, float]:
    value = (d2 * (-0.5 * rho)).exp_()
    return value, value, -0.5


def _matern12(d2: Tensor, rho: Scalar) -> tuple[Tensor, Tensor, float]:
    r = (d2 * rho).sqrt_()
    value = torch.neg(r).exp_()
    # κ′ = −e^{−r} / 2r is infinite at r = 0, where x − z = 0 multiplies it: that product is 0.
    return value, torch.where(r > 0, value / r, 0.0), -0.5


def _matern32(d2: Tensor, rho: Scalar) -> tuple[Tensor, Tensor, float]:
    r = (d2 * (3.0 * rho)).sqrt_()
    decay = torch.neg(r).exp_()
    return r.add_(1.0).mul_(decay), decay, -1.5


def _matern52(d2: Tensor, rho: Scalar) -> tuple[Tensor, Tensor, float]:
    r2 = d2 * (5.0 * rho)
    r = r2.sqrt()
    decay = torch.neg(r).exp_()
    linear = r.add_(1.0).mul_(decay)
    quadratic = r2.mul_(decay)
    return torch.add(linear, quadratic, alpha=1.0 / 3.0, out=quadratic), linear, -5.0 / 6.0


FAMILIES: dict[str, Callable[[Tensor, Scalar], tuple[Tensor, Tensor, float]]] = {
    "rbf": _rbf,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
}


@dataclass(frozen=True)
class Tile:
    """A rectangle of the block: d², and (κ_k, σ_k, ζ_k) of each family there."""

    rows: slice
    columns: slice
    d2: Tensor
    families: list[tuple[Tensor, Tensor, float]]


class Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, rho, scale, families):
        ctx.terms = _Terms(x, z, rho, scale, families, any(ctx.needs_input_grad))
        out = x.new_empty(x.shape[0], z.shape[0])
        scales = _scalars(scale)
        for tile in ctx.terms.tiles():
            out[tile.rows, tile.columns] = _weighted(
                [kappa for kappa, _, _ in tile.families], scales
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        x_needed, z_needed, *hyper_needed, _ = ctx.needs_input_grad
        sink = _Gradients(ctx.terms, x_needed, z_needed, any(hyper_needed))
        for tile in ctx.terms.tiles():
            p = grad[tile.rows, tile.columns]
            for k, (kappa, _, _) in enumerate(tile.families):
                sink.values[k] += torch.dot(p.reshape(-1), kappa.reshape(-1))
            sink.add(tile, _Dense(p))
        return *sink.finish(), None


class Matvec(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, a, rho, scale, families):
        ctx.terms = _Terms(x, z, rho, scale, families, any(ctx.needs_input_grad))
        out = a.new_zeros(a.shape[0], x.shape[0])
        scales = _scalars(scale)
        for tile in ctx.terms.tiles():
            for (kappa, _, _), s in zip(tile.families, scales, strict=True):
                out[:, tile.rows] += s * (a[:, tile.columns] @ kappa.mT)
        ctx.save_for_backward(a)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        (a,) = ctx.saved_tensors
        x_needed, z_needed, _, *hyper_needed, _ = ctx.needs_input_grad
        sink = _Gradients(ctx.terms, x_needed, z_needed, any(hyper_needed))
        grad_a, scales = torch.zeros_like(a), _scalars(ctx.terms.scale)
        for tile in ctx.terms.tiles():
            g, part = grad[:, tile.rows], a[:, tile.columns]
            for k, (kappa, _, _) in enumerate(tile.families):
                product = g @ kappa
                grad_a[:, tile.columns] += scales[k] * product
                sink.values[k] += torch.dot(product.reshape(-1), part.reshape(-1))
            # ∂ℓ/∂K = gᵀ a has rank c: with c = 1 it is never formed, else on the tile alone.
            sink.add(tile, _RankOne(g[0], part[0]) if len(a) == 1 else _Dense(g.mT @ part))
        grad_x, grad_z, grad_rho, grad_scale = sink.finish()
        return grad_x, grad_z, grad_a, grad_rho, grad_scale, None


class _Terms:
    """The points about the centre of z, where |x|² + |z|² − 2 xᵀz cancels least, and the sum."""

    def __init__(self, x, z, rho: Tensor, scale: Tensor, families: tuple[str, ...], again: bool):
        self.same = x is z
        centre = z.mean(0) if z.shape[0] else 0.0
        self.z = z - centre
        self.x = self.z if self.same else x - centre
        self.rho, self.scale, self.families = rho, scale, families
        # With `again` the tiles of a small block are kept for a second pass.
        self._keep = again and x.shape[0] * z.shape[0] <= KEPT_ELEMENTS
        self._kept: list[Tile] = []

    def tiles(self) -> Iterator[Tile]:
        if self._kept:
            yield from self._kept
            return
        rho = _scalars(self.rho)
        for rows, columns, d2 in self._distances():
            families = [FAMILIES[name](d2, rho[k]) for k, name in enumerate(self.families)]
            tile = Tile(rows, columns, d2, families)
            if self._keep:
                self._kept.append(tile)
            yield tile

    def _distances(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Squared distances."""
        x, z = self.x, self.z
        if z.shape[0] == 0:
            return
        x_norm, z_norm = x.square().sum(1, keepdim=True), z.square().sum(1)
        # |x|² + |z|² − 2 xᵀz as one product of [x, |x|², 1] and [−2z, 1, |z|²].
        left = torch.cat([x, x_norm, torch.ones_like(x_norm)], 1)
        right = torch.stack([*(-2.0 * z.mT), torch.ones_like(z_norm), z_norm])
        device = x.device.type
        width = min(z.shape[0], TILE_COLUMNS.get(device, TILE_COLUMNS["cpu"]))
        height = max(1, TILE_ELEMENTS.get(device, TILE_ELEMENTS["cpu"]) // width)
        for j in range(0, z.shape[0], width):
            columns = slice(j, min(j + width, z.shape[0]))
            for i in range(0, x.shape[0], height):
                rows = slice(i, min(i + height, x.shape[0]))
                d2 = (left[rows] @ right[:, columns]).clamp_min_(0.0)
                if self.same:
                    # Rounding would leave a distance between a point and itself.
                    d2.diagonal(i - j).zero_()
                yield rows, columns, d2


class _Dense:
    """P = ∂ℓ/∂K on a tile, and Q = P ∘ W for a slope W."""

    def __init__(self, p: Tensor):
        self.p = p

    def dot(self, part: Tensor) -> Tensor:
        return torch.dot(self.p.reshape(-1), part.reshape(-1))

    def times(self, slope: Tensor, z: Tensor) -> Tensor:
        return (self.p * slope) @ z

    def transposed_times(self, slope: Tensor, x: Tensor) -> Tensor:
        return (self.p * slope).mT @ x


class _RankOne:
    """P = g aᵀ on a tile, never formed."""

    def __init__(self, g: Tensor, a: Tensor):
        self.g, self.a = g, a

    def dot(self, part: Tensor) -> Tensor:
        return torch.dot(self.g @ part, self.a)

    def times(self, slope: Tensor, z: Tensor) -> Tensor:
        return self.g[:, None] * (slope @ (self.a[:, None] * z))

    def transposed_times(self, slope: Tensor, x: Tensor) -> Tensor:
        return self.a[:, None] * (slope.mT @ (self.g[:, None] * x))


class _Gradients:
    """Sums, tile by tile, what P = ∂ℓ/∂K gives for x, z and ρ; those of s come in `values`.

    With W = Σ_k s_k ρ_k κ′_k and Q = P ∘ W:  ∂ℓ/∂x_i = 2 Σ_j Q_ij (x_i − z_j), likewise z,
    ∂ℓ/∂ρ_k = s_k Σ P ∘ κ′_k ∘ d², and ∂ℓ/∂s_k = Σ P ∘ κ_k.
    """

    def __init__(self, terms: _Terms, x_needed: bool, z_needed: bool, hyper_needed: bool):
        self.scale, self.hyper_needed = terms.scale, hyper_needed
        self.slope_scales = _scalars(terms.rho * terms.scale)
        # With a column of ones beside the points, one product gives Q z and the row sums of Q.
        self.x_one, self.z_one = _with_ones(terms.x), _with_ones(terms.z)
        self.q_z = torch.zeros_like(self.x_one) if x_needed else None
        self.q_x = torch.zeros_like(self.z_one) if z_needed else None
        # One scalar sums millions of terms: in double, whatever the blocks are in.
        count, device = len(terms.families), terms.x.device
        self.values = torch.zeros(count, dtype=torch.float64, device=device)
        self.moments = torch.zeros_like(self.values)

    def add(self, tile: Tile, p: _Dense | _RankOne) -> None:
        if self.hyper_needed:
            for k, (_, sigma, zeta) in enumerate(tile.families):
                self.moments[k] += zeta * p.dot(sigma * tile.d2)
        factors = [zeta * f for (*_, zeta), f in zip(tile.families, self.slope_scales, strict=True)]
        slope = _weighted([sigma for _, sigma, _ in tile.families], factors)
        if self.q_z is not None:
            self.q_z[tile.rows] += p.times(slope, self.z_one[tile.columns])
        if self.q_x is not None:
            self.q_x[tile.columns] += p.transposed_times(slope, self.x_one[tile.rows])

    def finish(self) -> tuple[Tensor | None, ...]:
        """The gradients of x, z, ρ and s, None for those not needed."""
        grad_x, grad_z = (
            None if q is None else 2.0 * (q[:, -1:] * one - q)[:, :-1]
            for q, one in ((self.q_z, self.x_one), (self.q_x, self.z_one))
        )
        if not self.hyper_needed:
            return grad_x, grad_z, None, None
        return grad_x, grad_z, self.moments.to(self.scale) * self.scale, self.values.to(self.scale)


def _weighted(parts: list[Tensor], factors: list[Scalar]) -> Tensor:
    """Σ_k factor_k part_k."""
    total = parts[0] * factors[0]
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        if isinstance(factor, Tensor):
            total.addcmul_(part, factor)
        else:
            total.add_(part, alpha=factor)
    return total


def _scalars(values: Tensor) -> list[Scalar]:
    return values.tolist() if values.device.type == "cpu" else list(values.unbind())


def _with_ones(points: Tensor) -> Tensor:
    return torch.cat([points, torch.ones_like(points[:, :1])], 1)
