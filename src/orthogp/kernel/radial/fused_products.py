"""K a of a radial sum on a CUDA device by one Triton kernel, no entry of K in memory; values alone.

A program has some rows of K and a part of its columns, which it goes through tile by tile. Each
place of a tile has a sum over the tiles, in a register; those of a row are added in float64.
"""

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from orthogp.kernel.radial.fused_families import family, family_code

# Each latent evaluates K anew; for more of them one tile of K in memory serves all.
MOST_LATENTS = 2
# Of a tile; and the columns of a part, more where there would be too many parts.
ROWS, COLUMNS, WARPS = 32, 64, 4
PART, MOST_PARTS = 2048, 64


def products(
    x: Tensor, z: Tensor, a: Tensor, inverse: Tensor, scale: Tensor, families: tuple[str, ...]
) -> Tensor:
    """K_xz a_c for every row a_c of a.

    x and z are `[k, n, d]` and `[k, m, d]`, over the lengthscales of each summand, or `[1, n, d]`
    and `[1, m, d]` as they are, with inverse lengthscales `[k, 1]`.
    """
    (_, rows, dims), columns = x.shape, z.shape[1]
    if rows * columns == 0:
        return a.new_zeros(len(a), rows)
    part = max(PART, triton.cdiv(triton.cdiv(columns, MOST_PARTS), COLUMNS) * COLUMNS)
    parts = triton.cdiv(columns, part)
    out = x.new_empty(parts, len(a), rows, dtype=torch.float64)
    # Triton launches on the current device, which need not be that of the points.
    with torch.cuda.device(x.device):
        _products[(triton.cdiv(rows, ROWS), parts, len(a))](  # pyright: ignore[reportIndexIssue]
            x.contiguous(), z.contiguous(), inverse, scale, a.contiguous(), out,
            rows, columns, dims, part,
            FAMILIES=family_code(families), COUNT=len(families), OWN=inverse.shape[1] > 1,
            ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
        )  # fmt: skip
    return out.sum(0).to(a.dtype)


@triton.jit
def _products(
    x_ptr, z_ptr, inverse_ptr, scale_ptr, a_ptr, out_ptr, rows, columns, dims, part,
    FAMILIES: tl.constexpr, COUNT: tl.constexpr, OWN: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * part
    latent = tl.program_id(2)
    i_inside = i < rows
    total = tl.zeros((ROWS, COLUMNS), dtype=x_ptr.dtype.element_ty)
    for start in range(first, tl.minimum(first + part, columns), COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        j_inside = j < columns
        K = tl.zeros_like(total)
        d2 = tl.zeros_like(total)
        for k in tl.static_range(COUNT):
            if OWN or k == 0:
                x_own, z_own = x_ptr, z_ptr
                if OWN:
                    x_own += k * rows * dims
                    z_own += k * columns * dims
                d2 = tl.zeros_like(total)
                for d in range(dims):
                    x = tl.load(x_own + i * dims + d, mask=i_inside, other=0.0)
                    z = tl.load(z_own + j * dims + d, mask=j_inside, other=0.0)
                    difference = x[:, None] - z[None, :]
                    d2 += difference * difference
            q = d2
            if not OWN:
                inverse = tl.load(inverse_ptr + k)
                q = inverse * inverse * d2
            value, _ = family(q, (FAMILIES // 4**k) % 4)
            K += tl.load(scale_ptr + k) * value
        # Columns beyond the last have a = 0.
        a = tl.load(a_ptr + latent * columns + j, mask=j_inside, other=0.0)
        total += K * a[None, :]
    place = (tl.program_id(1) * tl.num_programs(2) + latent).to(tl.int64) * rows
    tl.store(out_ptr + place + i, tl.sum(total.to(tl.float64), 1), mask=i_inside)
