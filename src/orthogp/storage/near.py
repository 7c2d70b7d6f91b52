"""The rows that a model's predictions are conditioned on, as JSON and tensors, and back."""

from copy import deepcopy

from gpytorch.kernels import Kernel
from torch import Tensor

from orthogp.errors import FileError
from orthogp.posterior import Basis, NearRows, SiteRows
from orthogp.storage.modules import (
    Description,
    build_module,
    describe_module,
    fill,
    tensors_under,
)
from orthogp.storage.recipes import Tensors


def describe_near(near: NearRows | SiteRows) -> Description:
    if isinstance(near, SiteRows):
        return {"count": near.count, "kernel": describe_module(near.kernel)}
    found = {"count": near.count, "on_mean": near.on_mean, "on_beta": near.on_beta}
    if near.added == 0:
        return found
    # Under a name of its own: formats before 1.8 would take these rows for those of a fit.
    return {"joined": {**found, "added": near.added, "after_basis": near.after_basis}}


def restore_near(
    description: Description, tensors: Tensors, basis: Basis, kernel: Kernel | None
) -> NearRows | SiteRows:
    """The rows described, which must be for this basis.

    `kernel` is one passed in, for a residual process whose kernel no file can describe.
    """
    description = description.get("joined", description)
    count = description["count"]
    if type(count) is not int or count < 0:
        raise FileError("its near rows have settings of the wrong type")
    if "kernel" in description:
        return _restore_sites(description["kernel"], tensors, basis, kernel, count)
    on_mean = description["on_mean"]
    # Formats before 1.5 had β always.
    on_beta = description.get("on_beta", True)
    added, after_basis = description.get("added", 0), description.get("after_basis", False)
    if {type(on_mean), type(on_beta), type(after_basis)} != {bool} or type(added) is not int:
        raise FileError("its near rows have settings of the wrong type")
    x, y, weight = tensors["x"], tensors["y"], tensors.get("weight")
    # Formats before 1.7 had one weight for all outputs of a row.
    shapes = x.shape[:1], y.shape
    if weight is not None and (weight.shape not in shapes or not bool((weight > 0).all())):
        raise FileError("the weights of its near rows are not positive, one for each")
    _require_rows(basis, x, y, *([] if weight is None else [weight]))
    # All of them have joined a basis, some of them rows that were there before.
    possible = added == len(x) if after_basis else 0 < added < len(x)
    if added != 0 and not (possible and count > 0):
        raise FileError("its near rows are not those that have joined a model")
    return NearRows(x, y, weight, count, on_mean, on_beta, added, after_basis)


def _restore_sites(
    description: Description, tensors: Tensors, basis: Basis, passed: Kernel | None, count: int
) -> SiteRows:
    x, residual, noise, weight = (tensors[key] for key in ("x", "residual", "noise", "weight"))
    _require_rows(basis, x, residual)
    if any(t.shape != () or not 0 < float(t) < float("inf") for t in (noise, weight)):
        raise FileError("the noise of its near rows is not a positive number")
    stored = tensors_under(tensors, "kernel")
    if passed is None:
        kernel = build_module(description, stored, Kernel)
    else:
        kernel = deepcopy(passed).cpu()
        fill(kernel, stored)
    return SiteRows(x, residual, float(noise), float(weight), kernel, count)


def _require_rows(basis: Basis, x: Tensor, y: Tensor, *others: Tensor) -> None:
    (n, d), dtype = (len(x), basis.beta.shape[1]), basis.beta.dtype
    if n < 1 or x.shape != (n, d) or y.shape != (basis.num_latents, n):
        raise FileError("the sizes of its near rows do not agree")
    if any(part.dtype != dtype or not part.isfinite().all() for part in (x, y, *others)):
        raise FileError(f"its near rows are not finite numbers of {dtype}")
