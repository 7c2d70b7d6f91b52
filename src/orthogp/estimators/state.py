"""A fitted estimator without its model: as JSON and tensors for a file, and back."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogp.errors import FileError
from orthogp.estimators.calibration import Calibration, LatentScales, QuantileMap, is_tail
from orthogp.estimators.checks import Columns
from orthogp.estimators.defaults import python_number
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.intake import Units
from orthogp.estimators.known_noise import is_known
from orthogp.estimators.scaling import Ramps, Scaling
from orthogp.estimators.target_transform import TargetTransform
from orthogp.estimators.targets import LabelTargets, NumberTargets, Targets
from orthogp.likelihoods import ClassificationLikelihood, RegressionLikelihood
from orthogp.model import VariationalGP
from orthogp.tables import Plan
from orthogp.training import Report

# Objects are saved with the model, arrays as tensors.
OBJECTS = ("kernel", "likelihood")
ARRAYS = ("inducing_points", "residual_points")
NOT_SAVED = ("callbacks", "checkpoint_dir", "device", "rows_dir")
LABEL_TYPES = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": object}


def pack_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings that JSON can hold, and those that are arrays."""
    arrays = [*ARRAYS, "noise_variance"] if is_known(settings["noise_variance"]) else [*ARRAYS]
    packed = {
        name: python_number(value)
        for name, value in settings.items()
        if name not in (*OBJECTS, *arrays, *NOT_SAVED)
    }
    chosen = packed["categorical_features"]
    if not isinstance(chosen, str | None):
        packed["categorical_features"] = np.asarray(chosen).reshape(-1).tolist()
    packed["dtype"] = str(packed["dtype"]).removeprefix("torch.")
    if not isinstance(packed["random_state"], int | None):
        packed["random_state"] = None
    if isinstance(settings["likelihood"], str):
        packed["likelihood"] = settings["likelihood"]
    given = {name: settings[name] for name in arrays if settings[name] is not None}
    return packed, {name: torch.tensor(np.asarray(v, np.float64)) for name, v in given.items()}


def pack_fitted(fitted: Fitted) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """All that a fit has learned but its model."""
    names = fitted.units.columns.names
    meta = {
        "feature_names_in": None if names is None else names.tolist(),
        "elbo": fitted.elbo,
        "history": list(fitted.history),
        "n_iter": fitted.steps,
        "columns": None if fitted.units.plan is None else fitted.units.plan.as_json(),
    }
    tensors = pack_scaling("x", fitted.units.inputs)
    if isinstance(fitted.scores, np.ndarray):
        tensors["conformal_scores"] = torch.from_numpy(fitted.scores)
    targets, calibration = fitted.units.targets, fitted.calibration
    if isinstance(targets, LabelTargets):
        assert isinstance(calibration, LatentScales)
        meta["classes"] = pack_labels(targets.classes)
        tensors["latent_scales"] = torch.tensor(calibration, dtype=torch.float64)
        return meta, tensors
    assert isinstance(calibration, Calibration)
    meta["single"] = targets.single
    transform = targets.transform
    meta["target_transform"] = None if transform is None else transform.as_json()
    return meta, tensors | pack_scaling("y", targets.scaling) | {
        "variance_scales": calibration.scales,
        "density_tails": calibration.tails,
        "map_scores": calibration.quantile_map.scores,
        "map_values": calibration.quantile_map.values,
    }


def unpack_fitted(
    model: VariationalGP,
    learned: tuple[Targets, Calibration | LatentScales],
    meta: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    device: torch.device,
) -> Fitted:
    """The reverse of `pack_fitted`, for untrusted input.

    `learned` are the targets and the calibration.
    """
    names, (targets, calibration) = None, learned
    inputs = unpack_scaling("x", tensors, model.basis.beta.shape[1])
    width = len(inputs.scale)
    # Formats before 1.8 had none: their inputs are the columns.
    plan = None if meta.get("columns") is None else Plan.from_json(meta["columns"])
    if plan is not None and len(plan.sources) != width:
        raise FileError(f"its columns make {len(plan.sources)} inputs and its model has {width}")
    count = width if plan is None else len(plan.columns)
    if meta["feature_names_in"] is not None:
        names = unpack_names(meta["feature_names_in"], count)
    return Fitted.on_device(
        device,
        model,
        units=Units(Columns(count, names), inputs, targets, plan),
        calibration=calibration,
        elbo=float(meta["elbo"]),
        history=tuple(asdict(Report(**row)) for row in meta["history"]),
        steps=int(meta["n_iter"]),
        scores=unpack_scores(tensors),
    )


def unpack_scores(tensors: Mapping[str, Tensor]) -> NDArray[np.float64] | None:
    """Those of rows that were held out to promise a coverage; formats before 1.8 had none."""
    if "conformal_scores" not in tensors:
        return None
    found = finite_tensor(tensors, "conformal_scores", (None,)).numpy()
    if not len(found):
        raise FileError("its conformal_scores are none")
    return found


def unpack_numbers(
    model: VariationalGP, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[NumberTargets, Calibration]:
    """What a regressor has learned of its targets."""
    if not isinstance(model.likelihood, RegressionLikelihood):
        raise FileError("its likelihood is one of classes")
    count, single = model.basis.num_latents, bool(meta["single"])
    if single and count != 1:
        raise FileError(f"it has {count} targets and says that it has one")
    # Formats before 1.8 had none.
    transform = meta.get("target_transform")
    if transform is not None:
        transform = TargetTransform.from_json(transform)
    targets = NumberTargets(unpack_scaling("y", tensors, count), single, transform)
    if transform is not None and not single:
        raise FileError("it transforms one target and has several")
    scales = finite_tensor(tensors, "variance_scales", (count, 2))
    scores = finite_tensor(tensors, "map_scores", (None,))
    values = finite_tensor(tensors, "map_values", (count, len(scores)))
    # Format 1.0 had Gaussian densities.
    found = Calibration.gaussian(scales, QuantileMap(scores, values))
    if "density_tails" in tensors:
        found = replace(found, tails=finite_tensor(tensors, "density_tails", (count, 3)))
    positive = bool((scales > 0).all() and (found.tails[:, :2] > 0).all())
    if len(scores) == 0 or not positive or not bool(is_tail(found.tails[:, 2]).all()):
        raise FileError("its calibration is not one")
    return targets, found


def unpack_classes(
    model: VariationalGP, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[LabelTargets, LatentScales]:
    """What a classifier has learned of its targets."""
    if not isinstance(model.likelihood, ClassificationLikelihood):
        raise FileError("its likelihood is one of numbers")
    classes = unpack_labels(meta["classes"], model.likelihood.num_classes)
    # Format 1.0 had none, those before 1.6 two numbers.
    scales = [1.0, 1.0]
    if "latent_scales" in tensors:
        scales = finite_tensor(tensors, "latent_scales", (None,)).tolist()
    found = LatentScales(*scales) if len(scales) in (2, 3) else LatentScales(0.0)
    if min(found.mean, found.variance) <= 0.0 or not 0.0 <= found.random < 1.0:
        raise FileError("its calibration is not one")
    return LabelTargets(classes), found


def unpack_noise(tensors: Mapping[str, Tensor], num_targets: int) -> NDArray:
    """The setting `noise_variance` where it has the noise of every row."""
    shape = (None, num_targets)[: max(1, tensors["noise_variance"].ndim)]
    return finite_tensor(tensors, "noise_variance", shape).numpy()


def pack_labels(classes: NDArray) -> dict[str, Any]:
    if classes.dtype.kind not in LABEL_TYPES or not all(
        isinstance(label, str | bool | int | float) for label in classes.tolist()
    ):
        raise FileError(
            f"labels of type {classes.dtype} cannot be written to a file; use strings or numbers"
        )
    return {"kind": classes.dtype.kind, "values": classes.tolist()}


def unpack_labels(packed: Mapping[str, Any], count: int) -> NDArray:
    kind, values = LABEL_TYPES[packed["kind"]], packed["values"]
    plain_labels = all(isinstance(label, str | bool | int | float) for label in values)
    if len(values) != count or not plain_labels or len(set(values)) != count:
        raise FileError(f"its labels are not those of {count} classes")
    return np.array(values, dtype=kind)


def unpack_names(names: Any, count: int) -> NDArray:
    are_text = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not are_text or len(names) != count:
        raise FileError(f"its feature names are not those of {count} columns")
    return np.array(names, dtype=object)


def pack_scaling(name: str, scaling: Scaling) -> dict[str, Tensor]:
    parts = {"shift": scaling.shift, "scale": scaling.scale, "linear_map": scaling.linear_map}
    if scaling.ramps is not None:
        parts |= {f"ramp_{part}": value for part, value in vars(scaling.ramps).items()}
    return {f"{name}_{k}": torch.from_numpy(v) for k, v in parts.items() if v is not None}


def unpack_scaling(name: str, tensors: Mapping[str, Tensor], outputs: int) -> Scaling:
    """Of as many columns as outputs, unless a map of the columns has another number of them."""
    shift = finite_tensor(tensors, f"{name}_shift", (None,))
    scale = finite_tensor(tensors, f"{name}_scale", (count := len(shift),))
    if not bool((scale > 0).all()):
        raise FileError(f"its {name}_scale is not positive")
    found, linear_map = Scaling(shift.numpy(), scale.numpy()), f"{name}_linear_map"
    if linear_map not in tensors:
        # Formats before 2.0 had none.
        if count != outputs:
            raise FileError(f"its {name}_shift has {count} numbers; expected {outputs}")
        return found
    ramps = unpack_ramps(name, tensors, count)
    width = count + (0 if ramps is None else len(ramps.source))
    values, dtype = finite_tensor(tensors, linear_map, (outputs, width)), tensors[linear_map].dtype
    if dtype not in (torch.float32, torch.float64):
        raise FileError(f"its {linear_map} is not of floating point numbers")
    return replace(found, linear_map=values.to(dtype).numpy(), ramps=ramps)


def unpack_ramps(name: str, tensors: Mapping[str, Tensor], count: int) -> Ramps | None:
    """Those of `count` columns, if any; formats before 2.0 had none."""
    if f"{name}_ramp_source" not in tensors:
        return None
    source = finite_tensor(tensors, f"{name}_ramp_source", (None,))
    low, high = (finite_tensor(tensors, f"{name}_ramp_{p}", source.shape) for p in ("low", "high"))
    columns = source.long()
    fits = (columns == source) & (columns >= 0) & (columns < count) & (low < high)
    if not bool(fits.all()):
        raise FileError(f"its {name}_ramps are not those of {count} columns")
    return Ramps(columns.numpy(), low.numpy(), high.numpy())


def finite_tensor(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...]
) -> Tensor:
    """The tensor of that name, in float64, on the host, if it has this shape (None is any)."""
    found = tensors[name].double().cpu()
    fits = found.ndim == len(shape) and all(
        expected in (None, size) for expected, size in zip(shape, found.shape, strict=True)
    )
    if not fits or not bool(found.isfinite().all()):
        raise FileError(f"its {name} is not of shape {shape} and finite")
    return found
