"""Kernels, means and likelihoods as JSON and tensors, and back.

A description is a type's name, its settings, the sizes of its quadrature rules, the parts below it,
the constraints that say what its raw parameters mean, and the priors on them.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeVar

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood as GPyTorchLikelihood
from gpytorch.priors import Prior
from torch import Tensor, nn

from orthogp.errors import FileError
from orthogp.storage.priors import describe_priors, register_priors, unknown_prior
from orthogp.storage.recipes import (
    CONSTANTS,
    CONSTRAINTS,
    MOST_NODES,
    MOST_PARTS,
    NAMES,
    RECIPES,
    TRANSFORMS,
    Recipe,
    Tensors,
    quadrature_sizes,
)

Description = dict[str, Any]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def describe_module(module: nn.Module) -> Description:
    """The description of a module; of one that cannot be built from it, a class's name alone."""
    try:
        description = {
            **_tree(module),
            "constraints": _constraints(module),
            "priors": describe_priors(module),
        }
        build_module(description, tensors_of(module), type(module))
    except Exception:
        # It cannot be described, for whatever reason: whoever loads the file passes the module in.
        parts = (type(part) for _, part in _submodules(module, gpytorch.Module) if _is_part(part))
        unknown = [kind.__name__ for kind in parts if kind not in RECIPES]
        return {"custom": (unknown or [unknown_prior(module) or type(module).__name__])[0]}
    return description


def build_module(description: Description, tensors: Tensors, kind: type[ModuleT]) -> ModuleT:
    """The module described, holding these tensors; `FileError` where they do not agree."""
    if _count(description) > MOST_PARTS:
        raise FileError(f"it describes a {kind.__name__} of more than {MOST_PARTS} parts")
    # Some constructors draw their first values from torch's global generator.
    with torch.random.fork_rng(devices=[]):
        module = _build_tree(description, tensors, kind)
    _require_constants(module, tensors)
    for name, constraint in description["constraints"].items():
        _constrain(module, name, constraint, tensors)
    if _constraints(module) != description["constraints"]:
        raise FileError(f"not every constraint of {type(module).__name__} is described")
    fill(module, tensors)
    # Files of format 1.1 and before have none.
    priors = description.get("priors", [])
    register_priors(module, priors)
    if describe_priors(module) != priors:
        raise FileError(f"the priors of {type(module).__name__} are not those described")
    return module


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, those that a state_dict leaves out too; none of a prior's."""
    priors = tuple(f"{name}." for name, _ in _submodules(module, Prior))
    parameters = module.named_parameters(remove_duplicate=False)
    found = chain(parameters, module.named_buffers(remove_duplicate=False))
    return {name: value for name, value in found if not name.startswith(priors)}


def tensors_under(tensors: Tensors, path: str) -> dict[str, Tensor]:
    """The tensors under a path, by the names they have there."""
    prefix = f"{path}."
    found = (name for name in tensors if name.startswith(prefix))
    return {name.removeprefix(prefix): tensors[name] for name in found}


def fill(module: nn.Module, tensors: Tensors) -> None:
    """Sets a module's tensors to those of a file, in their dtype, once all of them fit."""
    current = tensors_of(module)
    for name in sorted(current.keys() | tensors.keys()):
        if name not in tensors:
            raise FileError(f"{type(module).__name__} needs {name}, which the file has not")
        if name not in current:
            raise FileError(f"the file has {name!r:.80}, which {type(module).__name__} has not")
        expected, found = _dtype_and_shape(current[name]), _dtype_and_shape(tensors[name])
        if expected != found:
            raise FileError(f"{name} is {found} in the file; {expected} is expected")
    require_finite(module, tensors)
    for name, value in current.items():
        # A copy is aligned as every other tensor of torch, whatever the offset in the file: results
        # then agree to the last bit.
        value.data = tensors[name].clone()
    for name, constraint in _submodules(module, Interval):
        raw = module.get_parameter(name.removesuffix("_constraint"))
        if not (constraint.lower_bound < constraint.upper_bound).all():
            raise FileError(f"{name} has a lower bound that is not below its upper bound")
        if not constraint.transform(raw).isfinite().all():
            raise FileError(f"{name} makes values that are not finite")


def require_finite(module: nn.Module, tensors: Tensors) -> None:
    """Refuses numbers that are not finite anywhere but in a constraint's bounds."""
    bounds = tuple(f"{name}." for name, _ in _submodules(module, Interval))
    for name, value in tensors.items():
        if not name.startswith(bounds) and not value.isfinite().all():
            raise FileError(f"{name} has entries that are not finite")


def _dtype_and_shape(value: Tensor) -> str:
    dtype = "float" if value.dtype in (torch.float32, torch.float64) else str(value.dtype)
    return f"{dtype} of shape {list(value.shape)}"


def _submodules(module: nn.Module, kind: type[ModuleT]) -> Iterator[tuple[str, ModuleT]]:
    for name, submodule in module.named_modules(remove_duplicate=False):
        if isinstance(submodule, kind):
            yield name, submodule


def _is_part(module: nn.Module) -> bool:
    return isinstance(module, Kernel | GPyTorchLikelihood)


def _parts(module: nn.Module) -> dict[str, nn.Module]:
    """The kernels or GPyTorch likelihoods directly below a module."""
    parts: dict[str, nn.Module] = {}
    for name, part in _submodules(module, gpytorch.Module):
        nested = any(name.startswith(f"{above}.") for above in parts)
        if name and _is_part(part) and not nested:
            parts[name] = part
    return parts


def _tree(module: nn.Module) -> Description:
    # By exact type: a subclass may compute anything.
    recipe = RECIPES[type(module)]
    settings = {name: getattr(module, name) for name in recipe.settings}
    parts = {name: _tree(part) for name, part in _parts(module).items()}
    tree = {"type": type(module).__name__, "settings": settings, "parts": parts}
    sizes = quadrature_sizes(recipe, dict(module.named_buffers()))
    return tree | ({"quadrature": sizes} if sizes else {})


def _count(description: Description) -> int:
    return 1 + sum(map(_count, description["parts"].values()))


def _require_constants(module: nn.Module, tensors: Tensors) -> None:
    """Refuses quadrature rules and the like that are not those of their size."""
    for name, own in module.named_buffers():
        if name.rpartition(".")[2] in CONSTANTS:
            found = tensors[name].to(own)
            if found.shape != own.shape or not torch.allclose(found, own, rtol=1e-5, atol=1e-30):
                raise FileError(f"{name} is not that of {type(module).__name__}")


def _build_tree(description: Description, tensors: Tensors, kind: type[ModuleT]) -> ModuleT:
    name, settings = description["type"], description["settings"]
    if name not in NAMES or not issubclass(NAMES[name], kind):
        raise FileError(f"this orthogp knows no {kind.__name__} called {name!r:.40}")
    recipe = RECIPES[NAMES[name]]
    if settings.keys() != recipe.settings.keys():
        raise FileError(f"{name} has other settings than {list(recipe.settings)}")
    for setting, valid in recipe.settings.items():
        if not valid(settings[setting]):
            raise FileError(f"{name} cannot have {setting} {settings[setting]!r:.40}")
    part_type = Kernel if issubclass(kind, Kernel) else GPyTorchLikelihood
    parts = [
        _build_tree(part, tensors_under(tensors, path), part_type)
        for path, part in description["parts"].items()
    ]
    quadrature = _quadrature_sizes(recipe, description, tensors)
    module: Any = recipe.make(*parts, **settings, **recipe.sizes(tensors), **quadrature)
    return module


def _quadrature_sizes(recipe: Recipe, description: Description, tensors: Tensors) -> dict[str, int]:
    """The sizes that the file states for its quadrature rules, which it must also hold."""
    stored = quadrature_sizes(recipe, tensors)
    # Files of format 1.2 and before do not state them.
    sizes = description.get("quadrature", stored)
    if sizes != stored:
        raise FileError(f"it states quadrature sizes {sizes!r:.80} and holds {stored}")
    for name, buffer in recipe.quadrature.items():
        if tensors[buffer].numel() < sizes[name]:
            raise FileError(f"{buffer} is empty")
        if buffer.endswith("nodes") and sizes[name] > MOST_NODES:
            raise FileError(f"a quadrature rule has more than {MOST_NODES} nodes")
    return sizes


def _constraints(module: nn.Module) -> Description:
    return {
        name.removesuffix("_constraint"): {
            "type": type(constraint).__name__,
            "transform": _transform_name(constraint._transform),
        }
        for name, constraint in _submodules(module, Interval)
    }


def _transform_name(transform: Callable[[Tensor], Tensor] | None) -> str:
    if isinstance(transform, nn.Softplus) and (transform.beta, transform.threshold) == (1, 20):
        return "softplus"
    return {torch.sigmoid: "sigmoid", torch.exp: "exp", None: "none"}[transform]


def _constrain(module: nn.Module, name: str, constraint: Description, tensors: Tensors) -> None:
    owner, _, parameter = name.rpartition(".")
    shape, bounds = tensors[name].shape, tensors_under(tensors, f"{name}_constraint")
    for bound in bounds.values():
        if torch.broadcast_shapes(bound.shape, shape) != shape:
            raise FileError(f"the bounds of {name} do not fit it")
    # Any bounds of the right shape: their values come with the other tensors, to the bit.
    made = CONSTRAINTS[constraint["type"]](
        torch.zeros(bounds["lower_bound"].shape),
        torch.ones(bounds["upper_bound"].shape),
        **TRANSFORMS[constraint["transform"]],
    )
    module.get_submodule(owner).register_constraint(parameter, made)  # pyright: ignore
