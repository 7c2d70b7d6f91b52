"""Gaussian expectations of functions of one variable, and the two numerical guards they need."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

# Where the tail of Φ begins, and the levels of the fraction that give ten digits from there on.
TAIL, LEVELS = 10.0, 6


def floored(variance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The variance, at least ten times the dtype's rounding; its gradient passes unchanged."""
    # Below the floor the nodes m + √s x round to m and ∂/∂s is noise of size rounding/√s. A plain
    # clamp would return 0 there, which a natural step reads as "this row carries no information".
    floor = 10 * torch.finfo(variance.dtype).eps
    return variance + (variance.clamp_min(floor) - variance).detach()


class _LogNdtr(torch.autograd.Function):
    """log Φ with a derivative that keeps its digits in the left tail.

    torch.special.log_ndtr differentiates as exp(−x²/2 − log Φ(x)): two numbers of size x²/2
    cancel, and in float32 few digits are left at x = −1000.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.special.log_ndtr(x)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor) -> Tensor:
        x, value = ctx.saved_tensors
        # φ(x) / Φ(x), in the tail t = −x by its continued fraction t + 1/(t + 2/(t + …)). Not by
        # torch.special.erfcx, which takes seconds to compile at its first use on a GPU.
        t = (-x).clamp_min(TAIL)
        tail = t
        for level in range(LEVELS, 0, -1):
            tail = t + level / tail
        ratio = (-0.5 * x.square() - value).exp() / math.sqrt(2 * math.pi)
        return grad_outputs[0] * torch.where(x < -TAIL, tail, ratio)


def log_ndtr(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log Φ(x), finite with finite gradients for every finite x."""
    return _LogNdtr.apply(x)


class GaussHermite(nn.Module):
    """E g(f) for f ~ N(m, s), exact when g is a polynomial of degree below twice the nodes.

    The rule is symmetric, so for a convex g the result never falls when s grows, whatever the
    number of nodes.
    """

    nodes: Tensor
    weights: Tensor
    log_weights: Tensor

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
        weights = weights / weights.sum()
        # Derived from the constructor's argument, so no part of a checkpoint.
        for name, values in {
            "nodes": nodes,
            "weights": weights,
            "log_weights": np.log(weights),
        }.items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def _apply(self, fn, recurse=True):
        # A cast of the model leaves the rule in float64; only its device follows.
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(fn(buffer[:0]).device)
        return self

    def points(
        self, mean: Float[Tensor, "*shape"], variance: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "q *shape"]:
        nodes = self.nodes.to(mean.dtype).view(-1, *[1] * mean.ndim)
        return mean + floored(variance).sqrt() * nodes

    def expectation(self, values: Float[Tensor, "q *shape"]) -> Float[Tensor, "*shape"]:
        return torch.tensordot(self.weights.to(values.dtype), values, dims=1)

    def log_expectation(self, log_values: Float[Tensor, "q *shape"]) -> Float[Tensor, "*shape"]:
        log_weights = self.log_weights.to(log_values.dtype)
        return (log_values + log_weights.view(-1, *[1] * (log_values.ndim - 1))).logsumexp(0)
