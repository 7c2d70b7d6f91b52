"""A model in one file: its parts described as JSON, its tensors, and what the caller adds.

Loading imports and runs nothing that the file names: kernels, means and likelihoods listed in
`recipes` are built, with the priors on them, and any other is passed in.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor, nn

from orthogp import __version__
from orthogp.errors import FileError, OrthogpError
from orthogp.execution import files
from orthogp.execution.urls import RemotePath, locate
from orthogp.likelihoods import Gaussian, Likelihood, as_likelihood
from orthogp.model import VariationalGP
from orthogp.storage.basis import describe_basis, restore_basis
from orthogp.storage.log_noise import describe_log_noise, log_noise_tensors, restore_log_noise
from orthogp.storage.modules import (
    Description,
    build_module,
    describe_module,
    fill,
    require_finite,
    tensors_of,
    tensors_under,
)
from orthogp.storage.near import describe_near, restore_near, rows_folder
from orthogp.storage.recipes import Tensors, is_finite_number

KIND = "model"
# A minor version adds what an older reader may ignore; anything else is a major version. Inputs
# that are mapped or filled in came with 2.0.
FORMAT, OLDEST_MAJOR = (2, 0), 1


@dataclass(frozen=True)
class Saved:
    """The content of a file: the model, and the JSON and tensors saved with it."""

    model: VariationalGP
    meta: dict[str, Any]
    tensors: dict[str, Tensor]


def save_model(
    path: str | Path, model: VariationalGP, meta: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Writes the model with the caller's JSON and tensors, atomically."""
    parts = _parts(model)
    stored = {part: tensors_of(module) for part, module in parts.items()}
    for part, module in parts.items():
        require_finite(module, stored[part])
    header = {
        "format": list(FORMAT),
        "orthogp": __version__,
        "kernel": describe_module(parts["kernel"]),
        "mean": describe_module(parts["mean"]),
        "likelihood": describe_module(parts["likelihood"]),
        "basis": describe_basis(model.basis),
        "near": None if model.near is None else describe_near(model.near),
        "log_noise": None if model.log_noise is None else describe_log_noise(model.log_noise),
        "jitter": model.jitter,
        "frozen": [name for name, value in _parameters(model) if not value.requires_grad],
        "meta": meta,
    }
    flat = {f"{part}.{name}": t for part, found in stored.items() for name, t in found.items()}
    if model.log_noise is not None:
        learned = log_noise_tensors(model.log_noise)
        flat |= {f"log_noise.{name}": value for name, value in learned.items()}
    flat |= {f"tensors.{name}": value for name, value in tensors.items()}
    files.write(locate(path), KIND, flat, header)


def load_model(
    path: str | Path,
    kernel: Kernel | None = None,
    likelihood: object = None,
    mean: Mean | None = None,
    device: str | torch.device = "cpu",
    rows_dir: str | Path | None = None,
) -> Saved:
    """Reads what `save_model` wrote; any other file is a `FileError`.

    A kernel, likelihood or mean that is not on the list is passed in; a copy of it takes the
    parameters of the file. What is passed in is used even where the file describes it.

    Near rows that are in a folder of their own are looked for in `rows_dir` where it is given, else
    in a folder of the same name beside the file, and then where they were when it was written.
    """
    place = locate(path)
    tensors, header = files.read(place, KIND)
    passed = {"kernel": kernel, "likelihood": likelihood, "mean": mean, "folders": []}
    written = rows_folder(header.get("near"))
    if written is not None:
        same_folder = [] if isinstance(place, RemotePath) else [place.parent / written.name]
        passed["folders"] = [*same_folder, written] if rows_dir is None else [Path(rows_dir)]
    try:
        saved = _assemble(tensors, header, passed)
    except OrthogpError as error:
        raise FileError(f"{path} cannot be loaded: {error}{_newer_note(header)}") from error
    except Exception as error:
        # A file with a valid checksum may still hold anything, and torch, GPyTorch and Python raise
        # as many errors for it. All become a FileError.
        raise FileError(
            f"{path} cannot be loaded: it does not describe an orthogp model{_newer_note(header)}"
        ) from error
    saved.model.to(device)
    return saved


def _assemble(tensors: Tensors, header: Description, passed: dict[str, Any]) -> Saved:
    major, minor = header["format"]
    if (type(major), type(minor)) != (int, int):
        raise FileError("its format has no version")
    if not OLDEST_MAJOR <= major <= FORMAT[0]:
        raise FileError(
            f"it has format {major}.{minor} and this orthogp reads {OLDEST_MAJOR}.0 to "
            f"{FORMAT[0]}.x"
        )
    basis = restore_basis(header["basis"], tensors_under(tensors, "basis"))
    if passed["likelihood"] is not None:
        passed["likelihood"] = as_likelihood(passed["likelihood"], basis.num_latents)
    kernel = _restore("kernel", Kernel, passed, tensors, header)
    likelihood = _restore("likelihood", Likelihood, passed, tensors, header)
    mean = _restore("mean", Mean, passed, tensors, header)
    jitter, frozen, meta = (header[key] for key in ("jitter", "frozen", "meta"))
    if not (is_finite_number(jitter) and jitter >= 0):
        raise FileError(f"its jitter is {jitter!r:.40}")
    if not (isinstance(frozen, list) and isinstance(meta, dict)):
        raise FileError("its JSON has values of the wrong type")
    near = None
    # Formats before 1.4 had none.
    if header.get("near") is not None:
        stored = tensors_under(tensors, "near")
        near = restore_near(header["near"], stored, basis, passed["kernel"], passed["folders"])
    log_noise = None
    # Formats before 1.7 had none.
    if header.get("log_noise") is not None:
        if not isinstance(likelihood, Gaussian):
            raise FileError("its noise is a function and its likelihood is not Gaussian")
        stored = tensors_under(tensors, "log_noise")
        log_noise = restore_log_noise(header["log_noise"], stored, basis)
    model = VariationalGP(kernel, likelihood, basis, mean, jitter, near, log_noise)
    for name in tensors:
        others = ("tensors",) if log_noise is None else ("tensors", "log_noise")
        if name.partition(".")[0] not in (*_parts(model), *others):
            raise FileError(f"it has a tensor {name!r:.40}, which no part of the model has")
    for name, value in _parameters(model):
        value.requires_grad_(name not in frozen)
    _require_predictions(model)
    return Saved(model, meta, tensors_under(tensors, "tensors"))


def _restore(
    part: str, kind: type, passed: dict[str, Any], tensors: Tensors, header: Description
) -> Any:
    description, stored = header[part], tensors_under(tensors, part)
    if passed[part] is not None:
        module = deepcopy(passed[part]).cpu()
        fill(module, stored)
        return module
    if "custom" in description:
        name = description["custom"]
        raise FileError(f"the file needs its {part} ({name!s:.40}): pass load(path, {part}=…)")
    return build_module(description, stored, kind)


def _require_predictions(model: VariationalGP) -> None:
    mean, variance = model.predict(model.basis.beta[:1].detach())
    if not (mean.isfinite().all() and variance.isfinite().all()):
        raise FileError("its predictions are not finite")


def _parts(model: VariationalGP) -> dict[str, nn.Module]:
    parts: dict[str, nn.Module] = {
        "kernel": model.covariance.kernel,
        "mean": model.mean,
        "likelihood": model.likelihood,
        "basis": model.basis,
    }
    return parts if model.near is None else parts | {"near": model.near}


def _parameters(model: VariationalGP) -> list[tuple[str, nn.Parameter]]:
    return [
        (f"{part}.{name}", value)
        for part, module in _parts(model).items()
        for name, value in module.named_parameters()
    ]


def _newer_note(header: Description) -> str:
    """For an error message: that a newer orthogp wrote the file, if so."""
    written = header.get("format")
    if not isinstance(written, list) or not all(type(part) is int for part in written):
        return ""
    newer = tuple(written) > FORMAT
    version = header.get("orthogp")
    has_version = newer and isinstance(version, str)
    return f" (a newer orthogp wrote it: {version:.20})" if has_version else ""
