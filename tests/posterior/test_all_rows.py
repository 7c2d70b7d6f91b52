"""All rows in the mean: the exact one, and near rows on top of one that is not there yet."""

import time

import numpy as np
import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import factorise_robustly
from orthogp.posterior import kernel_matrix
from orthogp.posterior.all_rows import solve_all_rows
from orthogp.posterior.induced import Features
from orthogp.posterior.kernel_matrix import KernelMatrix
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.observations import MergedRows, Observations
from orthogp.posterior.optimum import decoupled_optimum
from problems import default_sum

N, D, B = 60, 2, 6


@pytest.fixture
def covariance() -> Covariance:
    return Covariance(default_sum(D, ard=True).double())


def rows_of(outputs: int = 1, noise: float = 0.1, dtype=torch.float64) -> Observations:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.stack([(x[:, 0] * (c + 1)).sin() for c in range(outputs)]).double()
    variances = noise * torch.linspace(0.5, 1.5, N).double().expand(outputs, -1)
    return Observations(x, y + 0.1 * torch.randn(y.shape, generator=generator), variances)


def features_of(covariance: Covariance, rows: Observations) -> Features:
    beta = rows.x[:B].double() + 0.1
    R = factorise_robustly(covariance.block(beta, beta).detach(), 1e-6).R
    return Features.of(covariance, beta, R, rows.x)


def exact_weights(covariance: Covariance, rows: Observations) -> np.ndarray:
    with torch.no_grad():
        K = covariance.block(rows.x.double(), rows.x.double()).numpy()
    pairs = zip(rows.noise.expand(len(rows.y), -1).numpy(), rows.y.numpy(), strict=True)
    return np.stack([np.linalg.solve(K + np.diag(noise), y) for noise, y in pairs])


@pytest.mark.parametrize("outputs", [1, 2])
def test_it_ends_at_the_exact_weights(covariance, outputs):
    rows = rows_of(outputs)
    found = solve_all_rows(covariance, features_of(covariance, rows), rows, tolerance=1e-9)
    assert found.converged
    np.testing.assert_allclose(found.weights, exact_weights(covariance, rows), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stored_matrix_changes_nothing(covariance, dtype, monkeypatch):
    rows = rows_of(dtype=dtype)
    features = features_of(covariance, rows)
    stored = solve_all_rows(covariance, features, rows, tolerance=1e-5)
    monkeypatch.setattr(kernel_matrix, "affordable_bytes", lambda device: 0)
    evaluated = solve_all_rows(covariance, features, rows, tolerance=1e-5)
    assert stored.converged
    assert evaluated.converged
    np.testing.assert_allclose(stored.weights, evaluated.weights, rtol=0, atol=1e-4)


def test_it_is_the_optimum_of_the_papers_family_with_every_row_a_residual_point(covariance):
    rows = rows_of()
    rows = Observations(rows.x, rows.y, torch.full_like(rows.noise, 0.1))
    features = features_of(covariance, rows)
    found = solve_all_rows(covariance, features, rows, tolerance=1e-9)
    factor = factorise_robustly(covariance.block(features.beta, features.beta).detach(), 1e-6)
    best = decoupled_optimum(
        covariance, factor, features.beta, rows.x, rows.x, rows.y[0], noise=0.1
    )
    new = torch.randn(5, D, generator=torch.Generator().manual_seed(2)).double()
    with torch.no_grad():
        at_gamma = covariance.matvec(new, rows.x, best.a_gamma[None])
        expected = at_gamma + covariance.matvec(new, features.beta, best.a_beta[None])
        mean = covariance.matvec(new, rows.x, found.weights)
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-5)


def test_float64_goes_on_where_float32_does_not_arrive(covariance):
    rows = rows_of(noise=1e-7, dtype=torch.float32)
    found = solve_all_rows(
        covariance, features_of(covariance, rows), rows, tolerance=1e-3, max_products=2000
    )
    assert found.converged
    assert found.residual.square().mean().sqrt() <= 1e-3 * rows.noise.mean().sqrt()


def test_limits_end_it_and_the_residual_is_that_of_the_weights(covariance):
    rows = rows_of(noise=1e-4)
    features = features_of(covariance, rows)
    few = solve_all_rows(covariance, features, rows, max_products=3)
    late = solve_all_rows(covariance, features, rows, deadline=time.monotonic() - 1.0)
    assert not few.converged
    assert few.products <= 4
    assert late.products == 0
    for found in (few, late):
        with torch.no_grad():
            K = covariance.block(rows.x, rows.x)
        left = rows.y - found.weights @ K - rows.noise * found.weights
        torch.testing.assert_close(found.residual, left, rtol=0, atol=1e-9)


@pytest.mark.parametrize("products", [0, 2, 100])
def test_near_rows_on_top_are_exact_however_far_the_solution_is(covariance, products):
    rows = rows_of(outputs=2)
    features = features_of(covariance, rows)
    found = solve_all_rows(covariance, features, rows, max_products=products)
    left = Observations(rows.x, found.residual, rows.noise)
    new = torch.randn(5, D, generator=torch.Generator().manual_seed(2)).double()
    mean, _ = near_predictor(covariance, MergedRows.of(left), N, features).marginals(new)
    with torch.no_grad():
        mean = mean + covariance.matvec(new, rows.x, found.weights)
        k = covariance.block(new, rows.x).numpy()
    expected = exact_weights(covariance, rows) @ k.T
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-7)


def test_a_start_is_gone_on_from(covariance):
    rows = rows_of()
    features = features_of(covariance, rows)
    whole = solve_all_rows(covariance, features, rows, tolerance=1e-6)
    again = solve_all_rows(covariance, features, rows, tolerance=1e-6, start=whole.weights)
    assert again.products == 1
    assert torch.equal(again.weights, whole.weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_absent_rows_have_no_part(covariance, dtype):
    rows = rows_of(outputs=2, dtype=dtype)
    features = features_of(covariance, rows)
    absent, present = torch.tensor([3, 50, 7]), torch.ones(N, dtype=torch.bool)
    present[absent] = False
    others = Observations(rows.x[present], rows.y[:, present], rows.noise[:, present])
    start = torch.ones_like(rows.y)
    found = solve_all_rows(
        covariance, features, rows, tolerance=1e-6, max_products=500, start=start, absent=absent
    )
    assert found.converged
    assert not found.weights[:, absent].any()
    expected = exact_weights(covariance, others)
    np.testing.assert_allclose(found.weights[:, present], expected, rtol=0, atol=1e-4)
    with torch.no_grad():
        by_weights = covariance.matvec(rows.x[absent].double(), rows.x.double(), found.weights)
    left = rows.y[:, absent] - found.residual[:, absent]
    torch.testing.assert_close(left, by_weights, rtol=0, atol=1e-9)


def test_solutions_share_what_is_stored(covariance):
    rows = rows_of()
    features, matrix = features_of(covariance, rows), KernelMatrix(covariance, rows.x)
    first = solve_all_rows(covariance, features, rows, tolerance=1e-9, matrix=matrix)
    stored = matrix.tiles
    again = solve_all_rows(covariance, features, rows, tolerance=1e-9, matrix=matrix)
    assert stored
    assert matrix.tiles is stored
    torch.testing.assert_close(first.weights, again.weights, rtol=0, atol=1e-12)
