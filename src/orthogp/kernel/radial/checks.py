"""What the radial sums take: everything that follows hands on addresses or broadcasts."""

from torch import Tensor

from orthogp.errors import DataError


def check_points(x: Tensor, z: Tensor, a: Tensor | None = None, width: int | None = None) -> None:
    """Refuses points and weights of which K_xz or K_xz a would not be what it says.

    x is `[n, d]`, z `[m, d]` and a `[c, m]`, of one floating dtype and on one device; d is `width`
    where the kernel has a lengthscale for each input.
    """
    x_shape, z_shape, dtype, device = x.shape, z.shape, x.dtype, x.device
    if len(x_shape) != 2 or len(z_shape) != 2 or x_shape[1] != z_shape[1]:
        raise DataError(
            f"x has shape {tuple(x_shape)} and z has shape {tuple(z_shape)}; expected two tables "
            "with the same number of columns"
        )
    if width is not None and x_shape[1] != width:
        raise DataError(
            f"the points have {x_shape[1]} columns, and the kernel has lengthscales for {width}; "
            "pass as many columns as there are lengthscales"
        )
    if z.dtype != dtype or not dtype.is_floating_point or (a is not None and a.dtype != dtype):
        weights = "" if a is None else f", a is {a.dtype}"
        raise DataError(
            f"x is {dtype}, z is {z.dtype}{weights}; expected one floating dtype for all of them: "
            "cast them with .to(dtype)"
        )
    if z.device != device or (a is not None and a.device != device):
        weights = "" if a is None else f", a on {a.device}"
        raise DataError(
            f"x is on {device}, z on {z.device}{weights}; expected one device: move them with "
            ".to(device)"
        )
    if a is not None and (a.dim() != 2 or a.shape[1] != z_shape[0]):
        raise DataError(
            f"a has shape {tuple(a.shape)}; expected a row for each latent function and a column "
            f"for each of the {z_shape[0]} points of z"
        )
