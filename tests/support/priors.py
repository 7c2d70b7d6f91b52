"""Models whose kernels have priors on their lengthscales."""

import gpytorch.kernels as gk
import gpytorch.priors as gp

from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis
from orthogp.training import Rows


def narrow() -> gp.Prior:
    return gp.NormalPrior(5.0, 1e-3)


def scaled(prior: gp.Prior | None = None, **options) -> gk.ScaleKernel:
    return gk.ScaleKernel(gk.RBFKernel(lengthscale_prior=prior, **options))


def with_prior(rows: Rows, kernel=None, likelihood=None, mean=None) -> VariationalGP:
    kernel = scaled(narrow()) if kernel is None else kernel
    likelihood = Gaussian(1) if likelihood is None else likelihood
    basis = build_basis("orthogonal", kernel, rows.x[:10], rows.x[10:26])
    return VariationalGP(kernel, likelihood, basis, mean).to(rows.x.dtype)
