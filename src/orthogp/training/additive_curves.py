"""Curves of single inputs of which the latents are a sum: inputs in which near tells of the labels.

    f_c(x) = b_c + Σ_j φ_jc(x_j)

Along its curves two values of an input are near each other where the labels say the same of both,
whatever lies between them. An input becomes the direction in which its curves φ_j vary most over
the classes, and one more where they vary nearly as much in a second one.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.likelihoods import Likelihood
from orthogp.training.batches import Rows
from orthogp.training.curved_map import MOST_OUTPUTS
from orthogp.training.hyperparameters import SMALLEST, climb
from orthogp.training.knots import Knots
from orthogp.training.sites import clamped_density

# Steps between two places of the knots, and rows of a step.
STEPS, RATE, ROUNDS = 100, 0.1, 2
BATCH = {"cpu": 512, "cuda": 2048}
# Of the prior: the scale of the rise of a curve from knot to knot, in units of the latents.
RISE_SPREAD = 0.3
# A second direction varies at least so much, as a share of what the first one does.
SECOND_SHARE = 0.2
# Rows that are mapped at a time.
CHUNK = 4096


@dataclass(frozen=True)
class AdditiveCurves:
    """The values of the outputs at the knots of every input, of variance one on average.

    The first outputs are those of the inputs in their order, the others second ones of the inputs
    `second`.
    """

    knots: Knots
    curves: Float[Tensor, "d k z"]
    second: Int[Tensor, " s"]

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n z"]:
        curves = self.curves.flatten(0, 1)
        return torch.cat([self.knots.hat_functions(part) @ curves for part in x.split(CHUNK)])


def learn_additive_curves(
    likelihood: Likelihood,
    rows: Rows,
    constant: Float[Tensor, " c"],
    generator: torch.Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
) -> AdditiveCurves | None:
    """None where nothing is found along any input.

    `constant` is where b begins, and `deadline` a time of `time.monotonic()`.
    """
    x, knots = rows.x.double(), Knots.of(rows.x.double())
    b = constant.clone().requires_grad_()
    c = x.new_zeros(knots.at.numel(), len(constant)).requires_grad_()
    count = min(len(x), BATCH.get(x.device.type, BATCH["cpu"]))
    steps = STEPS if max_steps is None else min(STEPS, max_steps)

    def objective(step: int) -> Tensor:
        chosen = torch.randint(len(x), (count,), generator=generator).to(x.device)
        latents = (b + knots.hat_functions(x[chosen]) @ c).mT
        some = rows.map(lambda t: t[chosen])
        density = clamped_density(likelihood, some, latents, torch.zeros_like(latents))
        rises = c.unflatten(0, knots.at.shape).diff(dim=1)
        # Lengths, so that a curve stays flat where the labels say nothing.
        lengths = (rises.square().sum(2) + SMALLEST).sqrt()
        return density.mean() - lengths.sum() / (RISE_SPREAD * len(x))

    for number in range(ROUNDS):
        if number:
            with torch.no_grad():
                curves = c.unflatten(0, knots.at.shape)
                moved = knots.where_curves_rise(x, curves)
                c.copy_(knots.values(moved.at, curves).flatten(0, 1))
                knots = moved
        if not climb([b, c], objective, steps, RATE, deadline):
            return None
    return _as_outputs(knots, c.detach().unflatten(0, knots.at.shape), x)


def _as_outputs(
    knots: Knots, curves: Float[Tensor, "d k c"], x: Float[Tensor, "n d"]
) -> AdditiveCurves | None:
    """The curves along the directions in which those of each input vary most."""
    share = sum(knots.hat_functions(part).sum(0) for part in x.split(CHUNK)) / len(x)
    assert isinstance(share, Tensor)
    share = share.unflatten(0, knots.at.shape)
    curves = curves - torch.einsum("dk,dkc->dc", share, curves).unsqueeze(1)
    covariance = torch.einsum("dk,dkc,dke->dce", share, curves, curves)
    variances, directions = torch.linalg.eigh(covariance)
    first = variances[:, -1]
    if not first.max() > SMALLEST:
        return None
    second, room = _second_directions(variances), max(0, MOST_OUTPUTS - len(variances))
    second = second[:room].sort().values
    d, k = knots.at.shape
    outputs = curves.new_zeros(d, k, d + len(second))
    every = torch.arange(d, device=x.device)
    outputs[every, :, every] = torch.einsum("dkc,dc->dk", curves, directions[:, :, -1])
    if len(second):
        number = d + torch.arange(len(second), device=x.device)
        along = torch.einsum("dkc,dc->dk", curves[second], directions[second, :, -2])
        outputs[second, :, number] = along
        first = torch.cat([first, variances[second, -2]])
    return AdditiveCurves(knots, outputs / first.mean().sqrt(), second)


def _second_directions(variances: Float[Tensor, "d c"]) -> Int[Tensor, " s"]:
    """The inputs whose curves vary enough in a second direction, the most first."""
    if variances.shape[1] < 2:
        return torch.arange(0, device=variances.device)
    first, second = variances[:, -1], variances[:, -2]
    order = second.argsort(descending=True, stable=True)
    enough = (second > SECOND_SHARE**2 * first) & (second > SMALLEST)
    return order[enough[order]]
