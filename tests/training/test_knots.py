"""Curves of single inputs: where their knots are, and that moving them leaves them as they are."""

import numpy as np
import torch

from orthogp.training import knots
from orthogp.training.knots import Knots
from problems import several_kinds_of_inputs

D = 3


def test_knots_are_levels_or_quantiles():
    x = several_kinds_of_inputs(500).double()
    found = Knots.of(x)
    assert found.at.shape == (D, knots.MOST_KNOTS)
    assert found.at[2].unique().tolist() == [-2, -1, 0, 1, 2]
    for j in range(D):
        assert found.at[j, [0, -1]].tolist() == [x[:, j].min(), x[:, j].max()]
        assert (found.at[j].diff() >= 0).all()
    shares = [(x[:, 0] <= at).double().mean() for at in found.at[0]]
    np.testing.assert_allclose(shares, np.linspace(0, 1, len(shares)), atol=0.005)


def test_knots_of_many_inputs_are_few(monkeypatch):
    monkeypatch.setattr(knots, "MOST_KNOTS_IN_ALL", 12)
    assert Knots.of(several_kinds_of_inputs(500).double()).at.shape == (D, 4)


def test_one_level_has_no_curve():
    found = Knots.of(torch.ones(10, 1).double())
    assert torch.equal(
        found.hat_functions(torch.tensor([[1.0], [5.0]]).double()).sum(1), torch.ones(2)
    )


def test_knots_move_to_where_curves_rise():
    x = several_kinds_of_inputs(2000).double()
    before = Knots.of(x)
    curves = torch.zeros(D, before.at.shape[1], 2).double()
    # The first input has one rise, between two knots; the last one, of five levels, several.
    step = int((before.at[0] < 0.4).sum())
    curves[0, step:] = 1.0
    curves[2] = torch.randn(curves.shape[1:], generator=torch.Generator().manual_seed(0))
    after = before.where_curves_rise(x, curves)
    low, high = before.at[0, step - 1 : step + 1]
    inside = ((after.at[0] >= low) & (after.at[0] <= high)).sum()
    assert inside >= 0.6 * after.at.shape[1]
    assert after.at[0, [0, -1]].tolist() == [x[:, 0].min(), x[:, 0].max()]
    assert torch.equal(after.at[2], before.at[2])
    # A flat curve leaves the quantiles.
    assert (after.at[1].unique() - before.at[1].unique()).abs().max() < 0.05
    # The curves stay what they are, but for what lies between knots.
    values = before.values(after.at, curves)
    for j in range(D):
        for z in range(2):
            old, new = (np.unique(k.at[j], return_index=True) for k in (before, after))
            expected = np.interp(new[0], old[0], curves[j, old[1], z])
            np.testing.assert_allclose(values[j, new[1], z], expected, atol=1e-9)
