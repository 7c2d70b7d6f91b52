"""Quantiles moved to where held-out rows say they are."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.special import ndtri

from orthogp.estimators.calibration.search import SMALLEST_SAMPLE

LEVELS = 200


@dataclass(frozen=True)
class QuantileMap:
    """Q_z of every output: linear between knots `(scores, values)`, of slope one beyond them.

    `scores` are Φ⁻¹ of the knots' levels, so the identity is the single knot (0, 0).
    """

    scores: Float[Tensor, " k"]
    values: Float[Tensor, "c k"]

    @staticmethod
    def identity(num_outputs: int) -> "QuantileMap":
        zero = torch.zeros(num_outputs, 1, dtype=torch.float64)
        return QuantileMap(zero[0], zero)

    def __call__(self, levels: Float[Tensor, " q"]) -> Float[Tensor, "q c"]:
        """The normal score to take in place of Φ⁻¹(level)."""
        score = ndtri(levels.double().cpu())
        inside = score.clamp(self.scores[0], self.scores[-1])
        moved = [np.interp(inside, self.scores, values) for values in self.values]
        return torch.from_numpy(np.stack(moved, axis=1)) + (score - inside).unsqueeze(-1)


def fit_quantile_map(scores: Float[Tensor, "c n"]) -> QuantileMap:
    """The map of held-out normal scores; the identity for a small sample."""
    count = scores.shape[1]
    if count < SMALLEST_SAMPLE:
        return QuantileMap.identity(scores.shape[0])
    ordered = scores.double().cpu().sort(dim=1).values
    levels = torch.arange(1, LEVELS, dtype=torch.float64) / LEVELS
    # The i-th smallest of n stands for level i / (n + 1): a future row lies below it that often.
    positions = (count + 1) * levels
    reached = (positions >= 1) & (positions <= count)
    values = [np.interp(positions[reached], np.arange(1, count + 1), row) for row in ordered]
    return QuantileMap(ndtri(levels[reached]), torch.from_numpy(np.stack(values)))
