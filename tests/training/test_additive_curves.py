"""Curves of which the latents are a sum: what is found, and what it becomes as inputs."""

import math

import numpy as np
import pytest
import torch

from orthogp.likelihoods import Bernoulli, Softmax
from orthogp.training import Rows, additive_curves
from orthogp.training.additive_curves import _as_outputs, learn_additive_curves
from orthogp.training.knots import Knots
from problems import several_kinds_of_inputs

D = 3
X = several_kinds_of_inputs(2000).double()


def latents(x: torch.Tensor) -> torch.Tensor:
    """The log odds: a jump along the first input and levels of the last one; the second is idle."""
    level = torch.tensor([2.0, -2.0, 0.0, 2.0, -2.0]).to(x)[(x[:, 2] + 2).long()]
    return torch.stack([3.0 * (x[:, 0].abs() < 0.7) - 1.5, torch.zeros(len(x)), level], dim=1)


def labels(x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(len(x), generator=generator) < latents(x).sum(1).sigmoid()).long()


def found(likelihood=None, **limits):
    likelihood = Bernoulli() if likelihood is None else likelihood
    constant = torch.zeros(likelihood.num_latents, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    return learn_additive_curves(likelihood, Rows(X, labels(X)), constant, generator, **limits)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(2)], ids=["bernoulli", "softmax"])
def test_outputs_follow_the_terms_of_the_latents(likelihood):
    curves = found(likelihood)
    assert curves is not None
    z, terms = curves(X), latents(X)
    assert z.shape == (len(X), D)
    assert z.var(0).mean().item() == pytest.approx(1.0, rel=0.05)
    for j in (0, 2):
        assert abs(np.corrcoef(z[:, j], terms[:, j])[0, 1]) > 0.95
    # The labels say nothing of the second input.
    assert z[:, 1].std() < 0.2 * z[:, [0, 2]].std(0).min()


def test_outputs_are_the_directions_in_which_curves_vary_most():
    """Beside the principal components of the curves' values at all rows."""
    x = X[:, 2:].repeat(1, 2)
    x[:, 0] = (x[:, 0] > 0).to(x)
    knots = Knots.of(x)
    generator = torch.Generator().manual_seed(0)
    curves = torch.randn(2, knots.at.shape[1], 4, generator=generator, dtype=torch.float64)
    made = _as_outputs(knots, curves, x)
    assert made is not None
    # Two levels have one direction.
    assert made.second.tolist() == [1]
    z, hats = made(x), knots.hat_functions(x).unflatten(1, knots.at.shape)
    scales = []
    for j, outputs in enumerate(([0], [1, 2])):
        values = (hats[:, j] @ curves[j]).numpy()
        u, s, _ = np.linalg.svd(values - values.mean(0), full_matrices=False)
        for number, out in enumerate(outputs):
            expected = u[:, number] * s[number]
            scale = float(z[:, out].numpy() @ expected) / (s[number] ** 2)
            np.testing.assert_allclose(z[:, out], scale * expected, atol=1e-8)
            scales.append(abs(scale))
    np.testing.assert_allclose(scales, scales[0])
    assert z.square().mean().item() == pytest.approx(1.0)


def test_there_are_no_more_second_outputs_than_there_is_room_for(monkeypatch):
    x = X[:, 2:].repeat(1, 3)
    knots = Knots.of(x)
    curves = torch.randn(3, knots.at.shape[1], 4, generator=torch.Generator().manual_seed(0))
    curves = curves.double() * torch.tensor([1.0, 3.0, 2.0]).view(3, 1, 1)
    for most, expected in ((3, []), (5, [1, 2]), (9, [0, 1, 2])):
        monkeypatch.setattr(additive_curves, "MOST_OUTPUTS", most)
        made = _as_outputs(knots, curves, x)
        assert made is not None
        assert made.second.tolist() == expected


def test_nothing_is_found_without_time():
    assert found(deadline=-math.inf) is None


def test_the_same_rows_give_the_same_curves():
    first, second = (found(max_steps=5) for _ in range(2))
    assert first is not None
    assert second is not None
    assert torch.equal(first.curves, second.curves)
