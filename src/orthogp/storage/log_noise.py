"""The model of the logarithm of the noise in a file, as JSON and tensors, and back."""

from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor, nn

from orthogp.errors import FileError
from orthogp.likelihoods.log_noise import LogNoise
from orthogp.model import VariationalGP
from orthogp.posterior import Basis
from orthogp.storage.basis import describe_basis, restore_basis
from orthogp.storage.modules import (
    Description,
    build_module,
    describe_module,
    require_finite,
    tensors_of,
    tensors_under,
)
from orthogp.storage.recipes import Tensors, is_finite_number


def describe_log_noise(model: VariationalGP) -> Description:
    return {
        "kernel": describe_module(model.covariance.kernel),
        "mean": describe_module(model.mean),
        "basis": describe_basis(model.basis),
        "jitter": model.jitter,
    }


def log_noise_tensors(model: VariationalGP) -> dict[str, Tensor]:
    parts: dict[str, nn.Module] = {
        "kernel": model.covariance.kernel, "mean": model.mean, "basis": model.basis,
    }  # fmt: skip
    found: dict[str, Tensor] = {}
    for name, part in parts.items():
        tensors = tensors_of(part)
        require_finite(part, tensors)
        found |= {f"{name}.{key}": value for key, value in tensors.items()}
    return found


def restore_log_noise(description: Description, tensors: Tensors, basis: Basis) -> VariationalGP:
    """The model described, which must have the inputs and latents of this basis."""
    own = restore_basis(description["basis"], tensors_under(tensors, "basis"))
    if own.num_latents != basis.num_latents or own.beta.shape[1] != basis.beta.shape[1]:
        raise FileError("its noise is a function of other inputs or for other targets")
    kernel = build_module(description["kernel"], tensors_under(tensors, "kernel"), Kernel)
    mean = build_module(description["mean"], tensors_under(tensors, "mean"), Mean)
    jitter = description["jitter"]
    if not (is_finite_number(jitter) and jitter >= 0):
        raise FileError(f"the jitter of its noise is {jitter!r:.40}")
    return VariationalGP(kernel, LogNoise(own.num_latents), own, mean, jitter)
