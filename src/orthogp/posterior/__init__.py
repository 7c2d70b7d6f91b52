"""The variational posterior: one file a basis, and what they share in `base`.

`gaussian` has the coordinates of q(f_β) for natural steps, `factor_gaussian` those for Adam;
`natural` and `residual` the rules that move q(f_β) and a_γ; `predictor` a posterior condensed for
prediction; `optimum` the closed forms; `points` where β and γ start.
"""

from orthogp.posterior.base import Basis, Projection, marginals
from orthogp.posterior.coupled import Coupled
from orthogp.posterior.decoupled import Decoupled, DecoupledS
from orthogp.posterior.factor_gaussian import CovarianceFactor, FactorGaussian
from orthogp.posterior.gaussian import HOLD_FIXED, NaturalGaussian, Whitened
from orthogp.posterior.hybrid import Hybrid
from orthogp.posterior.orthogonal import Orthogonal
from orthogp.posterior.points import choose_beta, choose_gamma
from orthogp.posterior.predictor import Predictor, condense

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
    "choose_beta",
    "choose_gamma",
    "condense",
    "marginals",
]
