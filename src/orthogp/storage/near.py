"""The rows that a model's predictions are conditioned on, as JSON and tensors, and back."""

from copy import deepcopy
from pathlib import Path

from gpytorch.kernels import Kernel
from torch import Tensor

from orthogp.errors import FileError
from orthogp.posterior import Basis, NearRows, SiteRows, StoredRows
from orthogp.posterior.row_store import RowStore
from orthogp.storage.modules import (
    Description,
    build_module,
    describe_module,
    fill,
    tensors_under,
)
from orthogp.storage.recipes import Tensors, is_finite_number


def describe_near(near: NearRows | SiteRows | StoredRows) -> Description:
    if isinstance(near, StoredRows):
        # Under a name of its own: formats before 1.9 know no rows outside of the file.
        found = {"folder": str(near.folder), "identity": near.store.identity}
        settings = {key: getattr(near, key) for key in ("count", "probes", "recall", "narrow")}
        return {"in_folder": found | settings}
    if isinstance(near, SiteRows):
        return {"count": near.count, "kernel": describe_module(near.kernel)}
    found = {"count": near.count, "on_mean": near.on_mean, "on_beta": near.on_beta}
    if near.added == 0:
        return found
    # Under a name of its own: formats before 1.8 would take these rows for those of a fit.
    return {"joined": {**found, "added": near.added, "after_basis": near.after_basis}}


def restore_near(
    description: Description,
    tensors: Tensors,
    basis: Basis,
    kernel: Kernel | None,
    folders: list[Path],
) -> NearRows | SiteRows | StoredRows:
    """The rows described, which must be for this basis.

    `kernel` is one passed in, for a residual process whose kernel no file can describe. Rows that
    are not in the file are in the first of the `folders` that has them.
    """
    if "in_folder" in description:
        return _restore_stored(description["in_folder"], tensors, basis, folders)
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


def rows_folder(description: Description | None) -> Path | None:
    """The folder in which the rows were when the file was written; None where they are in it."""
    if not isinstance(description, dict) or "in_folder" not in description:
        return None
    return Path(str(description["in_folder"]["folder"]))


def _restore_stored(
    description: Description, tensors: Tensors, basis: Basis, folders: list[Path]
) -> StoredRows:
    names = ("count", "probes", "recall", "narrow")
    count, probes, recall, narrow = (description[name] for name in names)
    whole = all(type(number) is int and number > 0 for number in (count, probes))
    if not whole or type(narrow) is not bool or not is_finite_number(recall):
        raise FileError("its near rows have settings of the wrong type")
    store = _store_of(str(description["identity"]), folders)
    latents, size = basis.num_latents, len(basis.beta)
    if (store.inputs, store.outputs) != (basis.beta.shape[1], latents):
        raise FileError(f"the rows of {store.folder} have other inputs or outputs than its model")
    S, b = tensors.get("S"), tensors.get("b")
    if (S is None) != (b is None):
        raise FileError("the q(v) of its near rows is not whole")
    if S is not None and b is not None:
        shapes = S.shape in ((1, size, size), (latents, size, size)), b.shape == (latents, size)
        if not all(shapes) or not bool(S.isfinite().all() and b.isfinite().all()):
            raise FileError("the q(v) of its near rows does not agree with its basis")
    return StoredRows(store, count, probes, float(recall), narrow, S, b)


def _store_of(identity: str, folders: list[Path]) -> RowStore:
    """The first of these folders with the rows of this identity."""
    found = []
    for folder in folders:
        try:
            store = RowStore.open(folder)
        except FileError as error:
            found.append(str(error))
            continue
        if store.identity == identity:
            return store
        found.append(f"{folder} has the rows of another fit")
    reasons = "; ".join(dict.fromkeys(found))
    raise FileError(
        "the rows that its predictions are conditioned on are in a folder of their own, which was "
        f"not found ({reasons}); put it beside the file, or name it with load(path, rows_dir=…)"
    )


def _require_rows(basis: Basis, x: Tensor, y: Tensor, *others: Tensor) -> None:
    (n, d), dtype = (len(x), basis.beta.shape[1]), basis.beta.dtype
    if n < 1 or x.shape != (n, d) or y.shape != (basis.num_latents, n):
        raise FileError("the sizes of its near rows do not agree")
    if any(part.dtype != dtype or not part.isfinite().all() for part in (x, y, *others)):
        raise FileError(f"its near rows are not finite numbers of {dtype}")
