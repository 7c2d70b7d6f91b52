"""A matrix and curves of single inputs, while they are learned and when they have been.

    z(x) = L x + Σ_j φ_j(x_j)

The first outputs begin as the inputs. An input with few levels has a second one, which begins as a
small curve of it: along a single line not all levels can be as far from each other as labels ask.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.training.hyperparameters import SMALLEST
from orthogp.training.knots import Knots

# Outputs at most, or as many as inputs. The curve of a second output begins as a period of a cosine
# of this amplitude over the knots of its input, in units of the lengthscale.
MOST_OUTPUTS, AMPLITUDE = 64, 0.05
# Of the prior: the standard deviation of the weights that mix inputs, in units of the lengthscales
# of the inputs, and the scale of the rise of a curve from knot to knot, in those of the outputs.
MIXING_SPREAD, RISE_SPREAD = 0.1, 0.05
# Rows that are mapped at a time, where none of them is differentiated.
CHUNK = 512


@dataclass(frozen=True)
class InputMap:
    """z(x) = L x + Σ_j φ_j(x_j), with outputs of variance one on average.

    φ_j has the values `curves[j]` at `knots[j]`, of which the last ones may be repeated.
    """

    linear: Float[Tensor, "z d"]
    knots: Float[Tensor, "d k"]
    curves: Float[Tensor, "d k z"]


class CurvedMap:
    """z = diag(ρ_z)⁻¹ (B diag(ρ) x + Σ_j c_j(x_j)), of which B and c are learned.

    ρ and ρ_z are the inverse lengthscales of the inputs and of the outputs when the map begins: a
    step changes distances as much along any input that matters.
    """

    def __init__(
        self,
        knots: Knots,
        inverse: Float[Tensor, " d"],
        outputs: Float[Tensor, " z"],
        B: Float[Tensor, "z d"],
        curves: Float[Tensor, "d k z"],
    ):
        self.knots, self.inverse, self.outputs = knots, inverse, outputs
        self.B = B.requires_grad_()
        self.c = curves.flatten(0, 1).requires_grad_()

    @staticmethod
    def of_inputs(
        knots: Knots, inverse: Float[Tensor, " d"], second: Int[Tensor, " s"]
    ) -> "CurvedMap":
        """The inputs, and second outputs of some with the lengthscales of these."""
        outputs = torch.cat([inverse, inverse[second]])
        (d, k), z = knots.at.shape, len(outputs)
        curves = inverse.new_zeros(d, k, z)
        curves[second, :, d + torch.arange(len(second))] = AMPLITUDE * knots.waves()[second]
        return CurvedMap(knots, inverse, outputs, torch.eye(z, d).to(inverse), curves)

    @staticmethod
    def of_curves(
        knots: Knots,
        inverse: Float[Tensor, " d"],
        outputs: Float[Tensor, " z"],
        curves: Float[Tensor, "d k z"],
    ) -> "CurvedMap":
        """Curves of the inputs in their place."""
        B = inverse.new_zeros(len(outputs), len(inverse))
        return CurvedMap(knots, inverse, outputs, B, outputs * curves)

    def parameters(self) -> list[Tensor]:
        return [self.B, self.c]

    def __call__(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m z"]:
        bent = self.knots.hat_functions(x) @ self.c
        return ((x * self.inverse) @ self.B.mT + bent) / self.outputs

    def negative_log_prior(self) -> Tensor:
        """Normal for the weights that mix inputs, and of the lengths of rises for curves."""
        mixing = (self.B.tril(-1) + self.B.triu(1)) / MIXING_SPREAD
        rises = self.c.unflatten(0, self.knots.at.shape).diff(dim=1)
        # Lengths, not squares: a curve may rise at once for the price of many small rises.
        lengths = (rises.square().sum(2) + SMALLEST).sqrt()
        return 0.5 * mixing.square().sum() + lengths.sum() / RISE_SPREAD

    @torch.no_grad()
    def move_knots(self, x: Float[Tensor, "n d"]) -> None:
        """To where the curves rise most."""
        curves = self.c.unflatten(0, self.knots.at.shape)
        knots = self.knots.where_curves_rise(x, curves)
        self.c.copy_(self.knots.values(knots.at, curves).flatten(0, 1))
        self.knots = knots

    @torch.no_grad()
    def in_units(self, inverse: Float[Tensor, " z"], x: Float[Tensor, "n d"]) -> InputMap:
        """With outputs in units of their lengthscales, but of variance one on average over x."""
        z = torch.cat([self(part) for part in x.split(CHUNK)])
        scale = inverse / (z * inverse).var(0).mean().sqrt().clamp_min(SMALLEST) / self.outputs
        curves = (self.c * scale).unflatten(0, self.knots.at.shape)
        return InputMap(scale.unsqueeze(1) * self.B * self.inverse, self.knots.at, curves)


def second_outputs(knots: Knots, inverse: Float[Tensor, " d"]) -> Int[Tensor, " s"]:
    """Of the inputs with few levels those that matter most, as far as there is room for outputs."""
    order = inverse.argsort(descending=True, stable=True)
    most = max(0, MOST_OUTPUTS - len(inverse))
    return order[knots.few_levels[order]][:most].sort().values
