"""The allow-list: which kernels, means, likelihoods, constraints and priors a file may name.

The sizes of parameters are those of the tensors in the file, the sizes of quadrature rules are
checked against them, and every other setting has a range: a small file cannot ask for much memory.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gpytorch.kernels as gk
import gpytorch.likelihoods as gl
import gpytorch.means as gm
import gpytorch.priors as gp
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.constraints.constraints import inv_sigmoid, inv_softplus, softplus
from torch import Tensor, nn

from orthogp import likelihoods as ol
from orthogp.errors import FileError
from orthogp.kernel.grouped import GroupedMaternKernel, GroupedRBFKernel

Tensors = Mapping[str, Tensor]

# Beyond these the weights of a Gauss–Hermite rule underflow in float64.
MOST_NODES = 370
# More than any kernel in use has.
MOST_PARTS = 1000
# Buffers that follow from their size: a file holds them to the bit, and cannot hold others.
CONSTANTS = ("nodes", "weights", "log_weights", "grid", "classes")


@dataclass(frozen=True)
class Recipe:
    """How a type is built: `make(*parts, **settings, **sizes(tensors), **quadrature)`."""

    make: Callable[..., nn.Module]
    # Attributes that are also arguments, each with the values it may have.
    settings: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    sizes: Callable[[Tensors], dict[str, Any]] = lambda tensors: {}
    # Arguments that are the size of a quadrature rule, each with the buffer that holds the rule.
    quadrature: Mapping[str, str] = field(default_factory=dict)


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def is_finite_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


LATENTS = {"num_latents": _integer(1, 2**31)}


def _active(tensors: Tensors) -> dict[str, Any]:
    dims = tensors.get("active_dims")
    if dims is not None and (dims.dtype != torch.long or dims.ndim != 1):
        raise FileError("active_dims is not a list of columns")
    return {"active_dims": dims}


def _ard(parameter: str) -> Callable[[Tensors], dict[str, Any]]:
    def sizes(tensors: Tensors) -> dict[str, Any]:
        width = tensors[parameter].shape[-1]
        # Left out rather than None, which a periodic kernel does not accept.
        return _active(tensors) | ({} if width == 1 else {"ard_num_dims": width})

    return sizes


def _groups(tensors: Tensors) -> dict[str, Any]:
    groups, count = tensors["groups"], tensors["raw_lengthscale"].shape[-1]
    if (
        groups.dtype != torch.long
        or groups.ndim != 1
        or groups.unique().tolist() != list(range(count))
    ):
        raise FileError("the groups of a kernel's inputs are not those of its lengthscales")
    return {"groups": groups}


def _mixtures(tensors: Tensors) -> dict[str, Any]:
    num_mixtures, _, dims = tensors["raw_mixture_means"].shape
    return _active(tensors) | {"num_mixtures": num_mixtures, "ard_num_dims": dims}


def _batch(parameter: str) -> Callable[[Tensors], dict[str, Any]]:
    return lambda tensors: {"batch_shape": tensors[parameter].shape[:-1]}


def _linear_mean(tensors: Tensors) -> dict[str, Any]:
    return {"input_size": tensors["weights"].shape[0], "bias": "bias" in tensors}


def quadrature_sizes(recipe: Recipe, tensors: Tensors) -> dict[str, int]:
    return {name: tensors[buffer].shape[0] for name, buffer in recipe.quadrature.items()}


def _softmax_likelihood(num_classes: int, mixing: torch.Size | None) -> gl.SoftmaxLikelihood:
    if mixing is None:
        return gl.SoftmaxLikelihood(num_classes=num_classes, mixing_weights=False)
    return gl.SoftmaxLikelihood(num_classes=mixing[0], num_features=mixing[1])


def _mixing(tensors: Tensors) -> dict[str, Any]:
    weights = tensors.get("mixing_weights")
    return {"mixing": None if weights is None else weights.shape}


def _wrapping(kind: type[ol.Likelihood]) -> Callable[..., ol.Likelihood]:
    return lambda likelihood, **arguments: kind(likelihood=likelihood, **arguments)  # pyright: ignore


NODES = {"num_nodes": "quadrature.nodes"}
BOTH_NODES = NODES | {"num_density_nodes": "density_quadrature.nodes"}

RECIPES: dict[type[nn.Module], Recipe] = {
    gk.RBFKernel: Recipe(gk.RBFKernel, sizes=_ard("raw_lengthscale")),
    gk.MaternKernel: Recipe(
        gk.MaternKernel, {"nu": (0.5, 1.5, 2.5).__contains__}, _ard("raw_lengthscale")
    ),
    GroupedRBFKernel: Recipe(GroupedRBFKernel, sizes=_groups),
    GroupedMaternKernel: Recipe(GroupedMaternKernel, {"nu": (0.5, 1.5, 2.5).__contains__}, _groups),
    gk.RQKernel: Recipe(gk.RQKernel, sizes=_ard("raw_lengthscale")),
    gk.PeriodicKernel: Recipe(gk.PeriodicKernel, sizes=_ard("raw_lengthscale")),
    gk.PiecewisePolynomialKernel: Recipe(
        gk.PiecewisePolynomialKernel, {"q": _integer(0, 3)}, _ard("raw_lengthscale")
    ),
    gk.LinearKernel: Recipe(gk.LinearKernel, sizes=_ard("raw_variance")),
    gk.CosineKernel: Recipe(gk.CosineKernel, sizes=_active),
    gk.PolynomialKernel: Recipe(gk.PolynomialKernel, {"power": is_finite_number}, _active),
    gk.ConstantKernel: Recipe(gk.ConstantKernel, sizes=_active),
    gk.SpectralMixtureKernel: Recipe(gk.SpectralMixtureKernel, sizes=_mixtures),
    gk.ScaleKernel: Recipe(gk.ScaleKernel, sizes=_active),
    gk.AdditiveKernel: Recipe(gk.AdditiveKernel),
    gk.ProductKernel: Recipe(gk.ProductKernel),
    gm.ZeroMean: Recipe(gm.ZeroMean),
    gm.ConstantMean: Recipe(gm.ConstantMean),
    gm.LinearMean: Recipe(gm.LinearMean, sizes=_linear_mean),
    gl.GaussianLikelihood: Recipe(gl.GaussianLikelihood, sizes=_batch("noise_covar.raw_noise")),
    gl.LaplaceLikelihood: Recipe(gl.LaplaceLikelihood, sizes=_batch("raw_noise")),
    gl.StudentTLikelihood: Recipe(gl.StudentTLikelihood, sizes=_batch("raw_noise")),
    gl.BetaLikelihood: Recipe(gl.BetaLikelihood, sizes=_batch("raw_scale")),
    gl.NegativeBinomialLikelihood: Recipe(
        gl.NegativeBinomialLikelihood,
        {"num_failures_param": lambda value: type(value) is bool},
        _batch("raw_probs"),
    ),
    gl.PoissonLikelihood: Recipe(gl.PoissonLikelihood),
    gl.BernoulliLikelihood: Recipe(gl.BernoulliLikelihood),
    gl.SoftmaxLikelihood: Recipe(_softmax_likelihood, {"num_classes": _integer(2, 2**31)}, _mixing),
    ol.Gaussian: Recipe(_wrapping(ol.Gaussian), LATENTS),
    ol.Laplace: Recipe(_wrapping(ol.Laplace), LATENTS),
    ol.StudentT: Recipe(_wrapping(ol.StudentT), LATENTS, quadrature={"num_nodes": "grid"}),
    ol.Poisson: Recipe(_wrapping(ol.Poisson), LATENTS, quadrature=BOTH_NODES),
    ol.NegativeBinomial: Recipe(_wrapping(ol.NegativeBinomial), LATENTS, quadrature=BOTH_NODES),
    ol.Beta: Recipe(_wrapping(ol.Beta), LATENTS, quadrature=BOTH_NODES),
    ol.Conditional: Recipe(_wrapping(ol.Conditional), LATENTS, quadrature=BOTH_NODES),
    ol.Bernoulli: Recipe(_wrapping(ol.Bernoulli), LATENTS, quadrature=NODES),
    ol.RobustMax: Recipe(
        ol.RobustMax,
        {"epsilon": lambda value: is_finite_number(value) and 0 < value < 1},
        lambda tensors: {"num_latents": tensors["classes"].shape[0]},
        NODES,
    ),
    ol.Softmax: Recipe(
        _wrapping(ol.Softmax),
        sizes=lambda tensors: {"num_latents": tensors["draws"].shape[1]},
        quadrature={"num_draws": "draws"},
    ),
}
NAMES = {kind.__name__: kind for kind in RECIPES}

CONSTRAINTS: dict[str, Callable[..., Interval]] = {
    "Interval": lambda lower, upper, **transforms: Interval(lower, upper, **transforms),
    "GreaterThan": lambda lower, upper, **transforms: GreaterThan(lower, **transforms),
    "LessThan": lambda lower, upper, **transforms: LessThan(upper, **transforms),
    "Positive": lambda lower, upper, **transforms: Positive(**transforms),
}
TRANSFORMS = {
    "softplus": {"transform": softplus, "inv_transform": inv_softplus},
    "sigmoid": {"transform": torch.sigmoid, "inv_transform": inv_sigmoid},
    "exp": {"transform": torch.exp, "inv_transform": torch.log},
    "none": {"transform": None, "inv_transform": None},
}


@dataclass(frozen=True)
class PriorRecipe:
    """A type of prior, and its numbers: the attribute that holds each, and the argument it is."""

    make: Callable[..., gp.Prior]
    values: Mapping[str, str]


def _prior(make: type[gp.Prior], *names: str, **others: str) -> PriorRecipe:
    return PriorRecipe(make, {name: name for name in names} | others)


PRIORS = {
    "NormalPrior": _prior(gp.NormalPrior, "loc", "scale"),
    "LogNormalPrior": _prior(gp.LogNormalPrior, "loc", "scale"),
    "HalfNormalPrior": _prior(gp.HalfNormalPrior, "scale"),
    "HalfCauchyPrior": _prior(gp.HalfCauchyPrior, "scale"),
    "HorseshoePrior": _prior(gp.HorseshoePrior, "scale"),
    "GammaPrior": _prior(gp.GammaPrior, "concentration", "rate"),
    "UniformPrior": _prior(gp.UniformPrior, low="a", high="b"),
    "SmoothedBoxPrior": _prior(gp.SmoothedBoxPrior, "a", "b", "sigma"),
    "MultivariateNormalPrior": _prior(
        gp.MultivariateNormalPrior, "loc", _unbroadcasted_scale_tril="scale_tril"
    ),
}
