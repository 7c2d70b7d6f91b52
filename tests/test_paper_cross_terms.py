"""The published code's estimate of the KL: its definition, and that it is of the same KL."""

import numpy as np
import pytest
import torch

from orthogp.bases import Orthogonal
from orthogp.model import VariationalGP
from orthogp.paper.cross_terms import CrossTerms
from problems import Problem, make_model, problem, reference_posteriors

HELD = [("orthogonal", "whitened"), ("orthogonal", "unwhitened")]
HELD += [("orthogonal-natural", "whitened"), ("orthogonal-natural", "unwhitened")]


def two_outputs() -> tuple[Problem, torch.Tensor]:
    p = problem(g=6)
    return p, torch.stack([p.y, p.y.flip(0)], 1)


def with_cross_terms(model: VariationalGP) -> VariationalGP:
    basis = model.basis
    assert isinstance(basis, Orthogonal)
    crossed = CrossTerms(basis.beta, basis.gamma, basis.q)
    crossed.a_gamma = basis.a_gamma
    model.basis = crossed
    return model


@pytest.mark.parametrize(("kind", "held"), HELD)
def test_it_is_the_quadratic_form_sampled_on_one_side(kind, held):
    p, y = two_outputs()
    model = make_model(kind, p, latents=2, hold_fixed=held)
    columns, scale = torch.tensor([1, 4]), 6 / 2
    projected = model.bound(p.x, y, columns=columns).kl.item()
    expected = 0.0
    for q in reference_posteriors(model, p):
        K = np.block([[q.K_g, q.K_bg.T], [q.K_bg, q.K_b]])
        sampled = np.where(np.isin(np.arange(6), columns), scale * q.a_gamma, 0.0)
        a, one_side = np.r_[q.a_gamma, q.a_beta], np.r_[sampled, q.a_beta]
        # In the place of this form the projected estimate has Σ a_j r(γ_j) + m_βᵀ K_β⁻¹ m_β.
        m_beta = q.K_bg @ q.a_gamma + q.K_b @ q.a_beta
        r = q.K_g @ q.a_gamma - q.K_bg.T @ np.linalg.solve(q.K_b, q.K_bg @ q.a_gamma)
        own = sampled @ r + m_beta @ np.linalg.solve(q.K_b, m_beta)
        expected += 0.5 * (one_side @ K @ a - own)
    crossed = with_cross_terms(model).bound(p.x, y, columns=columns).kl.item()
    assert abs(expected) > 1e-3
    assert crossed - projected == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("kind", "held"), HELD)
def test_its_mean_over_the_columns_is_the_kl_and_so_are_its_gradients(kind, held):
    p, y = two_outputs()
    model = with_cross_terms(make_model(kind, p, latents=2, hold_fixed=held))
    wanted = [t for t in model.parameters() if t.requires_grad]

    def gradients(columns: torch.Tensor | None) -> list[torch.Tensor]:
        bound = model.bound(p.x, y, columns=columns)
        inner = [bound.q.v] if kind.endswith("natural") else []
        found = torch.autograd.grad(bound.kl, [*wanted, *inner], materialize_grads=True)
        return [bound.kl.detach(), *found]

    whole = gradients(None)
    parts = [gradients(columns) for columns in torch.arange(6).split(2)]
    for exact, *estimates in zip(whole, *parts, strict=True):
        torch.testing.assert_close(sum(estimates) / 3, exact, rtol=1e-8, atol=1e-10)
    assert (parts[0][0] - whole[0]).abs() > 1e-3
