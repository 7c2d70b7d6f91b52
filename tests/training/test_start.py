"""Where hyperparameters start: the evidence of a few rows is the exact one, and it rises."""

import numpy as np
import pytest
import torch

import reference
from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.estimators import start
from orthogp.estimators.defaults import start_steps, starts_by_evidence
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Bernoulli, Gaussian, StudentT
from orthogp.training import Rows, start_hyperparameters
from orthogp.training.evidence import log_evidence
from orthogp.training.start import log_density_of_others
from problems import problem, reference_terms, to_numpy


def test_the_evidence_is_the_exact_one():
    p = problem(n=12, ard=True)
    y = torch.stack([p.y, p.y.cos()])
    value = log_evidence(p.covariance, torch.tensor(0.3, dtype=torch.float64), p.x, y).item()
    K = reference.kernel_block(reference_terms(p.kernel), *[to_numpy(p.x)] * 2)
    expected = sum(reference.log_evidence(K, row, 0.3) for row in to_numpy(y))
    assert value == pytest.approx(expected, rel=1e-10)


def test_its_gradients_are_those_of_the_plain_formula():
    p = problem(n=12, ard=True)
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    wanted, y = [noise, *p.covariance.parameters()], torch.stack([p.y, p.y.cos()])

    def plain(covariance: Covariance, noise, x, y):
        K = covariance.block(x, x) + noise * torch.eye(len(x), dtype=x.dtype)
        return torch.distributions.MultivariateNormal(torch.zeros_like(y), K).log_prob(y).sum()

    found, expected = (
        torch.autograd.grad(f(p.covariance, noise, p.x, y), wanted) for f in (log_evidence, plain)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_a_whole_weight_is_a_repeated_row():
    p = problem(n=6)
    times = torch.tensor([1, 2, 3, 1, 2, 1])
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    wanted = [noise, *p.covariance.parameters()]
    weighted = log_evidence(p.covariance, noise, p.x, p.y[None], times.double())
    x, y = p.x.repeat_interleave(times, 0), p.y.repeat_interleave(times)
    repeated = log_evidence(p.covariance, noise, x, y[None])
    assert weighted.item() == pytest.approx(repeated.item(), rel=1e-10)
    grads = (torch.autograd.grad(value, wanted) for value in (weighted, repeated))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("outputs", [None, 1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_evidence_of_the_rows_rises(outputs, weighted):
    p = problem(n=40)
    y = p.y if outputs is None else torch.stack([p.y * (k + 1) for k in range(outputs)], 1)
    weight = torch.linspace(0.5, 2.0, 40).double() if weighted else None
    likelihood = Gaussian(outputs or 1)

    def evidence() -> float:
        noise = likelihood.likelihood.noise.double().mean()
        rows = p.y[None] if outputs is None else y.mT
        return log_evidence(p.covariance, noise, p.x, rows, weight).item()

    before = evidence()
    rng = torch.Generator().manual_seed(0)
    assert start_hyperparameters(p.covariance, likelihood, Rows(p.x, y, weight), rng, 50)
    assert evidence() > before + 1.0
    assert all(parameter.grad is None for parameter in p.covariance.parameters())


def test_what_fails_leaves_everything_where_it_was():
    p = problem(n=20)
    likelihood = Gaussian()
    before = [t.detach().clone() for t in (*p.kernel.parameters(), *likelihood.parameters())]
    rows = Rows(p.x, torch.full_like(p.y, torch.inf))
    assert not start_hyperparameters(p.covariance, likelihood, rows, torch.Generator(), 5)
    after = [*p.kernel.parameters(), *likelihood.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(parameter.grad is None for parameter in after)


def test_the_density_of_other_rows_is_that_of_the_exact_process():
    p = problem(n=12)
    few, others = Rows(p.x[:8], p.y[:8]), Rows(p.x[8:], p.y[8:])
    found = log_density_of_others(p.covariance, torch.tensor(0.3).double(), few, others)
    K = reference.kernel_block(reference_terms(p.kernel), *[to_numpy(p.x)] * 2)
    C, y = K + float(torch.tensor(0.3)) * np.eye(12), to_numpy(p.y)
    mean = C[8:, :8] @ np.linalg.solve(C[:8, :8], y[:8])
    variance = np.diag(C[8:, 8:] - C[8:, :8] @ np.linalg.solve(C[:8, :8], C[:8, 8:]))
    each = -0.5 * ((y[8:] - mean) ** 2 / variance + np.log(2 * np.pi * variance))
    assert found == pytest.approx(each.mean(), rel=1e-8)


def test_what_is_rare_is_not_forgotten():
    """A few rows of a target that hardly ever moves say that it has no noise at all."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(700, 2)), np.eye(700)[0]
    found = OrthogonalGPRegressor(30, 30, n_neighbors=0, random_state=0).fit(x, y)
    given = OrthogonalGPRegressor(
        30, 30, n_neighbors=0, noise_variance=0.1 * y.var(), random_state=0
    ).fit(x, y)
    assert found.elbo_ > given.elbo_ - 0.1 * len(y)


def test_only_a_start_that_nobody_chose_is_chosen():
    def starts(own=None, estimator=OrthogonalGPRegressor, rows=1000, **given) -> bool:
        settings = estimator(**given).get_params(deep=False)
        return starts_by_evidence(settings, rows, own or Gaussian())

    assert starts()
    assert starts(likelihood="gaussian")
    assert not starts(noise_variance=0.2)
    assert not starts(kernel=problem().kernel)
    assert not starts(train_hyperparameters=False)
    assert not starts(optimizer="adam")
    assert not starts(StudentT())
    assert not starts(Bernoulli(), OrthogonalGPClassifier)
    # A long run finds them by itself.
    assert not starts(rows=100_000)


def test_the_search_is_no_longer_than_the_run():
    def steps(**given) -> int:
        return start_steps(OrthogonalGPRegressor(**given).get_params(deep=False))

    assert [steps(), steps(max_steps=7), steps(max_steps=10**6)] == [100, 7, 100]


def test_a_small_table_starts_close_to_where_it_ends(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=300)
    true = 0.01 / y.var()

    def noise(**given) -> float:
        gp = OrthogonalGPRegressor(n_neighbors=0, max_steps=1, random_state=0, **given).fit(x, y)
        return gp.model_.likelihood.likelihood.noise.item()

    monkeypatch.setattr(start, "start_steps", lambda settings: 100)
    assert noise() == pytest.approx(true, rel=0.5)
    assert noise(noise_variance=0.1 * y.var()) == pytest.approx(0.1, rel=0.3)
