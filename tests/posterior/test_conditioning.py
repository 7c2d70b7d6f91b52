"""Rows that join a posterior: beside the closed form, in any order, and without copies."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from conditional_models import closed_form, exact_model, near_model, noises, rows
from orthogp.errors import ConfigurationError
from orthogp.likelihoods import StudentT
from orthogp.model import VariationalGP
from orthogp.posterior import growing
from orthogp.posterior.neighbors import leaf_order
from problems import make_model, problem

N, MORE = 20, 15
X, Y = rows(N)
NEW = rows(7, seed=8)[0]


def joining(outputs: int = 1, n: int = MORE):
    return rows(n, outputs, seed=11)


def assert_exact(model: VariationalGP, x, y, weight=None):
    mean, covariance = closed_form(model, x, y, NEW, weight)
    found, variance = model.predict(NEW)
    np.testing.assert_allclose(found, mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(variance, np.diagonal(covariance, axis1=1, axis2=2), atol=1e-6)
    joint = model.predictor().full_covariance(NEW)
    np.testing.assert_allclose(joint, covariance, rtol=0, atol=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("inducing", [1, 6])
def test_with_all_rows_near_it_is_the_exact_process(outputs, inducing):
    model = near_model(N, count=50, inducing=inducing, outputs=outputs)
    (x, y), (more_x, more_y) = rows(N, outputs), joining(outputs)
    for part in (slice(0, 1), slice(1, 6), slice(6, MORE)):
        model = model.condition_on(more_x[part], more_y[part])
    assert_exact(model, torch.cat([x, more_x]), torch.cat([y, more_y]))


@pytest.mark.parametrize("outputs", [1, 2])
def test_where_beta_are_all_rows_it_is_the_exact_process(outputs):
    """So long as no more have joined than are near."""
    model = exact_model(N, outputs)
    (x, y), (more_x, more_y) = rows(N, outputs), joining(outputs)
    weight = torch.linspace(0.5, 2.0, MORE).double()
    for part in (slice(0, 1), slice(1, 6), slice(6, MORE)):
        model = model.condition_on(more_x[part], more_y[part], weight[part], count=MORE)
    weights = torch.cat([torch.ones(N).double(), weight])
    assert_exact(model, torch.cat([x, more_x]), torch.cat([y, more_y]), weights)


def test_rows_with_a_noise_for_each_output_join_outputs_that_shared_one():
    model = near_model(N, count=50, outputs=2)
    model.likelihood.likelihood.noise = torch.full((2,), 0.05).double()
    (x, y), (more_x, more_y) = rows(N, 2), joining(2)
    weight = torch.stack([torch.linspace(0.5, 2.0, MORE), torch.linspace(3.0, 1.0, MORE)]).double()
    for part in (slice(0, 4), slice(4, MORE)):
        model = model.condition_on(more_x[part], more_y[part], weight[:, part])
    x, y = torch.cat([x, more_x]), torch.cat([y, more_y])
    mean, variance = model.predict(NEW)
    for output in range(2):
        weights = torch.cat([torch.ones(N).double(), weight[output]])
        expected, covariance = closed_form(model, x, y, NEW, weights)
        np.testing.assert_allclose(mean[output], expected[output], rtol=0, atol=1e-6)
        spread = np.diagonal(covariance[output])
        np.testing.assert_allclose(variance[output], spread, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["coupled", "orthogonal-natural", "hybrid", "decoupled"])
def test_any_basis_is_conditioned_as_the_gaussian_it_is(kind):
    """On a row where its own mean and joint covariance say what that row adds."""
    p = problem(b=4, g=5)
    model = make_model(kind, p, jitter=1e-9)
    x, y = p.x[:3], p.y[:3]
    both, noise = torch.cat([x, p.x[3:]]), noises(model)
    mean, _ = model.predict(both)
    K = model.predictor().full_covariance(both)[0]
    gain = torch.linalg.solve(K[:3, :3] + noise * torch.eye(3), K[:3]).mT
    found, variance = model.condition_on(x, y).predict(both)
    expected = mean[0] + gain @ (y - mean[0, :3])
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-6)
    left = (K - gain @ K[:3]).diagonal()
    torch.testing.assert_close(variance[0], left, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [1, 4, 15, 30])
@pytest.mark.parametrize("on_beta", [True, False])
def test_few_near_rows_match_the_reference(count, on_beta):
    """The equations written out: leaves of the fit, then one leaf or leaves of one row."""
    model = near_model(N, count, on_beta=on_beta)
    start, (x, y) = model.near.x.numpy(), joining()
    targets = np.concatenate([model.near.y[0].numpy(), y.numpy()])
    noise, cov = noises(model).item(), model.covariance
    scale = cov.relevance(x).detach().sqrt()
    whole = np.concatenate([start, x.numpy()])
    n = len(whole)

    def block(a, b):
        with torch.no_grad():
            return cov.block(torch.as_tensor(a), torch.as_tensor(b)).numpy()

    beta = model.basis.beta.detach().numpy()
    W = np.zeros((n, 0))
    if on_beta:
        R = np.linalg.inv(np.linalg.cholesky(block(beta, beta) + 1e-10 * np.eye(len(beta))))
        W = block(whole, beta) @ R.T
    K = block(whole, whole) - W @ W.T
    order = leaf_order(torch.as_tensor(start) * scale, count).numpy()
    leaves = [order[i : i + count] for i in range(0, N, count)]
    later = np.arange(N, n)
    if n <= count:
        leaves = [np.arange(n)]
    elif len(later) <= count:
        leaves = [*leaves, later]
    else:
        leaves = [*leaves, *later[:, None]]
    A, b = np.eye(W.shape[1]), np.zeros(W.shape[1])
    for leaf in leaves:
        P = np.linalg.inv(K[np.ix_(leaf, leaf)] + noise * np.eye(len(leaf)))
        A, b = A + W[leaf].T @ P @ W[leaf], b + W[leaf].T @ P @ targets[leaf]
    S = np.linalg.inv(A)
    for i in range(MORE):
        model = model.condition_on(x[i : i + 1], y[i : i + 1])
    mean, variance = model.predict(NEW)
    for i, point in enumerate(NEW.numpy()):
        near = np.argsort((((whole - point) * scale.numpy()) ** 2).sum(1), kind="stable")[:count]
        w = block(point[None], beta)[0] @ R.T if on_beta else W[0]
        k = block(whole[near], point[None])[:, 0] - W[near] @ w
        c = np.linalg.solve(K[np.ix_(near, near)] + noise * np.eye(len(near)), k)
        left = w - W[near].T @ c
        prior = block(point[None], point[None])[0, 0] - w @ w
        np.testing.assert_allclose(mean[0, i], left @ S @ b + c @ targets[near], atol=1e-6)
        expected = prior - c @ k + left @ S @ left
        np.testing.assert_allclose(variance[0, i], expected, atol=1e-6)


def on_a_grid(n: int):
    """Rows of which many are twice there, and many at one distance from another."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (n, 3), generator=generator).double()
    return x, torch.randn(n, generator=generator).double()


@pytest.mark.parametrize("loose", [3, 1024])
@pytest.mark.parametrize("model", [near_model(N, 6), exact_model(N)], ids=["near", "exact"])
def test_the_same_rows_in_any_order_give_the_same_prediction(model, loose, monkeypatch):
    monkeypatch.setattr(growing, "MOST_LOOSE", loose)
    monkeypatch.setattr(growing, "LOOSE_SHARE", 1000)
    x, y = on_a_grid(40)
    at = torch.cat([NEW, x[:10]])
    together = model.condition_on(x, y, count=6).predict(at)
    for seed in range(3):
        found = model
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        for part in order.split(1 if seed else 7):
            found = found.condition_on(x[part], y[part], count=6)
        for one, other in zip(found.predict(at), together, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_the_model_before_stays_as_it_is_whatever_joins():
    model = near_model(N, 6)
    before = model.predict(NEW)
    x, y = joining()
    one = model.condition_on(x[:1], y[:1])
    kept = one.predict(NEW)
    # Two that continue the same one: the second must not write over the first.
    branches = [one.condition_on(x[i : i + 1], y[i : i + 1]) for i in (1, 2)]
    alone = [near_model(N, 6).condition_on(x[[0, i]], y[[0, i]]) for i in (1, 2)]
    for found, expected in zip(branches, alone, strict=True):
        torch.testing.assert_close(found.predict(NEW), expected.predict(NEW), rtol=0, atol=1e-9)
    torch.testing.assert_close(one.predict(NEW), kept, rtol=0, atol=0)
    torch.testing.assert_close(model.predict(NEW), before, rtol=0, atol=0)
    assert not torch.equal(kept[0], before[0])


def test_what_does_not_change_is_shared():
    model = near_model(N, 6)
    found, places = model, set()
    for i in range(200):
        found = found.condition_on(*(t[i : i + 1] for t in joining(n=200)))
        tables = found.conditional().growth
        places |= {t.data_ptr() for t in (found.near.x, found.near.y, tables.W.rows)}
    # Each of the three tables is copied where it is full, and not at each row.
    assert len(places) <= 3 * 4
    assert found.basis is model.basis
    assert found.covariance.kernel is model.covariance.kernel


@pytest.mark.parametrize("model", [near_model(N, 6), exact_model(N)], ids=["near", "exact"])
def test_a_copy_predicts_the_same_from_its_rows_alone(model):
    x, y = joining()
    for part in torch.arange(MORE).split(4):
        model = model.condition_on(x[part], y[part], count=6)
    copy = deepcopy(model)
    assert not copy._cache.knows(copy, "conditional")
    for one, other in zip(copy.predict(NEW), model.predict(NEW), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_what_is_remembered_is_forgotten_when_a_parameter_changes():
    model = near_model(N, 6)
    x, y = joining()
    model = model.condition_on(x, y)
    before = model.predict(NEW)[0]
    with torch.no_grad():
        model.likelihood.likelihood.raw_noise.add_(3.0)
    assert (model.predict(NEW)[0] - before).abs().max() > 0.01


def test_other_noise_is_refused():
    model = make_model("coupled", problem())
    other = VariationalGP(model.covariance.kernel, StudentT(1), model.basis)
    with pytest.raises(ConfigurationError, match="Gaussian noise"):
        other.condition_on(problem().x, problem().y)
