"""Expectations and predictive densities over GPyTorch's likelihoods, and robust-max."""

from collections.abc import Callable

import gpytorch.likelihoods as gl

from orthogp.errors import ConfigurationError
from orthogp.likelihoods.base import (
    ClassificationLikelihood,
    Likelihood,
    PredictiveMoments,
    RegressionLikelihood,
)
from orthogp.likelihoods.classification import Bernoulli, RobustMax, Softmax
from orthogp.likelihoods.location import Gaussian, Laplace, StudentT
from orthogp.likelihoods.warped import (
    Beta,
    Conditional,
    NegativeBinomial,
    OneDimensional,
    Poisson,
)

# Each is called with `num_latents`; for robust-max and softmax that is the number of classes.
LIKELIHOODS: dict[str, Callable[[int], Likelihood]] = {
    "gaussian": Gaussian,
    "bernoulli": Bernoulli,
    "robustmax": RobustMax,
    "student_t": StudentT,
    "poisson": Poisson,
    "laplace": Laplace,
    "beta": Beta,
    "negative_binomial": NegativeBinomial,
    "softmax": Softmax,
}

# By exact type: a subclass may have another conditional, which only `Conditional` would see.
ADAPTORS: dict[type[gl.Likelihood], Callable[..., Likelihood]] = {
    gl.GaussianLikelihood: Gaussian,
    gl.BernoulliLikelihood: Bernoulli,
    gl.StudentTLikelihood: StudentT,
    gl.PoissonLikelihood: Poisson,
    gl.LaplaceLikelihood: Laplace,
    gl.BetaLikelihood: Beta,
    gl.NegativeBinomialLikelihood: NegativeBinomial,
    gl.SoftmaxLikelihood: Softmax,
}


def as_likelihood(spec: object, num_latents: int) -> Likelihood:
    """The adaptor for a name of `LIKELIHOODS`, a GPyTorch likelihood, or an adaptor already."""
    if isinstance(spec, Likelihood):
        if spec.num_latents != num_latents:
            raise ConfigurationError(
                f"the likelihood has {spec.num_latents} latent(s) but the model has {num_latents}; "
                "build it with the model's number"
            )
        return spec
    if isinstance(spec, str) and spec in LIKELIHOODS:
        return LIKELIHOODS[spec](num_latents)
    if isinstance(spec, gl.Likelihood) and type(spec) in ADAPTORS:
        return ADAPTORS[type(spec)](num_latents, spec)
    if isinstance(spec, gl._OneDimensionalLikelihood):
        return Conditional(num_latents, spec)
    raise ConfigurationError(
        f"likelihood must be one of {', '.join(LIKELIHOODS)}, a one-dimensional GPyTorch "
        f"likelihood or an orthogp likelihood, not {spec!r}"
    )


__all__ = [
    "ADAPTORS",
    "LIKELIHOODS",
    "Bernoulli",
    "Beta",
    "ClassificationLikelihood",
    "Conditional",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "NegativeBinomial",
    "OneDimensional",
    "Poisson",
    "PredictiveMoments",
    "RegressionLikelihood",
    "RobustMax",
    "Softmax",
    "StudentT",
    "as_likelihood",
]
