"""A matrix and curves: how they begin, their price, and what they are in the end."""

import numpy as np
import pytest
import torch

from orthogp.training import curved_map
from orthogp.training.curved_map import CurvedMap, InputMap, second_outputs
from orthogp.training.knots import Knots
from problems import several_kinds_of_inputs

D, SECOND = 4, [2, 3]
Z = D + len(SECOND)


def table(n: int, seed: int = 0) -> torch.Tensor:
    """Two numbers, and columns of five and three levels."""
    x = several_kinds_of_inputs(n, seed).double()
    return torch.cat([x, x[:, :1].round().clamp(-1.0, 1.0)], dim=1)


X = table(400)
INVERSE = torch.tensor([1.0, 0.5, 2.0, 0.7]).double()


def fresh(x: torch.Tensor = X, inverse: torch.Tensor = INVERSE) -> CurvedMap:
    knots = Knots.of(x)
    return CurvedMap.of_inputs(knots, inverse, second_outputs(knots, inverse))


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
    assert z.shape[1] == Z
    for out, source in enumerate(SECOND, start=D):
        levels = X[:, source].unique()
        wave = np.cos(2.0 * np.pi * np.linspace(0.0, 1.0, len(levels)))
        expected = np.interp(X[:, source].numpy(), levels.numpy(), wave)
        expected *= curved_map.AMPLITUDE / INVERSE[source].item()
        np.testing.assert_allclose(z[:, out].detach(), expected, atol=1e-12)
    # Up and down again, once for each of them: a rise of no length has a price of nearly nothing.
    price = 4.0 * curved_map.AMPLITUDE / curved_map.RISE_SPREAD
    assert found.negative_log_prior().item() == pytest.approx(len(SECOND) * price, rel=0.01)


def test_a_map_that_begins_with_curves_has_their_values():
    """Whatever the lengthscales of their outputs are."""
    knots = Knots.of(X)
    curves = torch.randn(D, knots.at.shape[1], Z, generator=torch.Generator().manual_seed(0))
    curves, outputs = curves.double(), torch.linspace(0.1, 3.0, Z).double()
    found = CurvedMap.of_curves(knots, INVERSE, outputs, curves)
    as_map = InputMap(torch.zeros(Z, D).double(), knots.at, curves)
    np.testing.assert_allclose(found(X).detach(), by_interpolation(as_map, X))


@pytest.mark.parametrize(("room", "expected"), [(0, []), (1, [3]), (2, [2, 3]), (9, [2, 3])])
def test_second_outputs_are_of_relevant_inputs_with_few_levels(room, expected, monkeypatch):
    x = torch.cat([X, (X[:, :1] > 0).to(X)], dim=1)
    monkeypatch.setattr(curved_map, "MOST_OUTPUTS", D + 1 + room)
    inverse = torch.tensor([3.0, 0.2, 0.3, 0.5, 2.0]).double()
    assert second_outputs(Knots.of(x), inverse).tolist() == expected


def test_a_map_whose_knots_move_maps_as_before():
    x = table(2000)
    found, generator = fresh(x), torch.Generator().manual_seed(0)
    curves = torch.randn(D, found.knots.at.shape[1], Z, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        found.c.copy_(0.1 * curves.cumsum(1).flatten(0, 1))
    before = found(x).detach()
    found.move_knots(x)
    assert (found(x) - before).square().mean().sqrt() < 0.1 * before.std()


def test_the_price_of_a_map():
    """½ Σ_{i≠j} B_ij²/s² and the lengths of all rises."""
    found = disturbed()
    B, curves = found.B.detach().numpy(), found.c.detach().numpy()
    mixing = B[~np.eye(Z, D, dtype=bool)] / curved_map.MIXING_SPREAD
    rises = np.diff(curves.reshape(*found.knots.at.shape, Z), axis=1)
    length = np.linalg.norm(rises, axis=2).sum() / curved_map.RISE_SPREAD
    assert found.negative_log_prior().item() == pytest.approx(0.5 * (mixing**2).sum() + length)


@pytest.mark.parametrize("x", [X, 3.0 * table(50, seed=1)])
def test_the_map_is_a_product_and_curves(x):
    """What is learned with and what it ends as differ by a constant and by scales of outputs."""
    found = disturbed()
    expected = by_interpolation(found.in_units(torch.ones(Z).double(), X), x)
    z = found(x).detach().numpy()
    scale = expected.std(axis=0) / z.std(axis=0)
    np.testing.assert_allclose(expected, z * scale, atol=1e-9)


def test_outputs_are_in_units_of_lengthscales():
    found, inverse = disturbed(), torch.linspace(0.2, 3.0, Z).double()
    z = by_interpolation(found.in_units(inverse, X), X)
    assert z.var(axis=0).mean() == pytest.approx(1.0, rel=0.01)
    ratio = z.std(axis=0) / (found(X).detach() * inverse).numpy().std(axis=0)
    np.testing.assert_allclose(ratio, ratio[0])
