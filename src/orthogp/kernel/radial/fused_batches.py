"""Many small blocks of a radial sum on a CUDA device, by one Triton kernel; values alone."""

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from orthogp.kernel.radial.fused_families import family, family_code

# Of the rectangle that one program computes; a narrow block has a narrower one.
ROWS, COLUMNS, FEWEST_COLUMNS = 32, 64, 16


def batched_values(
    x: Tensor, z: Tensor, inverse: Tensor, scale: Tensor, families: tuple[str, ...]
) -> Tensor:
    """K_xz of every pair of tables, x `[m, n, d]` and z `[m, l, d]`, as `[m, n, l]`.

    `inverse` are the inverse lengthscales, `[k, d]` or `[k, 1]`, and `scale` is `[k]`.
    """
    (count, rows, dims), columns = x.shape, z.shape[1]
    K = x.new_empty(count, rows, columns)
    if K.numel() == 0:
        return K
    wide = COLUMNS if columns > FEWEST_COLUMNS else FEWEST_COLUMNS
    tiles = triton.cdiv(rows, ROWS) * triton.cdiv(columns, wide)
    # Triton launches on the current device, which need not be that of the points.
    with torch.cuda.device(x.device):
        _tables[(count * tiles,)](  # pyright: ignore[reportIndexIssue]
            x.contiguous(), z.contiguous(), inverse.expand(-1, dims).contiguous(),
            scale.contiguous(), K, rows, columns, dims, tiles,
            FAMILIES=family_code(families), COUNT=len(families), ROWS=ROWS, COLUMNS=wide,
        )  # fmt: skip
    return K


@triton.jit
def _tables(
    x_ptr, z_ptr, inverse_ptr, scale_ptr, K_ptr, rows, columns, dims, tiles,
    FAMILIES: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    table = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    across = tl.cdiv(columns, COLUMNS)
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    i_inside, j_inside = i < rows, j < columns
    x_own, z_own = x_ptr + table * rows * dims, z_ptr + table * columns * dims
    K = tl.zeros((ROWS, COLUMNS), dtype=x_ptr.dtype.element_ty)
    for k in tl.static_range(COUNT):
        q = tl.zeros_like(K)
        for d in range(dims):
            x = tl.load(x_own + i * dims + d, mask=i_inside, other=0.0)
            z = tl.load(z_own + j * dims + d, mask=j_inside, other=0.0)
            inverse = tl.load(inverse_ptr + k * dims + d)
            difference = (x[:, None] - z[None, :]) * inverse
            q += difference * difference
        value, _ = family(q, (FAMILIES // 4**k) % 4)
        K += tl.load(scale_ptr + k) * value
    place = table * rows * columns + i[:, None] * columns + j[None, :]
    tl.store(K_ptr + place, K, mask=i_inside[:, None] & j_inside[None, :])
