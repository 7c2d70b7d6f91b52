"""Priors on hyperparameters as JSON, and back.

A description is a prior's name and type, the parameter it is on, and its numbers. One that a file
cannot describe (a class or a transform of one's own, a function of several parameters) is passed in
by whoever loads the file, with the kernel, mean or likelihood that it is registered on.
"""

from dataclasses import dataclass
from inspect import getclosurevars, isfunction
from typing import Any

import gpytorch
import torch
from torch import Tensor, nn

from orthogp.errors import FileError, NumericalError
from orthogp.model.priors import RegisteredPrior, registered_priors
from orthogp.storage.recipes import MOST_PARTS, PRIORS

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# GPyTorch names a prior after its parameter, but for this one.
EXCEPTIONS = {"mean_prior": "constant"}


@dataclass(frozen=True)
class ParameterOf:
    """Reads and sets a parameter by name; GPyTorch's own functions for that cannot be pickled."""

    name: str

    def __call__(self, module: gpytorch.Module) -> Tensor:
        return getattr(module, self.name)

    def set(self, module: gpytorch.Module, value: Tensor | float) -> None:
        module.initialize(**{self.name: value})


def describe_priors(module: nn.Module) -> list[dict[str, Any]]:
    """All priors in a module; `FileError` for one that cannot be built from its description."""
    return [_describe(prior) for prior in registered_priors(module)]


def unknown_prior(module: nn.Module) -> str | None:
    """The first prior that cannot be described: its class, or its name if the class is known."""
    for prior in registered_priors(module):
        try:
            _describe(prior)
        except FileError:
            kind = type(prior.prior).__name__
            return prior.name if kind in PRIORS else kind
    return None


def register_priors(module: nn.Module, descriptions: Any) -> None:
    """Registers the priors described; `FileError` where they do not suit the module."""
    if not isinstance(descriptions, list) or len(descriptions) > MOST_PARTS:
        raise FileError(f"its priors are not a list of at most {MOST_PARTS}")
    for description in descriptions:
        path, _, name = description["name"].rpartition(".")
        owner, parameter = module.get_submodule(path), description["parameter"]
        # A name that is taken would replace a part of the module.
        if not name.endswith("_prior") or hasattr(owner, name):
            raise FileError(f"{name!r:.40} cannot be the name of a prior")
        if not isinstance(owner, gpytorch.Module) or not _has(owner, parameter):
            raise FileError(f"{name} is a prior on {parameter!r:.40}, which is no parameter")
        value = ParameterOf(parameter)
        owner.register_prior(name, _build(description), value, value.set)
    for prior in registered_priors(module):
        try:
            prior.log_density()
        except NumericalError:
            # A parameter outside of its support: training reports it.
            continue


def _describe(registered: RegisteredPrior) -> dict[str, Any]:
    prior: Any = registered.prior
    kind = type(prior).__name__
    # By exact type, as of kernels.
    if kind not in PRIORS or type(prior) is not PRIORS[kind].make:
        raise FileError(f"{kind} is not a prior that a file can describe")
    if prior._transform is not None:
        raise FileError(f"{registered.name} has a transform, which a file cannot describe")
    values = {name: getattr(prior, name).detach() for name in PRIORS[kind].values}
    dtypes = {str(value.dtype).removeprefix("torch.") for value in values.values()}
    if len(dtypes) != 1 or not dtypes <= DTYPES.keys():
        raise FileError(f"{registered.name} has numbers of several types, or that are not floats")
    if not all(bool(value.isfinite().all()) for value in values.values()):
        raise FileError(f"{registered.name} has numbers that are not finite")
    return {
        "name": registered.name,
        "parameter": _parameter(registered),
        "type": kind,
        "values": {name: value.tolist() for name, value in values.items()},
        "dtype": dtypes.pop(),
        "validate": bool(prior._validate_args),
    }


def _parameter(registered: RegisteredPrior) -> str:
    """The name of the parameter that a prior is on; `FileError` for a function of one's own."""
    value, name = registered.value, registered.name.rpartition(".")[2]
    if isinstance(value, ParameterOf):
        return value.name
    found = EXCEPTIONS.get(name, name.removesuffix("_prior"))
    if isfunction(value) and value.__module__ == gpytorch.Module.__module__:
        # Registered by the parameter's name.
        found = getclosurevars(value).nonlocals["param"]
    of_gpytorch = getattr(value, "__module__", "").startswith("gpytorch.")
    if not of_gpytorch or not _has(registered.owner, found):
        raise FileError(f"{registered.name} is on a function, which a file cannot describe")
    if not torch.equal(getattr(registered.owner, found), value(registered.owner)):
        raise FileError(f"{registered.name} is not on {found}")
    return found


def _has(owner: nn.Module, parameter: Any) -> bool:
    """Whether a module has a parameter of this name, or one called raw_ and the name."""
    if not isinstance(parameter, str) or not parameter.isidentifier() or parameter[0] == "_":
        return False
    found = (getattr(owner, name, None) for name in (f"raw_{parameter}", parameter))
    return any(isinstance(value, nn.Parameter) for value in found)


def _build(description: dict[str, Any]) -> gpytorch.priors.Prior:
    recipe, values = PRIORS[description["type"]], description["values"]
    if values.keys() != set(recipe.values) or not isinstance(description["validate"], bool):
        raise FileError(f"a {description['type']} has other values than {list(recipe.values)}")
    dtype = DTYPES[description["dtype"]]
    numbers = {
        argument: torch.tensor(values[name], dtype=dtype)
        for name, argument in recipe.values.items()
    }
    if not all(bool(value.isfinite().all()) for value in numbers.values()):
        raise FileError(f"a {description['type']} has numbers that are not finite")
    return recipe.make(**numbers, validate_args=description["validate"])
