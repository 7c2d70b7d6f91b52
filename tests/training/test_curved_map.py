"""A matrix and curves: how they begin, their price, and what they are in the end."""

import numpy as np
import pytest
import torch

from orthogp.training import curved_map
from orthogp.training.curved_map import CurvedMap, InputMap, second_outputs
from orthogp.training.knots import Knots
from problems import several_kinds_of_inputs

D = 3
X = several_kinds_of_inputs(400).double()
INVERSE = torch.tensor([1.0, 0.5, 2.0]).double()


def fresh(x: torch.Tensor = X, inverse: torch.Tensor = INVERSE) -> CurvedMap:
    knots = Knots.of(x)
    return CurvedMap(knots, inverse, second_outputs(knots, inverse))


def disturbed() -> CurvedMap:
    found, generator = fresh(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for values in found.parameters():
            values.add_(torch.randn(values.shape, generator=generator))
    return found


def by_interpolation(found: InputMap, x: torch.Tensor) -> np.ndarray:
    """L x + Σ_j φ_j(x_j), one output of one curve after the other."""
    z = (x @ found.linear.mT).numpy()
    for j, (knots, curve) in enumerate(zip(found.knots, found.curves, strict=True)):
        knots, first = np.unique(knots.numpy(), return_index=True)
        for out in range(z.shape[1]):
            z[:, out] += np.interp(x[:, j].numpy(), knots, curve[first, out].numpy())
    return z


def test_a_map_begins_as_the_identity_and_small_curves():
    found = fresh()
    z = found(X)
    torch.testing.assert_close(z[:, :D], X)
    second = (z[:, D:] * INVERSE).abs()
    assert second.max().item() == pytest.approx(curved_map.AMPLITUDE, rel=0.05)
    # Up and down again, once an input: a rise of no length has a price of nearly nothing.
    price = 4.0 * curved_map.AMPLITUDE / curved_map.RISE_SPREAD
    assert found.negative_log_prior().item() == pytest.approx(D * price, rel=0.05)


def test_second_outputs_are_of_relevant_inputs_with_more_than_two_levels(monkeypatch):
    """Their curves are a period of a cosine over the knots of an input."""
    monkeypatch.setattr(curved_map, "MOST_OUTPUTS", 6)
    x = torch.cat([X, (X[:, :1] > 0).to(X)], dim=1)
    inverse = torch.tensor([1.0, 0.3, 0.5, 2.0]).double()
    found = fresh(x, inverse)
    z = found(x).detach()
    assert z.shape[1] == 6
    for out, source in ((4, 0), (5, 2)):
        knots = x[:, source].unique() if source == 2 else found.knots.at[source]
        wave = np.cos(2.0 * np.pi * np.linspace(0.0, 1.0, len(knots)))
        expected = np.interp(x[:, source].numpy(), knots.numpy(), wave)
        expected *= curved_map.AMPLITUDE / inverse[source].item()
        np.testing.assert_allclose(z[:, out], expected, atol=1e-12)


def test_as_many_outputs_as_inputs_where_there_is_no_room_for_more(monkeypatch):
    monkeypatch.setattr(curved_map, "MOST_OUTPUTS", 2)
    torch.testing.assert_close(fresh()(X), X)


def test_a_map_whose_knots_move_maps_as_before():
    x = several_kinds_of_inputs(2000).double()
    found = fresh(x)
    curves = torch.randn(D, len(found.knots.at[0]), 2 * D, dtype=torch.float64)
    with torch.no_grad():
        found.c.copy_(0.1 * curves.cumsum(1).flatten(0, 1))
    before = found(x).detach()
    found.move_knots(x)
    assert (found(x) - before).square().mean().sqrt() < 0.1 * before.std()


def test_the_price_of_a_map():
    """½ Σ_{i≠j} B_ij²/s² and the lengths of all rises."""
    found = disturbed()
    B, curves = found.B.detach().numpy(), found.c.detach().numpy()
    mixing = B[~np.eye(2 * D, D, dtype=bool)] / curved_map.MIXING_SPREAD
    rises = np.diff(curves.reshape(*found.knots.at.shape, 2 * D), axis=1)
    length = np.linalg.norm(rises, axis=2).sum() / curved_map.RISE_SPREAD
    assert found.negative_log_prior().item() == pytest.approx(0.5 * (mixing**2).sum() + length)


@pytest.mark.parametrize("x", [X, 3.0 * several_kinds_of_inputs(50, seed=1).double()])
def test_the_map_is_a_product_and_curves(x):
    """What is learned with and what it ends as differ by a constant and by scales of outputs."""
    found = disturbed()
    expected = by_interpolation(found.in_units(torch.ones(2 * D).double(), X), x)
    z = found(x).detach().numpy()
    scale = expected.std(axis=0) / z.std(axis=0)
    np.testing.assert_allclose(expected, z * scale, atol=1e-9)


def test_outputs_are_in_units_of_lengthscales():
    found, inverse = disturbed(), torch.linspace(0.2, 3.0, 2 * D).double()
    z = by_interpolation(found.in_units(inverse, X), X)
    assert z.var(axis=0).mean() == pytest.approx(1.0, rel=0.01)
    ratio = z.std(axis=0) / (found(X).detach() * inverse).numpy().std(axis=0)
    np.testing.assert_allclose(ratio, ratio[0])
