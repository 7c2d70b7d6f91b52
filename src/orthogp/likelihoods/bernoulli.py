"""Two classes through the probit link."""

import torch
from gpytorch.likelihoods import BernoulliLikelihood
from jaxtyping import Float, Real
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.likelihoods.base import ClassificationLikelihood
from orthogp.likelihoods.quadrature import GaussHermite, log_ndtr
from orthogp.likelihoods.targets import require_labels


class Bernoulli(ClassificationLikelihood):
    """p(y = 1 | f) = Φ(f); labels are 0 and 1."""

    log_concave = True

    def __init__(
        self,
        num_latents: int = 1,
        likelihood: BernoulliLikelihood | None = None,
        num_nodes: int = 20,
    ) -> None:
        if num_latents != 1:
            raise ConfigurationError(
                f"a Bernoulli likelihood has one latent, not {num_latents}; use 'robustmax' or "
                "'softmax' for more than two classes"
            )
        super().__init__(num_latents, num_classes=2)
        self.likelihood = likelihood or BernoulliLikelihood()
        self.quadrature = GaussHermite(num_nodes)

    def expected_log_prob(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        sign = 2 * y.to(mean.dtype) - 1
        f = self.quadrature.points(mean[0], variance[0])
        return self.quadrature.expectation(log_ndtr(sign * f))

    def log_density(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        sign = 2 * y.to(mean.dtype) - 1
        return log_ndtr(sign * mean[0] / (1 + variance[0]).sqrt())

    def probabilities(
        self, mean: Float[Tensor, "c n"], variance: Float[Tensor, "c n"]
    ) -> Float[Tensor, "n k"]:
        z = mean[0] / (1 + variance[0]).sqrt()
        return torch.special.ndtr(torch.stack([-z, z], dim=-1))

    def check_targets(self, y: Real[Tensor, "n *outputs"]) -> None:
        require_labels(y, self.num_classes)
