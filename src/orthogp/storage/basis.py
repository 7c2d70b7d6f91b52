"""A basis as JSON and tensors, and back."""

from typing import Any

import torch

from orthogp.errors import ConfigurationError, FileError
from orthogp.linalg import factorise
from orthogp.posterior import (
    Basis,
    Coupled,
    CovarianceFactor,
    Decoupled,
    DecoupledS,
    FactorGaussian,
    Hybrid,
    NaturalGaussian,
    Orthogonal,
)
from orthogp.storage.modules import Description, fill, tensors_of
from orthogp.storage.recipes import Tensors

BASES = {kind.__name__: kind for kind in (Coupled, Orthogonal, Hybrid, Decoupled, DecoupledS)}
# Of each kind of q(f_β), the tensor with one matrix a latent function.
MATRICES = {
    "NaturalGaussian": "q.precision",
    "FactorGaussian": "q.covariance.F",
    "CovarianceFactor": "S.F",
    None: "F",
}


def describe_basis(basis: Basis) -> Description:
    """The type of a basis, that of its q(f_β), and its coordinates held fixed."""
    if type(basis) not in BASES.values():
        raise ConfigurationError(
            f"a {type(basis).__name__} cannot be saved; those that can are {', '.join(BASES)}"
        )
    q = basis.S if isinstance(basis, DecoupledS) else getattr(basis, "q", None)
    gaussian = q.covariance if isinstance(q, FactorGaussian) else q
    return {
        "type": type(basis).__name__,
        "q": None if q is None else type(q).__name__,
        "hold_fixed": None if gaussian is None else gaussian.hold_fixed,
    }


def restore_basis(description: Description, tensors: Tensors) -> Basis:
    """The basis described, holding these tensors; `FileError` where they do not agree."""
    name, kind, hold_fixed = (description[key] for key in ("type", "q", "hold_fixed"))
    beta, gamma, a_gamma = (tensors[key] for key in ("beta", "gamma", "a_gamma"))
    if beta.dtype not in (torch.float32, torch.float64):
        raise FileError(f"its points are {beta.dtype}; float32 or float64 is expected")
    # Checked before anything of these sizes is made.
    (b, d), g, (c, *square) = beta.shape, gamma.shape[0], tensors[MATRICES[kind]].shape
    if min(b, c, d) < 1 or square != [b, b] or gamma.shape != (g, d) or a_gamma.shape != (c, g):
        raise FileError("the sizes of its points and of q(f_β) do not agree")
    # Any factor of this size: the values come with the other tensors.
    factor = factorise(torch.eye(b, dtype=torch.float64), jitter=0.0)
    q: Any = None
    if kind == "NaturalGaussian":
        q = NaturalGaussian(factor, c, hold_fixed)
    elif kind == "FactorGaussian":
        q = FactorGaussian(factor, c, hold_fixed, beta.dtype)
    elif kind == "CovarianceFactor":
        q = CovarianceFactor(factor, c, hold_fixed, beta.dtype)
    arguments = {
        "Coupled": (beta, q),
        "Orthogonal": (beta, gamma, q),
        "Hybrid": (beta, gamma, q),
        "Decoupled": (beta, gamma, c),
        "DecoupledS": (beta, gamma, q),
    }
    basis = BASES[name](*arguments[name])
    # Unlike a kernel's, these tensors work together in one dtype, and q's in float64.
    for key, value in tensors_of(basis).items():
        if key in tensors and tensors[key].dtype != value.dtype:
            raise FileError(f"{key} is {tensors[key].dtype}; {value.dtype} is expected")
    fill(basis, tensors)
    return basis
