"""Sums of radial kernels, k(x, z) = Σ_k s_k κ_k(ρ_k |x − z|²), with derivatives written out.

A covariance block is elementwise work on one distance matrix, so both functions here walk over
tiles that stay in cache, never keep more than a tile, and compute the tile again in the backward
pass: for K a the memory is that of x, z and a, whatever their lengths.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

# Elements of a tile. On a CPU 2¹⁷ float32 numbers and their temporaries fit the second-level
# cache; on a GPU a tile must fill the chip.
TILE_ELEMENTS = {"cpu": 2**17, "cuda": 2**24}
TILE_COLUMNS = {"cpu": 2**12, "cuda": 2**16}


# Each family: q = ρ d² ↦ κ(q), and q ↦ (κ(q), κ′(q)). Both may overwrite q.


def _rbf(q: Tensor) -> Tensor:
    return q.mul_(-0.5).exp_()


def _rbf_slope(q: Tensor) -> tuple[Tensor, Tensor]:
    value = _rbf(q)
    return value, value * -0.5


def _matern12(q: Tensor) -> Tensor:
    return q.sqrt_().neg_().exp_()


def _matern12_slope(q: Tensor) -> tuple[Tensor, Tensor]:
    r = q.sqrt_()
    value = torch.exp(-r)
    # κ′ = −e^{−r} / 2r is infinite at r = 0, where x − z = 0 multiplies it: that product is 0.
    slope = torch.where(r > 0, value * -0.5 / r, 0.0)
    return value, slope


def _matern32(q: Tensor) -> Tensor:
    r = q.mul_(3.0).sqrt_()
    linear = r + 1.0
    return r.neg_().exp_().mul_(linear)


def _matern32_slope(q: Tensor) -> tuple[Tensor, Tensor]:
    r = q.mul_(3.0).sqrt_()
    decay = torch.exp(-r)
    return r.add_(1.0).mul_(decay), decay.mul_(-1.5)


def _matern52(q: Tensor) -> Tensor:
    r = q.mul_(5.0).sqrt_()
    polynomial = torch.addcmul(r + 1.0, r, r, value=1.0 / 3.0)
    return r.neg_().exp_().mul_(polynomial)


def _matern52_slope(q: Tensor) -> tuple[Tensor, Tensor]:
    r = q.mul_(5.0).sqrt_()
    decay = torch.exp(-r)
    linear = (r + 1.0).mul_(decay)
    value = torch.addcmul(linear, r.mul_(r), decay, value=1.0 / 3.0)
    return value, linear.mul_(-5.0 / 6.0)


@dataclass(frozen=True)
class Family:
    value: Callable[[Tensor], Tensor]
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]]


FAMILIES = {
    "rbf": Family(_rbf, _rbf_slope),
    "matern12": Family(_matern12, _matern12_slope),
    "matern32": Family(_matern32, _matern32_slope),
    "matern52": Family(_matern52, _matern52_slope),
}


def block(
    x: Float[Tensor, "n d"],
    z: Float[Tensor, "m d"],
    rho: Float[Tensor, " k"],
    scale: Float[Tensor, " k"],
    families: tuple[str, ...],
) -> Float[Tensor, "n m"]:
    """K_xz, O(n m (d + k)) operations; the backward pass keeps no n × m matrix of its own."""
    x, z, same = _centred(x, z)
    return _Block.apply(x, z, rho, scale, families, same)  # pyright: ignore[reportReturnType]


def matvec(
    x: Float[Tensor, "n d"],
    z: Float[Tensor, "m d"],
    a: Float[Tensor, "c m"],
    rho: Float[Tensor, " k"],
    scale: Float[Tensor, " k"],
    families: tuple[str, ...],
) -> Float[Tensor, "c n"]:
    """(K_xz a_c)_c for every row a_c of a, without ever holding K_xz."""
    x, z, same = _centred(x, z)
    return _Matvec.apply(x, z, a, rho, scale, families, same)  # pyright: ignore[reportReturnType]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, rho, scale, families, same):
        ctx.save_for_backward(x, z, rho, scale)
        ctx.families, ctx.same = families, same
        out = x.new_empty(x.shape[0], z.shape[0])
        rho, scale = _scalars(rho), _scalars(scale)
        for rows, columns, d2 in _distance_tiles(x, z, same):
            out[rows, columns] = _value(d2, rho, scale, families)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        x, z, rho, scale = ctx.saved_tensors
        sink = _Gradients(x, z, rho, scale, ctx.families)
        for rows, columns, d2 in _distance_tiles(x, z, ctx.same):
            sink.add(rows, columns, d2, grad[rows, columns])
        return *sink.finish(ctx.needs_input_grad), None, None


class _Matvec(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, a, rho, scale, families, same):
        ctx.save_for_backward(x, z, a, rho, scale)
        ctx.families, ctx.same = families, same
        out = a.new_zeros(a.shape[0], x.shape[0])
        rho, scale = _scalars(rho), _scalars(scale)
        for rows, columns, d2 in _distance_tiles(x, z, same):
            out[:, rows] += a[:, columns] @ _value(d2, rho, scale, families).mT
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        x, z, a, rho, scale = ctx.saved_tensors
        sink = _Gradients(x, z, rho, scale, ctx.families)
        grad_a = torch.zeros_like(a)
        for rows, columns, d2 in _distance_tiles(x, z, ctx.same):
            # ∂ℓ/∂K = gᵀ a has rank c: formed on the tile, used there, dropped.
            value = sink.add(rows, columns, d2, grad[:, rows].mT @ a[:, columns])
            grad_a[:, columns] += grad[:, rows] @ value
        x_needed, z_needed, _, rho_needed, scale_needed, *_ = ctx.needs_input_grad
        grad_x, grad_z, grad_rho, grad_scale = sink.finish(
            (x_needed, z_needed, rho_needed, scale_needed)
        )
        return grad_x, grad_z, grad_a, grad_rho, grad_scale, None, None


class _Gradients:
    """Sums, tile by tile, what ∂ℓ/∂K gives for x, z, ρ and s.

    With P = ∂ℓ/∂K and Q = P ∘ Σ_k s_k ρ_k κ′_k:  ∂ℓ/∂x_i = 2 Σ_j Q_ij (x_i − z_j), likewise z,
    ∂ℓ/∂s_k = Σ P ∘ κ_k and ∂ℓ/∂ρ_k = s_k Σ P ∘ κ′_k ∘ d².
    """

    def __init__(self, x: Tensor, z: Tensor, rho: Tensor, scale: Tensor, families: tuple[str, ...]):
        self.scale, self.families = scale, families
        self.rho, self.scales, self.slopes = map(_scalars, (rho, scale, scale * rho))
        # With a column of ones beside the points, one product gives Q z and the row sums of Q.
        self.x_one, self.z_one = (torch.cat([t, torch.ones_like(t[:, :1])], 1) for t in (x, z))
        self.q_z, self.q_x = torch.zeros_like(self.x_one), torch.zeros_like(self.z_one)
        # One scalar sums millions of terms: in double, whatever the blocks are in.
        self.values = [torch.zeros((), dtype=torch.float64, device=x.device) for _ in families]
        self.moments = [torch.zeros((), dtype=torch.float64, device=x.device) for _ in families]

    def add(self, rows: slice, columns: slice, d2: Tensor, p: Tensor) -> Tensor:
        """Adds one tile and returns K there."""
        total = q = None
        p_d2 = p * d2
        for k, name in enumerate(self.families):
            value, slope = FAMILIES[name].value_and_slope(d2 * self.rho[k])
            self.values[k] += _dot(p, value)
            self.moments[k] += _dot(p_d2, slope)
            total = _plus(total, value.mul_(self.scales[k]))
            q = _plus(q, slope.mul_(self.slopes[k]))
        assert total is not None
        assert q is not None
        q.mul_(p)
        self.q_z[rows] += q @ self.z_one[columns]
        self.q_x[columns] += q.mT @ self.x_one[rows]
        return total

    def finish(self, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        grad_x = 2.0 * (self.q_z[:, -1:] * self.x_one - self.q_z)[:, :-1]
        grad_z = 2.0 * (self.q_x[:, -1:] * self.z_one - self.q_x)[:, :-1]
        grad_rho = torch.stack(self.moments).to(self.scale) * self.scale
        found = grad_x, grad_z, grad_rho, torch.stack(self.values).to(self.scale)
        return tuple(g if wanted else None for g, wanted in zip(found, needed, strict=False))


def _value(d2: Tensor, rho: list, scale: list, families: tuple[str, ...]) -> Tensor:
    total = None
    for k, name in enumerate(families):
        total = _plus(total, FAMILIES[name].value(d2 * rho[k]).mul_(scale[k]))
    assert total is not None
    return total


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.add_(part)


def _scalars(values: Tensor) -> list:
    """One factor each: numbers on a CPU, where they are cheaper; tensors elsewhere."""
    return values.tolist() if values.device.type == "cpu" else list(values.unbind())


def _centred(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Both sets about the centre of z, where |x|² + |z|² − 2 xᵀz cancels least."""
    same = x is z
    centre = z.detach().mean(0) if z.shape[0] else z.new_zeros(z.shape[1])
    x = x - centre
    return x, x if same else z - centre, same


def _distance_tiles(x: Tensor, z: Tensor, same: bool) -> Iterator[tuple[slice, slice, Tensor]]:
    """Squared distances, tile by tile."""
    if z.shape[0] == 0:
        return
    x_norm, z_norm = x.square().sum(1, keepdim=True), z.square().sum(1)
    z_columns = z.mT.contiguous()
    width = min(z.shape[0], TILE_COLUMNS.get(x.device.type, TILE_COLUMNS["cpu"]))
    height = max(1, TILE_ELEMENTS.get(x.device.type, TILE_ELEMENTS["cpu"]) // width)
    for j in range(0, z.shape[0], width):
        columns = slice(j, min(j + width, z.shape[0]))
        for i in range(0, x.shape[0], height):
            rows = slice(i, min(i + height, x.shape[0]))
            d2 = torch.addmm(z_norm[columns], x[rows], z_columns[:, columns], alpha=-2.0)
            d2.add_(x_norm[rows]).clamp_min_(0.0)
            if same:
                # Rounding would leave a distance between a point and itself.
                d2.diagonal(i - j).zero_()
            yield rows, columns, d2


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))
