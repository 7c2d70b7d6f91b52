"""Classification: two classes by probit, many by robust-max or softmax."""

import math

import torch
from gpytorch.likelihoods import BernoulliLikelihood, SoftmaxLikelihood
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.likelihoods.base import ClassificationLikelihood
from orthogp.likelihoods.quadrature import GaussHermite, floored, log_ndtr
from orthogp.likelihoods.targets import Latents, PerRow, RowTargets, require_labels


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

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        sign = 2 * y.to(mean.dtype) - 1
        f = self.quadrature.points(mean[0], variance[0])
        return self.quadrature.expectation(log_ndtr(sign * f))

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        sign = 2 * y.to(mean.dtype) - 1
        return log_ndtr(sign * mean[0] / (1 + variance[0]).sqrt())

    def probabilities(self, mean: Latents, variance: Latents) -> Float[Tensor, "n k"]:
        z = mean[0] / (1 + variance[0]).sqrt()
        return torch.special.ndtr(torch.stack([-z, z], dim=-1))

    def check_targets(self, y: RowTargets) -> None:
        require_labels(y, self.num_classes)


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

    def log_prob_largest(self, y: Int[Tensor, " n"], mean: Latents, variance: Latents) -> PerRow:
        """log P(f_y > f_c for every other c), for one class y a row."""
        row = y.unsqueeze(0)
        f_y = self.quadrature.points(mean.gather(0, row)[0], variance.gather(0, row)[0])
        # P = E_{f_y} Π_{c≠y} Φ((f_y − m_c) / √s_c)
        z = (f_y.unsqueeze(1) - mean) / floored(variance).sqrt()
        log_below = torch.where(self.get_buffer("classes") == y, 0, log_ndtr(z))
        return self.quadrature.log_expectation(log_below.sum(1))

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        p = self.log_prob_largest(y.long(), mean, variance).exp()
        wrong = math.log(self.epsilon / (self.num_classes - 1))
        return wrong + p * (math.log1p(-self.epsilon) - wrong)

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        return self._flip(self.log_prob_largest(y.long(), mean, variance).exp()).log()

    def probabilities(self, mean: Latents, variance: Latents) -> Float[Tensor, "n k"]:
        y = torch.zeros(mean.shape[1], dtype=torch.long, device=mean.device)
        # A class at a time: all at once would hold q K² n numbers.
        log_p = [self.log_prob_largest(y + k, mean, variance) for k in range(self.num_classes)]
        # The softmax of logarithms normalises what quadrature left unnormalised, without underflow.
        return self._flip(torch.stack(log_p, dim=-1).softmax(-1))

    def _flip(self, p: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The probability of a label, given that of its latent being the largest."""
        return (1 - self.epsilon) * p + self.epsilon / (self.num_classes - 1) * (1 - p)

    def check_targets(self, y: RowTargets) -> None:
        require_labels(y, self.num_classes)


class Softmax(ClassificationLikelihood):
    """p(y | f) = softmax(W f)_y, with W = I unless the GPyTorch likelihood mixes.

    Expectations average over `num_draws` points of a scrambled Sobol sequence made normal, fixed at
    construction by `seed` and shared by all rows. −log p is convex in f, but its average over so
    few points need not grow with each variance: the class counts as not log-concave.
    """

    log_concave = False

    def __init__(
        self,
        num_latents: int,
        likelihood: SoftmaxLikelihood | None = None,
        num_draws: int = 64,
        seed: int = 0,
    ) -> None:
        if likelihood is None:
            # With mixing weights GPyTorch draws them from torch's global generator.
            likelihood = SoftmaxLikelihood(num_classes=num_latents, mixing_weights=False)
        if likelihood.num_classes < 2:
            raise ConfigurationError(
                f"softmax needs two classes or more, not {likelihood.num_classes}"
            )
        if likelihood.num_features != num_latents:
            raise ConfigurationError(
                f"SoftmaxLikelihood has {likelihood.num_features} features but the model has "
                f"{num_latents} latents; they must agree"
            )
        super().__init__(num_latents, num_classes=likelihood.num_classes)
        self.likelihood = likelihood
        draws = _normal_draws(num_draws, num_latents, seed).unsqueeze(-1)
        self.register_buffer("draws", draws, persistent=False)

    def _log_softmax(self, mean: Latents, variance: Latents) -> Float[Tensor, "q k n"]:
        # Not `likelihood(f)`: it transposes its input whenever n equals the number of latents.
        f = mean + floored(variance).sqrt() * self.get_buffer("draws").to(mean.dtype)
        weights = self.likelihood.mixing_weights
        return (f if weights is None else weights.to(f) @ f).log_softmax(1)

    def _log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> Float[Tensor, "q n"]:
        log_prob = self._log_softmax(mean, variance)
        row = y.long().expand(log_prob.shape[0], 1, -1)
        return log_prob.gather(1, row).squeeze(1)

    def expected_log_prob(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        return self._log_prob(y, mean, variance).mean(0)

    def log_density(self, y: RowTargets, mean: Latents, variance: Latents) -> PerRow:
        log_prob = self._log_prob(y, mean, variance)
        return log_prob.logsumexp(0) - math.log(log_prob.shape[0])

    def probabilities(self, mean: Latents, variance: Latents) -> Float[Tensor, "n k"]:
        return self._log_softmax(mean, variance).exp().mean(0).mT

    def check_targets(self, y: RowTargets) -> None:
        require_labels(y, self.num_classes)


def _normal_draws(num_draws: int, num_latents: int, seed: int) -> Float[Tensor, "q c"]:
    """Sobol points and their mirror images as standard normals with unit second moment."""
    if num_draws < 2 or num_draws % 2:
        raise ConfigurationError(f"num_draws must be even and positive, not {num_draws}")
    engine = torch.quasirandom.SobolEngine(num_latents, scramble=True, seed=seed)
    uniform = engine.draw(num_draws // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-12, 1 - 1e-12))
    # Mirrored and rescaled: a function that is quadratic in each latent is averaged exactly.
    half = half / half.square().mean(0).sqrt()
    return torch.cat([half, -half])
