"""The variational posterior: the paper's `bases`, and what they share in `base`.

`projection` has the marginals and the KL; `gaussian` the coordinates of q(f_β) for natural steps,
`factor_gaussian` those for Adam; `natural` and `residual` the rules that move q(f_β) and a_γ;
`predictor` a posterior condensed for prediction; `near_rows` what the rows near x add to it, found
by `neighbors`, `induced` the q(v) that goes with them, and `sites` the same for any likelihood;
`stored_rows` the same for rows in a folder, which `row_store` writes and `cells` searches;
`all_rows` and `solve` the best mean for Gaussian noise, by products with a `kernel_matrix`;
`optimum` the closed forms; `points` where β and γ start.
"""

from orthogp.posterior.base import Basis
from orthogp.posterior.bases import Coupled, Decoupled, DecoupledS, Hybrid, Orthogonal
from orthogp.posterior.factor_gaussian import CovarianceFactor, FactorGaussian
from orthogp.posterior.gaussian import HOLD_FIXED, NaturalGaussian, Whitened
from orthogp.posterior.near_rows import NearPredictor
from orthogp.posterior.points import choose_beta, choose_gamma
from orthogp.posterior.predictor import Predictor, condense
from orthogp.posterior.projection import Projection, kl_divergence, marginals
from orthogp.posterior.rows_in_memory import NearRows
from orthogp.posterior.sites import AnyPredictor, SitePredictor, SiteRows
from orthogp.posterior.stored_rows import StoredPredictor, StoredRows

__all__ = [
    "HOLD_FIXED",
    "AnyPredictor",
    "Basis",
    "Coupled",
    "CovarianceFactor",
    "Decoupled",
    "DecoupledS",
    "FactorGaussian",
    "Hybrid",
    "NaturalGaussian",
    "NearPredictor",
    "NearRows",
    "Orthogonal",
    "Predictor",
    "Projection",
    "SitePredictor",
    "SiteRows",
    "StoredPredictor",
    "StoredRows",
    "Whitened",
    "choose_beta",
    "choose_gamma",
    "condense",
    "kl_divergence",
    "marginals",
]
