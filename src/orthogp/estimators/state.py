"""A fitted estimator beside its model: JSON and tensors out, and a checked estimator back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogp.errors import FileError
from orthogp.estimators.defaults import plain
from orthogp.estimators.scaling import Scaling

# Objects travel with the model, arrays as tensors; places belong to one machine.
OBJECTS = ("kernel", "likelihood")
ARRAYS = ("inducing_points", "residual_points")
LEFT_BEHIND = ("callbacks", "checkpoint_dir", "device")
LABELS = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": object}


def pack_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings that JSON can hold, and those that are arrays."""
    kept = {
        name: plain(value)
        for name, value in settings.items()
        if name not in (*OBJECTS, *ARRAYS, *LEFT_BEHIND)
    }
    kept["dtype"] = str(kept["dtype"]).removeprefix("torch.")
    if not isinstance(kept["random_state"], int | None):
        kept["random_state"] = None
    if isinstance(settings["likelihood"], str):
        kept["likelihood"] = settings["likelihood"]
    given = {name: settings[name] for name in ARRAYS if settings[name] is not None}
    return kept, {name: torch.tensor(np.asarray(v, np.float64)) for name, v in given.items()}


def pack_labels(classes: NDArray) -> dict[str, Any]:
    if classes.dtype.kind not in LABELS or not all(
        isinstance(label, str | bool | int | float) for label in classes.tolist()
    ):
        raise FileError(
            f"labels of type {classes.dtype} cannot be written to a file; use strings or numbers"
        )
    return {"kind": classes.dtype.kind, "values": classes.tolist()}


def unpack_labels(packed: Mapping[str, Any], count: int) -> NDArray:
    kind, values = LABELS[packed["kind"]], packed["values"]
    plain_labels = all(isinstance(label, str | bool | int | float) for label in values)
    if len(values) != count or not plain_labels or len(set(values)) != count:
        raise FileError(f"its labels are not those of {count} classes")
    return np.array(values, dtype=kind)


def unpack_names(names: Any, count: int) -> NDArray:
    right = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not right or len(names) != count:
        raise FileError(f"its feature names are not those of {count} columns")
    return np.array(names, dtype=object)


def pack_scaling(name: str, scaling: Scaling) -> dict[str, Tensor]:
    return {
        f"{name}_shift": torch.from_numpy(scaling.shift),
        f"{name}_scale": torch.from_numpy(scaling.scale),
    }


def unpack_scaling(name: str, tensors: Mapping[str, Tensor], count: int) -> Scaling:
    shift, scale = (finite(tensors, f"{name}_{part}", (count,)) for part in ("shift", "scale"))
    if not bool((scale > 0).all()):
        raise FileError(f"its {name}_scale is not positive")
    return Scaling(shift.numpy(), scale.numpy())


def finite(tensors: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...]) -> Tensor:
    """The tensor of that name, in float64, on the host, if it has this shape (None is any)."""
    found = tensors[name].double().cpu()
    fits = found.ndim == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, found.shape, strict=True)
    )
    if not fits or not bool(found.isfinite().all()):
        raise FileError(f"its {name} is not of shape {shape} and finite")
    return found
