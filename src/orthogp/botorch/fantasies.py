"""Observations whose rows differ from batch to batch, which a posterior is conditioned on."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Size, Tensor

from orthogp.linalg import condition_gaussian


@dataclass(frozen=True)
class Fantasies:
    """Inputs and outcomes as they are transformed, and the variances of noise."""

    X: Float[Tensor, "*b f d"]
    Y: Float[Tensor, "*y f m"]
    noise: Float[Tensor, "*n f m"]

    @property
    def batch_shape(self) -> Size:
        return torch.broadcast_shapes(self.X.shape[:-2], self.Y.shape[:-2])

    def before(self, X: Float[Tensor, "*t q d"]) -> Float[Tensor, "*e r d"]:
        """Their inputs and then X, in all batches of either."""
        shapes = (t.shape[:-2] for t in (X, self.X, self.noise))
        batch = torch.broadcast_shapes(*shapes)
        both = [t.expand(*batch, *t.shape[-2:]) for t in (self.X, X.to(self.X))]
        return torch.cat(both, -2)

    def condition(
        self, mean: Float[Tensor, "*b m r"], covariance: Float[Tensor, "*b m r r"]
    ) -> tuple[Tensor, Tensor]:
        """Mean and covariance at the points behind theirs, given them."""
        noise = outputs_first(self.noise, mean[..., : self.X.shape[-2]])
        return condition_gaussian(mean, covariance, self.Y.to(mean).mT, noise)

    def and_then(self, more: "Fantasies") -> "Fantasies":
        """Observations of both, each expanded to the batches of the other."""

        def joined(one: Tensor, other: Tensor) -> Tensor:
            batch = torch.broadcast_shapes(one.shape[:-2], other.shape[:-2])
            return torch.cat([t.expand(*batch, *t.shape[-2:]) for t in (one, other)], -2)

        return Fantasies(
            joined(self.X, more.X), joined(self.Y, more.Y), joined(self.noise, more.noise)
        )

    def subset(self, idcs: list[int]) -> "Fantasies":
        """Of some of the outcomes."""
        return Fantasies(self.X, self.Y[..., idcs], self.noise[..., idcs])


def outputs_first(noise: Tensor, like: Float[Tensor, "*b m q"]) -> Float[Tensor, "*b m q"]:
    """Variances, `[*b, q or 1, m]`, as those of `like`."""
    return noise.to(like).mT.expand(torch.broadcast_shapes(noise.mT.shape, like.shape))
