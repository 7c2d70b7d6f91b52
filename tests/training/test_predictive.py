"""Hyperparameters that predict: the density of left-out rows, its gradient, and which are taken."""

import math

import pytest
import torch
from gpytorch.priors import LogNormalPrior

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.posterior.optimum import leave_one_out
from orthogp.training import Rows, predictive
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.predictive import learn_to_predict, leave_one_out_density
from problems import default_sum

D = 2


@pytest.fixture
def hyperparameters() -> Hyperparameters:
    return Hyperparameters(Covariance(default_sum(D, ard=True)), Gaussian())


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in (("EVIDENCE_STEPS", 30), ("PATCH_STEPS", 10), ("LEAVE_ONE_OUT_STEPS", 10)):
        monkeypatch.setattr(predictive, name, value)
    monkeypatch.setattr(predictive, "BLOCK_ROWS", {"cpu": 60})


def table(n: int = 200, weights: bool = False) -> Rows:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, D, generator=generator)
    y = (3.0 * x[:, 0]).sin() + 0.1 * torch.randn(n, generator=generator)
    return Rows(x, y, torch.linspace(0.5, 1.5, n) if weights else None)


@pytest.mark.parametrize("shared", [True, False])
def test_the_density_and_its_gradient_are_those_through_the_factor(shared):
    covariance = Covariance(default_sum(D, ard=True).double())
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).double()

    m, k = 5, 4
    x, y, near, y_near = draw(m, D), draw(2, m), draw(m, k, D), draw(2, m, k)
    noise = torch.tensor([[0.1]] if shared else [[0.1], [0.3]]).double().requires_grad_()
    noise_near = noise.unsqueeze(-1) * torch.rand(m, k, generator=generator).double()
    sources = [*covariance.parameters(), noise]
    ours = leave_one_out_density(covariance, x, y, noise, near, y_near, noise_near)
    plain = []
    for c in range(2):
        s = 0 if shared else c
        for i in range(m):
            A = covariance.block(near[i], near[i]) + noise_near[s, i].diag()
            q = covariance.block(near[i], x[i : i + 1])
            weights = torch.linalg.solve(A, q)[:, 0]
            mean = weights @ y_near[c, i]
            variance = covariance.diagonal(x[i : i + 1])[0] - weights @ q[:, 0] + noise[s, 0]
            plain.append(-0.5 * ((y[c, i] - mean) ** 2 / variance + (2 * math.pi * variance).log()))
    expected = torch.stack(plain).reshape(2, m)
    torch.testing.assert_close(ours, expected)
    weight = draw(2, m)
    for one, other in zip(
        torch.autograd.grad((weight * ours).sum(), sources, retain_graph=True),
        torch.autograd.grad((weight * expected).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("weights", [False, True])
def test_left_out_rows_gain_and_the_best_values_are_taken(hyperparameters, weights):
    reports = []
    found = learn_to_predict(
        hyperparameters,
        table(weights=weights),
        torch.Generator().manual_seed(0),
        report=lambda step, density: reports.append((step, density)),
    )
    assert found.densities[found.chosen] == max(found.densities.values())
    assert found.densities[found.chosen] > found.densities["start"] + 0.1
    assert set(found.densities) == {"start", "evidence", "patches", "leave_one_out"}
    assert reports[-1][0] == found.steps


def test_where_every_objective_leads_nowhere_the_start_stays(hyperparameters, monkeypatch):
    before = hyperparameters.values()
    monkeypatch.setattr(
        predictive, "log_evidence", lambda *args: hyperparameters.noise.sum() * math.nan
    )
    monkeypatch.setattr(predictive, "LEAVE_ONE_OUT_RATE", 1e30)
    found = learn_to_predict(hyperparameters, table(), torch.Generator().manual_seed(0))
    assert found.chosen == "start"
    for value, old in zip(hyperparameters.values(), before, strict=True):
        assert torch.equal(value, old)


def test_limits(hyperparameters):
    found = learn_to_predict(
        hyperparameters, table(), torch.Generator().manual_seed(0), max_steps=35
    )
    assert found.steps == 35
    late = learn_to_predict(
        hyperparameters, table(), torch.Generator().manual_seed(0), deadline=-math.inf
    )
    assert late.steps == 0


def test_a_narrow_prior_counts():
    kernel = default_sum(D)
    rough = kernel.kernels[0].base_kernel
    rough.register_prior("prior", LogNormalPrior(math.log(5.0), 1e-3), "lengthscale")
    found = Hyperparameters(Covariance(kernel), Gaussian())
    learn_to_predict(found, table(), torch.Generator().manual_seed(0))
    free = default_sum(D)
    learn_to_predict(
        Hyperparameters(Covariance(free), Gaussian()), table(), torch.Generator().manual_seed(0)
    )
    distance = [abs(k.kernels[0].base_kernel.lengthscale.item() - 5.0) for k in (kernel, free)]
    assert distance[0] < distance[1]


def test_leaving_one_out_of_the_exact_process():
    covariance, rows = Covariance(default_sum(D).double()), table(12)
    x, y, noise = rows.x.double(), rows.y.double()[None], torch.full((1, 12), 0.2).double()
    mean, variance = leave_one_out(covariance, x, y, noise)
    for i in range(12):
        others = torch.arange(12) != i
        with torch.no_grad():
            A = covariance.block(x[others], x[others]) + 0.2 * torch.eye(11).double()
            k = covariance.block(x[others], x[i : i + 1])
            c = torch.linalg.solve(A, k)[:, 0]
            expected = covariance.diagonal(x[:1])[0] - c @ k[:, 0]
        torch.testing.assert_close(mean[0, i], c @ y[0, others])
        torch.testing.assert_close(variance[0, i], expected)
