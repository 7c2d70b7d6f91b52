"""The model of the noise's logarithm: expected squares, leaving one out, the bound, recovery."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis
from orthogp.training import Rows, full_bound, latents_at, solve
from orthogp.training import log_noise as learned
from orthogp.training.config import TrainingConfig
from orthogp.training.log_noise import (
    Errors,
    bound_with_log_noise,
    learn_log_noise,
    left_out_latents,
    mean_noise,
    new_log_noise,
)

RNG = np.random.default_rng(0)


def errors_of(x, error, variance, weight=None) -> Errors:
    x, error, variance = (torch.tensor(np.atleast_2d(part)) for part in (x, error, variance))
    weight = None if weight is None else torch.tensor(weight)
    return Errors(x, error, variance, weight, torch.ones(len(error), 1, dtype=torch.float64))


def changing(rows: int, targets: int = 1, constant: bool = False) -> tuple[Errors, np.ndarray]:
    """Errors of rows whose noise grows with the first of two inputs, and its variance."""
    x = RNG.uniform(-2.0, 2.0, size=(rows, 2))
    log = np.stack([np.zeros(rows) if constant else (-1) ** c * x[:, 0] for c in range(targets)])
    variance = np.full((targets, rows), 0.05)
    error = np.sqrt(np.exp(log) + variance) * RNG.normal(size=log.shape)
    return errors_of(x, error, variance), np.exp(log)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(learned, "POINTS", 30)
    monkeypatch.setattr(learned, "STEPS", 100)


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_expected_squares_are_those_of_the_posterior(weight):
    error, variance, noise = 1.3, 0.4, 0.7
    found = errors_of([[0.0]], [[error]], [[variance]], [weight])
    ours = found.expected_squares(torch.tensor([[noise]]).double()).item()
    # The function less its left-out mean, on a grid: prior times the likelihood of the row.
    f = np.linspace(-8.0, 8.0, 200_001)
    log = -0.5 * f**2 / variance - 0.5 * weight * (error - f) ** 2 / noise
    density = np.exp(log - log.max())
    expected = (density * (error - f) ** 2).sum() / density.sum()
    assert ours == pytest.approx(expected, rel=1e-6)


def gaussian_model(rows: Rows) -> VariationalGP:
    kernel = ScaleKernel(RBFKernel()).double()
    likelihood = Gaussian().double()
    likelihood.likelihood.noise = 0.3
    basis = build_basis("coupled", kernel, rows.x[:12], rows.x[:0], jitter=1e-8)
    model = VariationalGP(kernel, likelihood, basis, jitter=1e-8)
    solve(model, rows, TrainingConfig(max_steps=1))
    return model


def test_the_noise_of_a_row_is_learned_without_it(quick):
    """The same as without its fold from the start, and another than with it."""
    errors, _ = changing(300)
    # An outlier that no other row is like.
    errors.error[0, 7] = 30.0
    rows = errors.rows(errors.level)
    model = new_log_noise(rows, 1, torch.Generator().manual_seed(0))
    for _ in range(3):
        learned._settle(model, rows)
    mean, variance = left_out_latents(model, rows, torch.Generator().manual_seed(1))
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    fold = next(part for part in order.tensor_split(learned.FOLDS) if 7 in part)
    rest = torch.tensor([row for row in range(300) if row not in fold])
    alone = new_log_noise(rows, 1, torch.Generator().manual_seed(0))
    for _ in range(4):
        learned._settle(alone, rows.map(lambda t: t[rest]))
    expected_mean, expected_variance = latents_at(alone, rows.x[fold])
    torch.testing.assert_close(mean[:, fold], expected_mean, rtol=0, atol=0.05)
    torch.testing.assert_close(variance[:, fold], expected_variance, rtol=0.05, atol=0.0)
    assert latents_at(model, rows.x)[0][0, 7] > mean[0, 7] + 1.0


@pytest.mark.parametrize("targets", [1, 2])
def test_noise_that_changes_is_found(quick, targets):
    errors, truth = changing(1500, targets)
    found = learn_log_noise(errors, torch.Generator().manual_seed(0))
    noise = mean_noise(found.mean, found.variance).numpy()
    # The logarithm varies by 1.2 about its mean; a tenth of the rows would leave it at 0.2.
    assert np.sqrt(np.mean(np.log(noise / truth) ** 2)) < 0.25
    square = errors.error.numpy() ** 2

    def density(variance):
        return -0.5 * (np.log(variance) + square / variance).mean()

    assert density(noise + 0.05) > density(truth + 0.05) - 0.02
    assert density(noise + 0.05) > density(1.05) + 0.1


def test_constant_noise_is_found_constant(quick):
    errors, _ = changing(1500, constant=True)
    found = learn_log_noise(errors, torch.Generator().manual_seed(0))
    log = mean_noise(found.mean, found.variance).log().numpy()
    assert np.sqrt(np.mean(log**2)) < 0.15


def test_a_start_is_gone_on_from(quick):
    """With other errors q(g) moves, and the kernel does not."""
    errors, _ = changing(600)
    first = learn_log_noise(errors, torch.Generator().manual_seed(0))
    kernel = first.model.covariance.kernel.outputscale.item()
    louder = errors_of(errors.x, 2.0 * errors.error, 4.0 * errors.variance)
    second = learn_log_noise(louder, torch.Generator().manual_seed(0), start=first.model)
    assert second.model.covariance.kernel.outputscale.item() == kernel
    change = (second.mean - first.mean).mean().item()
    assert change == pytest.approx(np.log(4.0), abs=0.1)


def test_the_bound_is_that_of_both_functions(quick):
    """E log N(y; f, σ² e^g) by sums over two grids, less both divergences."""
    x = torch.tensor(RNG.uniform(-2.0, 2.0, size=(30, 2)))
    weight = torch.tensor(RNG.uniform(0.5, 2.0, size=30))
    rows = Rows(x, x[:, 0].sin() + 0.5 * torch.tensor(RNG.normal(size=30)), weight)
    model = gaussian_model(rows)
    squares = Rows(x, rows.y.square(), weight)
    model.log_noise = new_log_noise(squares, 1, torch.Generator().manual_seed(0))
    learned._settle(model.log_noise, squares)

    def likelihoods(part: VariationalGP, y: torch.Tensor) -> float:
        found = part.likelihood.expected_log_prob(y, *latents_at(part, x)).detach()
        return float((weight * found).sum())

    def divergence(part: VariationalGP, y: torch.Tensor) -> float:
        return likelihoods(part, y) - full_bound(part, Rows(x, y, weight))

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    (m, s), (mg, sg) = (
        (part.numpy()[0] for part in latents_at(which, x)) for which in (model, model.log_noise)
    )
    f = m[:, None, None] + np.sqrt(s)[:, None, None] * nodes[:, None]
    g = mg[:, None, None] + np.sqrt(sg)[:, None, None] * nodes
    variance = 0.3 * np.exp(g)
    y = rows.y.numpy()[:, None, None]
    log = -0.5 * (np.log(2 * np.pi * variance) + (y - f) ** 2 / variance)
    expected = (weight.numpy() * np.einsum("nij,i,j->n", log, weights, weights)).sum()
    expected -= divergence(model, rows.y) + divergence(model.log_noise, squares.y)
    assert bound_with_log_noise(model, rows) == pytest.approx(expected, rel=1e-6)
