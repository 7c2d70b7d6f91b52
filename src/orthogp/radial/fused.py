"""The radial sums on a CUDA device: one Triton kernel does the elementwise work of a tile.

A tile of K, or of K and Q = ∂ℓ/∂K ∘ W, is written once and read by matrix products while it is
still in the device's cache; of K a no more than a tile is ever held. Distances are sums of squared
differences: nothing cancels, and no product runs in TF32.
"""

from collections.abc import Iterator

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.autograd.function import once_differentiable

FAMILY_CODES = {"rbf": 0, "matern12": 1, "matern32": 2, "matern52": 3}
# K and Q of a float32 tile together fit the second-level cache of a large device.
TILE_ELEMENTS = 2**22
CENTRE_ROWS = 512
# Of the rectangle that one program computes.
ROWS, COLUMNS = 32, 64


class Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, rho, scale, families):
        x, z = x.contiguous(), z.contiguous()
        ctx.save_for_backward(x, z, rho, scale)
        ctx.families = families
        K = x.new_empty(x.shape[0], z.shape[0])
        _launch(x, z, rho, scale, families, K=K)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (grad,) = grad_outputs
        x, z, rho, scale = ctx.saved_tensors
        x_needed, z_needed, *_ = ctx.needs_input_grad
        P = grad.contiguous()
        Q = torch.empty_like(P)
        sums = _launch(x, z, rho, scale, ctx.families, Q=Q, P=P)
        x_one, z_one = _centred(x, z)
        grad_x = _points_gradient(x_one, Q @ z_one) if x_needed else None
        grad_z = _points_gradient(z_one, Q.mT @ x_one) if z_needed else None
        return grad_x, grad_z, *_hyper_gradients(sums, scale), None


class Matvec(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, a, rho, scale, families):
        x, z = x.contiguous(), z.contiguous()
        ctx.save_for_backward(x, z, a, rho, scale)
        ctx.families = families
        out = None
        for columns in _chunks(x, z):
            K = x.new_empty(x.shape[0], columns.stop - columns.start)
            _launch(x, z[columns], rho, scale, families, K=K)
            product = a[:, columns] @ K.mT
            out = product if out is None else out + product
        return a.new_zeros(a.shape[0], x.shape[0]) if out is None else out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        g = grad_outputs[0].contiguous()
        x, z, a, rho, scale = ctx.saved_tensors
        x_needed, z_needed, *_ = ctx.needs_input_grad
        x_one, z_one = _centred(x, z)
        grad_a, q_x, q_z = torch.empty_like(a), torch.empty_like(z_one), []
        sums = []
        for columns in _chunks(x, z):
            K, Q = x.new_empty(2, x.shape[0], columns.stop - columns.start)
            # ∂ℓ/∂K = gᵀ a has rank c: it is formed in the kernel's registers only.
            part = a[:, columns].contiguous()
            sums.append(_launch(x, z[columns], rho, scale, ctx.families, K=K, Q=Q, g=g, a=part))
            torch.mm(g, K, out=grad_a[:, columns])
            if z_needed:
                torch.mm(Q.mT, x_one, out=q_x[columns])
            if x_needed:
                q_z.append(Q @ z_one[columns])
        grad_x = _points_gradient(x_one, _sum(q_z, x_one)) if x_needed else None
        grad_z = _points_gradient(z_one, q_x) if z_needed else None
        total = _sum(sums, torch.empty(2, len(scale), dtype=torch.float64, device=x.device))
        return grad_x, grad_z, grad_a, *_hyper_gradients(total, scale), None


def _centred(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets about a centre of z, where the points' gradients cancel least, beside ones."""
    # Of the first rows: a mean over the columns of a tall matrix occupies one processor alone.
    centre = z[:CENTRE_ROWS].mean(0) if z.shape[0] else z.new_zeros(z.shape[1])
    one = torch.nn.functional.pad
    return one(x - centre, (0, 1), value=1.0), one(z - centre, (0, 1), value=1.0)


def _sum(parts: list[Tensor], like: Tensor) -> Tensor:
    if len(parts) < 2:
        return parts[0] if parts else torch.zeros_like(like)
    return torch.stack(parts).sum(0)


def _chunks(x: Tensor, z: Tensor) -> Iterator[slice]:
    width = max(COLUMNS, TILE_ELEMENTS // max(1, x.shape[0]))
    if x.shape[0]:
        for j in range(0, z.shape[0], width):
            yield slice(j, min(j + width, z.shape[0]))


def _points_gradient(x_one: Tensor, products: Tensor) -> Tensor:
    """2 Σ_j Q_ij (x_i − z_j) from [x, 1] and Q [z, 1]."""
    return 2.0 * (products[:, -1:] * x_one - products)[:, :-1]


def _hyper_gradients(sums: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """∂ℓ/∂ρ_k = s_k Σ P ∘ κ′_k ∘ d² and ∂ℓ/∂s_k = Σ P ∘ κ_k."""
    values, moments = sums.to(scale.dtype)
    return moments * scale, values


def _launch(
    x: Tensor,
    z: Tensor,
    rho: Tensor,
    scale: Tensor,
    families: tuple[str, ...],
    K: Tensor | None = None,
    Q: Tensor | None = None,
    P: Tensor | None = None,
    g: Tensor | None = None,
    a: Tensor | None = None,
) -> Tensor:
    """Fills K and Q; with Q, whose P is given or is gᵀ a, returns Σ P ∘ κ_k and Σ P ∘ κ′_k ∘ d²."""
    rows, columns = x.shape[0], z.shape[0]
    if rows * columns == 0:
        return scale.new_zeros(2, len(families), dtype=torch.float64)
    programs = triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS)
    count = len(families)
    sums = torch.empty(2 * count, programs, dtype=torch.float64, device=x.device)
    code = sum(FAMILY_CODES[name] * 4**k for k, name in enumerate(families))
    _tile[(programs,)](  # pyright: ignore[reportIndexIssue]
        x, z, rho, scale, K, Q, P, g, a, sums, rows, columns, x.shape[1],
        0 if g is None else len(g),
        FAMILIES=code, COUNT=count, WITH_K=K is not None, WITH_Q=Q is not None,
        DENSE=P is not None, ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return sums.sum(1).view(2, count) if Q is not None else sums


@triton.jit
def _family(q, FAMILY: tl.constexpr):
    """κ(q) and κ′(q)."""
    if FAMILY == 0:
        value = tl.exp(-0.5 * q)
        slope = -0.5 * value
    elif FAMILY == 1:
        r = tl.sqrt(q)
        value = tl.exp(-r)
        # Infinite at r = 0, where x − z = 0 multiplies it: that product is 0.
        slope = tl.where(r > 0, -0.5 * value / r, 0.0)
    elif FAMILY == 2:
        r = tl.sqrt(3.0 * q)
        decay = tl.exp(-r)
        value = (1.0 + r) * decay
        slope = -1.5 * decay
    else:
        r = tl.sqrt(5.0 * q)
        decay = tl.exp(-r)
        linear = (1.0 + r) * decay
        value = linear + (5.0 / 3.0) * q * decay
        slope = (-5.0 / 6.0) * linear
    return value, slope


@triton.jit
def _tile(
    x_ptr, z_ptr, rho_ptr, scale_ptr, K_ptr, Q_ptr, P_ptr, g_ptr, a_ptr, sums_ptr,
    rows, columns, dims, latents,
    FAMILIES: tl.constexpr, COUNT: tl.constexpr, WITH_K: tl.constexpr, WITH_Q: tl.constexpr,
    DENSE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    across = tl.cdiv(columns, COLUMNS)
    i = program // across * ROWS + tl.arange(0, ROWS)
    j = program % across * COLUMNS + tl.arange(0, COLUMNS)
    i_inside, j_inside = i < rows, j < columns
    d2 = tl.zeros((ROWS, COLUMNS), dtype=x_ptr.dtype.element_ty)
    for d in range(dims):
        x = tl.load(x_ptr + i * dims + d, mask=i_inside, other=0.0)
        z = tl.load(z_ptr + j * dims + d, mask=j_inside, other=0.0)
        difference = x[:, None] - z[None, :]
        d2 += difference * difference
    place = i[:, None].to(tl.int64) * columns + j[None, :]
    inside = i_inside[:, None] & j_inside[None, :]
    P = tl.zeros_like(d2)
    if WITH_Q:
        if DENSE:
            P = tl.load(P_ptr + place, mask=inside, other=0.0)
        else:
            for c in range(latents):
                g = tl.load(g_ptr + c * rows + i, mask=i_inside, other=0.0)
                a = tl.load(a_ptr + c * columns + j, mask=j_inside, other=0.0)
                P += g[:, None] * a[None, :]
    K = tl.zeros_like(d2)
    W = tl.zeros_like(d2)
    for k in tl.static_range(COUNT):
        rho = tl.load(rho_ptr + k)
        scale = tl.load(scale_ptr + k)
        value, slope = _family(rho * d2, (FAMILIES // 4**k) % 4)
        K += scale * value
        if WITH_Q:
            W += scale * rho * slope
            programs = tl.num_programs(0)
            slot = sums_ptr + program
            # Rows and columns beyond the edge have P = 0.
            tl.store(slot + k * programs, tl.sum(P * value).to(tl.float64))
            moment = tl.sum(P * slope * d2).to(tl.float64)
            tl.store(slot + (COUNT + k) * programs, moment)
    if WITH_K:
        tl.store(K_ptr + place, K, mask=inside)
    if WITH_Q:
        tl.store(Q_ptr + place, P * W, mask=inside)
