"""Many small blocks of a radial sum at once, as for the rows near each of many points."""

import torch
from torch.autograd.function import once_differentiable

from orthogp.kernel.radial.tiled import FAMILIES, scalars, weighted


class BatchedBlock(torch.autograd.Function):
    """K_xz of every pair of tables of a batch, x `[m, n, d]` and z `[m, l, d]`."""

    @staticmethod
    def forward(ctx, x, z, rho, scale, families):
        # Then the gradient of x is that of both.
        same = ctx.same = x is z
        # |x|² + |z|² − 2 xᵀz cancels least about a point between them.
        centre = z.mean(-2, keepdim=True)
        z = z - centre
        x = z if same else x - centre
        d2 = x.square().sum(-1, keepdim=True) + z.square().sum(-1).unsqueeze(-2)
        d2 = d2.baddbmm_(x, z.mT, alpha=-2.0).clamp_min_(0.0)
        if same:
            # Rounding would leave a distance between a point and itself.
            d2.diagonal(dim1=-2, dim2=-1).zero_()
        parts = [FAMILIES[f](r * d2) for f, r in zip(families, scalars(rho), strict=True)]
        if any(ctx.needs_input_grad):
            values, slopes = zip(*parts, strict=True)
            ctx.save_for_backward(x, z, rho, scale, d2, *values, *slopes)
        return weighted([value for value, _ in parts], scalars(scale))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (P,) = grad_outputs
        x, z, rho, scale, d2, *parts = ctx.saved_tensors
        values, slopes = parts[: len(rho)], parts[len(rho) :]
        grad_scale = torch.stack([torch.sum(P * value) for value in values])
        grad_x = grad_z = grad_rho = None
        if ctx.needs_input_grad[2]:
            grad_rho = scale * torch.stack([torch.sum(P * slope * d2) for slope in slopes])
        if any(ctx.needs_input_grad[:2]):
            # ∂ℓ/∂x_i = 2 Σ_j Q_ij (x_i − z_j) with Q = P ∘ Σ_k s_k ρ_k κ′_k, likewise z.
            Q = weighted(list(slopes), scalars(2.0 * scale * rho)).mul_(P)
            if ctx.same:
                Q = Q + Q.mT
            else:
                grad_z = Q.sum(-2).unsqueeze(-1) * z - Q.mT @ x
            grad_x = Q.sum(-1, keepdim=True) * x - Q @ z
        return grad_x, grad_z, grad_rho, grad_scale, None


batched_block = BatchedBlock.apply
