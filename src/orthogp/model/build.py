"""Models at their prior: the default kernel, and a basis by the paper's names."""

import math
from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import ConfigurationError, OrthogpError
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.grouped import GroupedMaternKernel, GroupedRBFKernel, group_means
from orthogp.linalg import factorise_robustly
from orthogp.posterior import (
    Basis,
    Coupled,
    Decoupled,
    FactorGaussian,
    Hybrid,
    NaturalGaussian,
    Orthogonal,
)

# Relative to the mean of diag K_β. float32 blocks carry errors that a smaller one would amplify.
DEFAULT_JITTER = {torch.float32: 1e-5, torch.float64: 1e-6}


def default_kernel(
    num_inputs: int,
    ard: bool = False,
    variance: float = 1.0,
    spread: Float[Tensor, " d"] | None = None,
    groups: Sequence[int] | None = None,
) -> Kernel:
    """Matérn-5/2 with lengthscale 0.1 √D plus RBF with lengthscale √D, as in the paper.

    `spread` shortens the former, input by input. With `groups`, the number of a group for every
    input, those of a group share a lengthscale, and D is the number of groups.
    """
    if groups is not None and ard:
        members = torch.as_tensor(groups)
        num_inputs = int(members.max()) + 1
        spread = None if spread is None else group_means(spread, members)
        parts: tuple[Kernel, Kernel] = GroupedMaternKernel(members), GroupedRBFKernel(members)
    else:
        dims = num_inputs if ard else None
        parts = MaternKernel(2.5, ard_num_dims=dims), RBFKernel(ard_num_dims=dims)
    rough, smooth = map(ScaleKernel, parts)
    rough.base_kernel.lengthscale = 0.1 * num_inputs**0.5 * (1.0 if spread is None else spread)
    smooth.base_kernel.lengthscale = num_inputs**0.5
    rough.outputscale = smooth.outputscale = variance
    return rough + smooth


def build_basis(
    name: str,
    kernel: Kernel,
    beta: Float[Tensor, "b d"],
    gamma: Float[Tensor, "g d"],
    num_latents: int = 1,
    optimizer: str = "natural",
    hold_fixed: str = "unwhitened",
    jitter: float | None = None,
) -> Basis:
    """One of the paper's six methods, (basis, optimizer), at the prior of `kernel`."""
    if name not in ("coupled", "orthogonal", "hybrid", "decoupled"):
        raise ConfigurationError(
            f"basis is {name!r}; expected coupled, orthogonal, hybrid or decoupled"
        )
    if optimizer not in ("natural", "adam"):
        raise ConfigurationError(f"optimizer is {optimizer!r}; expected natural or adam")
    if optimizer == "natural" and name in ("hybrid", "decoupled"):
        raise ConfigurationError(
            f"the {name} basis has no natural steps; use optimizer='adam' or another basis"
        )
    covariance = Covariance(kernel)
    require_evaluable(covariance, beta)
    jitter = chosen_jitter(jitter, beta.dtype)
    if name == "decoupled":
        return Decoupled(beta, gamma, num_latents)
    with torch.no_grad():
        points = beta.double()
        factor = factorise_robustly(covariance.block(points, points), jitter)
    if optimizer == "natural":
        q = NaturalGaussian(factor, num_latents, hold_fixed)
    else:
        q = FactorGaussian(factor, num_latents, hold_fixed, beta.dtype)
    if name == "coupled":
        return Coupled(beta, q)
    if name == "orthogonal":
        return Orthogonal(beta, gamma, q)
    assert isinstance(q, FactorGaussian)
    return Hybrid(beta, gamma, q)


@torch.no_grad()
def require_evaluable(covariance: Covariance, points: Float[Tensor, "m d"]) -> None:
    """Refuses a kernel that is made for another number of inputs than the points have."""
    inputs = points.shape[1]
    for term in covariance.terms or ():
        count = term.kernel.lengthscale.numel()
        if count not in (1, inputs):
            raise ConfigurationError(
                f"the kernel has {count} lengthscales and the points have {inputs} input(s); build "
                f"it with ard_num_dims={inputs} or without"
            )
    try:
        covariance.block(points[:1].double(), points[:1].double())
    except OrthogpError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ConfigurationError(
            f"the kernel cannot be evaluated at points with {inputs} input(s) ({reason:.200}); "
            "build it for as many"
        ) from error


def chosen_jitter(jitter: float | None, dtype: torch.dtype) -> float:
    """The one given, None for the default of the dtype."""
    if jitter is None:
        return DEFAULT_JITTER[dtype]
    if not 0.0 <= jitter < math.inf:
        raise ConfigurationError(f"jitter is {jitter!r}; expected a number, zero or more")
    return jitter
