"""Many classes by softmax, with a fixed quasi-random draw of the latents."""

import math

import torch
from gpytorch.likelihoods import SoftmaxLikelihood
from jaxtyping import Float, Real
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.likelihoods.base import ClassificationLikelihood
from orthogp.likelihoods.quadrature import floored
from orthogp.likelihoods.targets import require_labels


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

    def _log_softmax(
        self, mean: Float[Tensor, "c n"], variance: Float[Tensor, "c n"]
    ) -> Float[Tensor, "q k n"]:
        # Not `likelihood(f)`: it transposes its input whenever n equals the number of latents.
        f = mean + floored(variance).sqrt() * self.get_buffer("draws").to(mean.dtype)
        weights = self.likelihood.mixing_weights
        return (f if weights is None else weights.to(f) @ f).log_softmax(1)

    def _log_prob(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, "q n"]:
        log_prob = self._log_softmax(mean, variance)
        row = y.long().expand(log_prob.shape[0], 1, -1)
        return log_prob.gather(1, row).squeeze(1)

    def expected_log_prob(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        return self._log_prob(y, mean, variance).mean(0)

    def log_density(
        self,
        y: Real[Tensor, "n *outputs"],
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> Float[Tensor, " n"]:
        log_prob = self._log_prob(y, mean, variance)
        return log_prob.logsumexp(0) - math.log(log_prob.shape[0])

    def probabilities(
        self, mean: Float[Tensor, "c n"], variance: Float[Tensor, "c n"]
    ) -> Float[Tensor, "n k"]:
        return self._log_softmax(mean, variance).exp().mean(0).mT

    def check_targets(self, y: Real[Tensor, "n *outputs"]) -> None:
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
