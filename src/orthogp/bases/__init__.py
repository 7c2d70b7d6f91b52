"""One file a basis; `base` has what they share, `posterior` the coordinates of
q(f_β), `factored` what Adam moves of it."""

from orthogp.bases.base import Basis, Projection, marginals
from orthogp.bases.coupled import Coupled
from orthogp.bases.decoupled import Decoupled, DecoupledS
from orthogp.bases.factored import CovarianceFactor, FactorGaussian
from orthogp.bases.hybrid import Hybrid
from orthogp.bases.orthogonal import Orthogonal
from orthogp.bases.posterior import HOLD_FIXED, NaturalGaussian, Whitened
from orthogp.bases.predictor import Predictor, condense

__all__ = [
    "HOLD_FIXED",
    "Basis",
    "Coupled",
    "CovarianceFactor",
    "Decoupled",
    "DecoupledS",
    "FactorGaussian",
    "Hybrid",
    "NaturalGaussian",
    "Orthogonal",
    "Predictor",
    "Projection",
    "Whitened",
    "condense",
    "marginals",
]
