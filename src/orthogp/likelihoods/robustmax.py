"""Many classes by the largest latent, with a fixed rate of label errors."""

import math

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.likelihoods.base import ClassificationLikelihood
from orthogp.likelihoods.quadrature import GaussHermite, floored, log_ndtr
from orthogp.likelihoods.targets import require_labels


class RobustMax(ClassificationLikelihood):
    """p(y | f) = 1 − ε where f_y is the largest latent, ε/(K−1) elsewhere; one latent a class.

    The quadrature runs over f_y and the other latents enter as Φ: it loses digits only where a
    rival's variance is far below that of f_y.
    """

    log_concave = False

    def __init__(self, num_latents: int, epsilon: float = 1e-3, num_nodes: int = 20) -> None:
        if num_latents < 2:
            raise ConfigurationError(f"robust-max needs two classes or more, not {num_latents}")
        if not 0 < epsilon < 1:
            raise ConfigurationError(f"epsilon must lie in (0, 1), not {epsilon}")
        super().__init__(num_latents, num_classes=num_latents)
        self.epsilon = epsilon
        self.quadrature = GaussHermite(num_nodes)
        classes = torch.arange(num_latents).unsqueeze(-1)
        self.register_buffer("classes", classes, persistent=False)

    def log_prob_largest(
        self,
        y: Int[Tensor, " n"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        """log P(f_y > f_c for every other c), for one class y a row."""
        row = y.unsqueeze(0)
        f_y = self.quadrature.points(mean.gather(0, row)[0], variance.gather(0, row)[0])
        # P = E_{f_y} Π_{c≠y} Φ((f_y − m_c) / √s_c)
        z = (f_y.unsqueeze(1) - mean) / floored(variance).sqrt()
        log_below = torch.where(self.get_buffer("classes") == y, 0, log_ndtr(z))
        return self.quadrature.log_expectation(log_below.sum(1))

    def expected_log_prob(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        p = self.log_prob_largest(y.long(), mean, variance).exp()
        wrong = math.log(self.epsilon / (self.num_classes - 1))
        return wrong + p * (math.log1p(-self.epsilon) - wrong)

    def log_density(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        return self._flip(self.log_prob_largest(y.long(), mean, variance).exp()).log()

    def probabilities(
        self, mean: Float[Tensor, "c n"], variance: Float[Tensor, "c n"]
    ) -> Float[Tensor, "n k"]:
        y = torch.zeros(mean.shape[1], dtype=torch.long, device=mean.device)
        # A class at a time: all at once would hold q K² n numbers.
        log_p = [self.log_prob_largest(y + k, mean, variance) for k in range(self.num_classes)]
        # The softmax of logarithms normalises what quadrature left unnormalised, without underflow.
        return self._flip(torch.stack(log_p, dim=-1).softmax(-1))

    def _flip(self, p: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The probability of a label, given that of its latent being the largest."""
        return (1 - self.epsilon) * p + self.epsilon / (self.num_classes - 1) * (1 - p)

    def check_targets(self, y: Real[Tensor, "n *outputs"]) -> None:
        require_labels(y, self.num_classes)
