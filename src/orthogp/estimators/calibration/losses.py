"""Minus the mean log density of residuals, with its gradient in closed form.

A residual has the variance v = κ_s s + κ_σ σ² of its row, or v is the variance parameter of
Student's t with 1/ν = `tail`.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Residuals:
    """Squared residuals of rows, and s and σ² of each."""

    squares: Float[np.ndarray, " n"]
    parts: Float[np.ndarray, "2 n"]

    @staticmethod
    def of(residual: Tensor, latent: Tensor, noise: Tensor) -> "Residuals":
        r, s, sigma2 = (t.detach().double().cpu().numpy() for t in (residual, latent, noise))
        return Residuals(r * r, np.stack([s, sigma2]))

    def __len__(self) -> int:
        return len(self.squares)

    def gaussian_loss(
        self, scales: Float[np.ndarray, " 2"]
    ) -> tuple[float, Float[np.ndarray, " 2"]]:
        """The loss of N(0, v), and its gradient with respect to (κ_s, κ_σ)."""
        v = self._variances(scales)
        ratio = self.squares / v
        loss = 0.5 * (math.log(2 * math.pi) + np.log(v).mean() + ratio.mean())
        return float(loss), 0.5 * (self.parts * ((1.0 - ratio) / v)).mean(1)

    def student_loss(
        self, scales: Float[np.ndarray, " 2"], tail: float
    ) -> tuple[float, Float[np.ndarray, " 3"]]:
        """The loss of Student's t, and its gradient with respect to (κ_s, κ_σ, tail)."""
        # Imported here: it takes a while.
        from scipy.special import digamma, gammaln

        v, half = self._variances(scales), 0.5 / tail
        ratio = self.squares / v
        q = tail * ratio
        logs, weights = np.log1p(q).mean(), (half + 0.5) / (1.0 + q)
        level = gammaln(half + 0.5) - gammaln(half) - 0.5 * math.log(math.pi / tail)
        loss = 0.5 * np.log(v).mean() + (half + 0.5) * logs - level
        by_scales = (self.parts * ((0.5 - weights * q) / v)).mean(1)
        # ∂(half)/∂tail = −half / tail
        by_half = logs - digamma(half + 0.5) + digamma(half)
        by_tail = -half / tail * by_half - 0.5 / tail + (weights * ratio).mean()
        return float(loss), np.append(by_scales, by_tail)

    def _variances(self, scales: Float[np.ndarray, " 2"]) -> Float[np.ndarray, " n"]:
        # No matrix product: threads would take longer to start than it takes.
        return scales[0] * self.parts[0] + scales[1] * self.parts[1]
