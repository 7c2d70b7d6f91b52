"""The bound is a bound: it never exceeds the exact evidence, whatever the parameters."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from orthogp.likelihoods import Bernoulli
from orthogp.model import VariationalGP
from orthogp.posterior.residual import projected_covariance
from problems import KINDS, Problem, make_model, problem, randomise, reference_terms, to_numpy


def exact_evidence(p: Problem, noise: float) -> float:
    x = to_numpy(p.x)
    return reference.log_evidence(
        reference.kernel_block(reference_terms(p.kernel), x, x), to_numpy(p.y), noise
    )


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 12),
    b=st.integers(1, 5),
    g=st.integers(0, 6),
    size=st.floats(0.0, 3.0),
    noise=st.floats(0.01, 3.0),
    jitter=st.sampled_from([1e-8, 1e-4, 1e-1]),
    kind=st.sampled_from(KINDS),
)
def test_never_above_the_evidence(seed, n, b, g, size, noise, jitter, kind):
    p = problem(seed=seed, n=n, b=b, g=g)
    model = make_model(kind, p, noise=noise, jitter=jitter, random=False)
    randomise(model.basis, seed=seed, size=size)
    bound = model.bound(p.x, p.y).value.item()
    assert bound <= exact_evidence(p, noise) + 1e-7 * (1 + abs(bound))


@pytest.mark.parametrize("kind", ["orthogonal", "orthogonal-natural", "hybrid", "decoupled"])
def test_never_above_the_evidence_near_the_optimum(kind):
    """Adam on everything but points and kernel, watched all the way up."""
    # β covers the line, so the bound comes close and any term missing from the KL would show.
    p = problem(seed=2, n=12, d=1, b=8, g=5)
    model = make_model(kind, p, noise=0.1, random=False, jitter=1e-6)
    parameters = [t for n, t in model.basis.named_parameters() if n not in ("beta", "gamma")]
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    evidence = exact_evidence(p, 0.1)
    start = model.bound(p.x, p.y).value.item()
    for _ in range(300):
        optimizer.zero_grad()
        bound = model.bound(p.x, p.y)
        assert bound.value.item() <= evidence
        if kind.endswith("natural"):
            grads = torch.autograd.grad(-bound.value, [bound.q.v, bound.q.S, model.basis.a_gamma])
            model.basis.a_gamma.grad = grads[2]
            model.basis.q.step(bound.factor, bound.q, *grads[:2], torch.tensor(0.5), guarded=False)
        else:
            (-bound.value).backward()
        optimizer.step()
    gap = evidence - model.bound(p.x, p.y).value.item()
    assert gap < 0.1 * (evidence - start)


def test_interpolating_the_targets_is_paid_for_in_the_kl():
    """a_γ that sends the mean through every target fits best; the KL takes more than that back."""
    p = problem(seed=7, n=30, d=1, b=12, g=0)
    p = Problem(p.kernel, p.x, p.y, p.beta, p.x)
    model = make_model("orthogonal-natural", p, noise=0.1, random=False, jitter=1e-6)
    bound = model.bound(p.x, p.y)
    grads = torch.autograd.grad(-bound.value, [bound.q.v, bound.q.S])
    model.basis.q.step(bound.factor, bound.q, *grads, torch.tensor(1.0), guarded=False)
    smooth = model.bound(p.x, p.y)
    K_perp = projected_covariance(p.covariance, p.beta, p.x, bound.factor.R).detach()
    missing = p.y - model.predict(p.x)[0][0]
    with torch.no_grad():
        model.basis.a_gamma.copy_(torch.linalg.solve(K_perp + 1e-9 * torch.eye(30), missing)[None])
    through = model.bound(p.x, p.y)
    evidence = exact_evidence(p, 0.1)
    assert through.expected_log_prob - smooth.kl > evidence
    assert through.value.item() < smooth.value.item() < evidence


@pytest.mark.parametrize("kind", ["coupled", "orthogonal", "hybrid", "decoupled"])
def test_never_above_the_evidence_of_a_classifier(kind):
    """Two rows and a probit likelihood, whose evidence a two-dimensional grid gives."""
    p = problem(seed=3, n=2, b=2, g=2)
    x = to_numpy(p.x)
    K = reference.kernel_block(reference_terms(p.kernel), x, x)
    grid = np.linspace(-8, 8, 801)
    f = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1) @ np.linalg.cholesky(K).T
    ndtr = 0.5 * (1 + torch.erf(torch.tensor(f) / math.sqrt(2)).numpy())
    density = np.exp(-0.5 * (grid[:, None] ** 2 + grid[None, :] ** 2)) / (2 * math.pi)
    cell = (grid[1] - grid[0]) ** 2
    evidence = math.log(np.sum(density * ndtr[..., 0] * (1 - ndtr[..., 1])) * cell)
    y = torch.tensor([1, 0])
    for seed in range(20):
        basis = make_model(kind, p, random=False).basis
        model = VariationalGP(
            p.kernel, Bernoulli(1), randomise(basis, seed, size=0.15 * seed), jitter=1e-6
        )
        assert model.bound(p.x, y).value.item() <= evidence + 1e-9


@pytest.mark.parametrize("kind", ["orthogonal", "coupled"])
def test_minibatches_are_unbiased(kind):
    p = problem(seed=4, n=6)
    model = make_model(kind, p)
    whole = model.bound(p.x, p.y).value
    parts = [model.bound(p.x[i : i + 2], p.y[i : i + 2], num_rows=6).value for i in (0, 2, 4)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_weights_multiply_rows():
    p = problem(seed=5, n=4)
    model = make_model("orthogonal", p)
    repeated = torch.tensor([0, 0, 1, 3, 3, 3])
    weights = torch.tensor([2.0, 1.0, 0.0, 3.0]).double()
    torch.testing.assert_close(
        model.bound(p.x, p.y, weight=weights).value,
        model.bound(p.x[repeated], p.y[repeated]).value,
    )


def segment(kind, p, model, rng):
    """Two random settings of (a_γ, m_β, L) with positive diagonals, and the bound between them."""
    basis = model.basis
    ends = []
    for _ in range(2):
        end = {}
        for name, t in basis.named_parameters():
            if name in ("beta", "gamma"):
                continue
            draw = torch.randn(t.shape, generator=rng, dtype=t.dtype)
            if name.endswith("F"):
                draw = draw.tril(-1) + torch.diag_embed(
                    draw.diagonal(dim1=-2, dim2=-1).abs() + 0.05
                )
            end[name] = draw
        ends.append(end)

    def value(t: float) -> float:
        with torch.no_grad():
            for name, parameter in basis.named_parameters():
                if name in ends[0]:
                    parameter.copy_((1 - t) * ends[0][name] + t * ends[1][name])
            return model.bound(p.x, p.y if kind == "gaussian" else (p.y > 0).long()).value.item()

    return value


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_convexity_in_the_model_parameters(kind):
    """ℒ is convex in (a_γ, a_β, L) along random segments [OD18, app. B]."""
    rng = torch.Generator().manual_seed(0)
    p = problem(seed=6, n=8, b=3, g=4)
    model = make_model("orthogonal", p, hold_fixed="unwhitened")
    if kind == "bernoulli":
        model = VariationalGP(p.kernel, Bernoulli(1), model.basis, jitter=model.jitter)
    for _ in range(30):
        value = segment(kind, p, model, rng)
        ends, middle = (value(0.0), value(1.0)), value(0.5)
        assert middle > 0.5 * sum(ends)


def test_the_decoupled_basis_is_not_convex():
    """With B = F Fᵀ the bound bends the other way between two large F [OD18, sec. 3]."""
    p = problem(seed=6, n=8, b=3, g=4)
    model = make_model("decoupled", p)

    def value(size: float) -> float:
        with torch.no_grad():
            model.basis.F.copy_(size * torch.eye(3))
        return model.bound(p.x, p.y).value.item()

    assert value(15.0) < 0.5 * (value(10.0) + value(20.0)) - 1e-3
