"""Near rows beside the exact Gaussian process, and beside a reference written out in NumPy."""

import math

import gpytorch
import numpy as np
import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial import compiled_backend
from orthogp.linalg import factorise_robustly
from orthogp.posterior import near_precision, near_rows
from orthogp.posterior.induced import Features
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.observations import MergedRows, Observations
from orthogp.posterior.optimum import exact_regression

N, D, B = 40, 3, 6


def default_kernel(d: int = D) -> gpytorch.kernels.Kernel:
    kernels = gpytorch.kernels
    kernel = kernels.ScaleKernel(kernels.MaternKernel(2.5, ard_num_dims=d)) + kernels.ScaleKernel(
        kernels.RBFKernel(ard_num_dims=d)
    )
    kernel.kernels[0].base_kernel.lengthscale = torch.linspace(0.5, 1.5, d)
    return kernel.double()


KERNELS = {
    "radial": default_kernel,
    "generic": lambda: (
        gpytorch.kernels.PeriodicKernel(ard_num_dims=D) + gpytorch.kernels.LinearKernel()
    ).double(),
}


@pytest.fixture(params=KERNELS)
def covariance(request) -> Covariance:
    return Covariance(KERNELS[request.param]())


def observations(outputs: int = 1, shared: bool = True, n: int = N) -> Observations:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, D, generator=generator).double()
    y = torch.stack([(x[:, 0] * (c + 1)).sin() + 0.3 * x[:, 1] for c in range(outputs)])
    noise = 0.05 + 0.1 * torch.rand(1 if shared else outputs, n, generator=generator).double()
    return Observations(x, y + 0.1 * torch.randn(outputs, n, generator=generator), noise)


def predictor(covariance: Covariance, rows: Observations, count: int, inducing: int = B):
    generator = torch.Generator().manual_seed(5)
    beta = torch.randn(inducing, D, generator=generator).double()
    features = None
    if inducing:
        R = factorise_robustly(covariance.block(beta, beta).detach(), 1e-8).R
        features = Features.of(covariance, beta, R, MergedRows.of_ordered(rows).distinct.x)
    return near_predictor(covariance, MergedRows.of_ordered(rows), count, features)


def exact(covariance: Covariance, rows: Observations, output: int, x: torch.Tensor):
    """Mean and covariance of the exact process, each row with the noise that it has."""
    noise = rows.noise.expand(len(rows.y), -1)[output]
    with torch.no_grad():
        A = (covariance.block(rows.x, rows.x) + noise.diag()).numpy()
        k = covariance.block(rows.x, x).numpy()
        prior = covariance.block(x, x).numpy()
    c = np.linalg.solve(A, k)
    return c.T @ rows.y[output].numpy(), prior - k.T @ c


NEW = torch.randn(7, D, generator=torch.Generator().manual_seed(8)).double()


@pytest.mark.parametrize("inducing", [0, 1, B])
@pytest.mark.parametrize(("outputs", "shared"), [(1, True), (2, True), (2, False)])
def test_with_all_rows_near_it_is_the_exact_gp(covariance, inducing, outputs, shared):
    rows = observations(outputs, shared)
    p = predictor(covariance, rows, count=N, inducing=inducing)
    mean, variance = p.marginals(NEW)
    for c in range(outputs):
        expected, spread = exact(covariance, rows, c, NEW)
        np.testing.assert_allclose(mean[c], expected, rtol=0, atol=1e-7)
        np.testing.assert_allclose(variance[c], np.diag(spread), rtol=0, atol=1e-7)


def test_the_exact_gp_is_that_of_the_closed_form():
    rows, covariance = observations(), Covariance(default_kernel())
    rows = Observations(rows.x, rows.y, torch.full_like(rows.noise, 0.2))
    expected = exact_regression(covariance, rows.x, rows.y[0], 0.2, NEW)
    mean, variance = predictor(covariance, rows, count=N).marginals(NEW)
    torch.testing.assert_close(mean[0], expected.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(variance[0], expected.covariance.diagonal(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("inducing", [0, 1, B])
@pytest.mark.parametrize("count", [1, 5, 13, N - 1, N])
def test_leave_one_out_is_leaving_one_out(covariance, inducing, count):
    """Leaves are of neighbours, so that a row can leave its own without moving the others."""
    rows = observations(2, shared=False)
    p = predictor(covariance, rows, count, inducing)
    chosen = torch.tensor([0, 7, 31])
    mean, variance = p.leave_one_out(chosen)
    for i, row in enumerate(chosen.tolist()):
        expected = reference(p, rows, rows.x[row].numpy(), without=row)
        np.testing.assert_allclose(mean[:, i], expected[0], rtol=0, atol=1e-7)
        np.testing.assert_allclose(variance[:, i], expected[1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("inducing", [0, B])
def test_leave_one_out_with_all_rows_near_is_that_of_the_exact_gp(covariance, inducing):
    rows = observations()
    mean, variance = predictor(covariance, rows, N, inducing).leave_one_out(torch.arange(N))
    for i in range(0, N, 9):
        others = torch.arange(N) != i
        rest = Observations(rows.x[others], rows.y[:, others], rows.noise[:, others])
        expected, spread = exact(covariance, rest, 0, rows.x[i : i + 1])
        np.testing.assert_allclose(mean[0, i], expected[0], rtol=0, atol=1e-7)
        np.testing.assert_allclose(variance[0, i], spread[0, 0], rtol=0, atol=1e-7)


def reference(p, rows: Observations, x: np.ndarray, without: int | None = None):
    """The equations of the module, row by row, with the leaves as they are found."""
    from orthogp.posterior.neighbors import leaf_order

    cov = p.covariance
    scale = cov.relevance(rows.x).detach().sqrt()

    def block(a, b):
        with torch.no_grad():
            return cov.block(torch.as_tensor(a), torch.as_tensor(b)).numpy()

    X, x = rows.x.numpy(), np.atleast_2d(x)
    W = np.zeros((N, 0)) if p.features is None else p.features.W.numpy()
    w = np.zeros((1, 0)) if p.features is None else p.features(torch.as_tensor(x)).detach().numpy()
    K, k = block(X, X) - W @ W.T, (block(X, x) - W @ w.T)[:, 0]
    prior = (block(x, x) - w @ w.T)[0, 0]
    distance = (((X - x) * scale.numpy()) ** 2).sum(1)
    if without is not None:
        distance[without] = np.inf
    near = np.argsort(distance, kind="stable")[: min(p.count, N - (without is not None))]
    means, variances = [], []
    for y, noise in zip(rows.y.numpy(), rows.noise.expand(len(rows.y), -1).numpy(), strict=True):
        A, b = np.eye(W.shape[1]), np.zeros(W.shape[1])
        order = leaf_order(rows.x * scale, p.count).numpy()
        for start in range(0, N, p.count):
            leaf = [i for i in order[start : start + p.count] if i != without]
            P = np.linalg.inv(K[np.ix_(leaf, leaf)] + np.diag(noise[leaf]))
            A, b = A + W[leaf].T @ P @ W[leaf], b + W[leaf].T @ P @ y[leaf]
        S = np.linalg.inv(A)
        c = np.linalg.solve(K[np.ix_(near, near)] + np.diag(noise[near]), k[near])
        w_hat = w[0] - W[near].T @ c
        means.append(w_hat @ S @ b + c @ y[near])
        variances.append(prior - c @ k[near] + w_hat @ S @ w_hat)
    return means, variances


@pytest.mark.parametrize("inducing", [0, 1, B])
@pytest.mark.parametrize("count", [1, 5, 13])
def test_few_near_rows_match_the_reference(covariance, inducing, count):
    rows = observations(2, shared=False)
    p = predictor(covariance, rows, count, inducing)
    mean, variance = p.marginals(NEW)
    for i, x in enumerate(NEW.numpy()):
        expected = reference(p, rows, x)
        np.testing.assert_allclose(mean[:, i], expected[0], rtol=0, atol=1e-7)
        np.testing.assert_allclose(variance[:, i], expected[1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("count", [1, 5, 20])
def test_without_inducing_points_the_variance_is_never_below_the_exact_one(covariance, count):
    rows = observations()
    _, variance = predictor(covariance, rows, count, inducing=0).marginals(NEW)
    _, spread = exact(covariance, rows, 0, NEW)
    assert (variance[0].numpy() >= np.diag(spread) - 1e-9).all()


@pytest.mark.parametrize("inducing", [0, B])
@pytest.mark.parametrize(("outputs", "shared"), [(1, True), (2, True), (2, False)])
@pytest.mark.parametrize("count", [5, N])
def test_the_diagonal_of_the_joint_covariance_is_the_variance(
    covariance, inducing, outputs, shared, count
):
    p = predictor(covariance, observations(outputs, shared), count, inducing)
    found = p.full_covariance(NEW)
    assert found.shape == (outputs, len(NEW), len(NEW))
    torch.testing.assert_close(found.diagonal(dim1=1, dim2=2), p.marginals(NEW)[1])
    assert (torch.linalg.eigvalsh(found) > -1e-9).all()


def test_the_joint_covariance_with_all_rows_near_is_that_of_the_exact_gp(covariance):
    rows = observations(2, shared=False)
    found = predictor(covariance, rows, N).full_covariance(NEW)
    for c in range(2):
        np.testing.assert_allclose(found[c], exact(covariance, rows, c, NEW)[1], rtol=0, atol=1e-7)


def test_the_same_rows_in_any_order_give_the_same_prediction():
    """With duplicates, and with ties at the distance of the last that is near."""
    from orthogp.posterior.neighbors import canonical_order

    covariance = Covariance(default_kernel())
    grid = torch.cartesian_prod(*[torch.arange(4.0).double()] * D).repeat(2, 1)
    y = torch.randn(2, len(grid), generator=torch.Generator().manual_seed(0)).double()

    def predicted(order):
        x, targets = grid[order], y[:, order]
        kept = canonical_order(x, targets)
        rows = Observations(x[kept], targets[:, kept], torch.full((1, len(x)), 0.1).double())
        return predictor(covariance, rows, 9).marginals(grid[:5])

    given = predicted(torch.arange(len(grid)))
    for seed in range(3):
        order = torch.randperm(len(grid), generator=torch.Generator().manual_seed(seed))
        for one, other in zip(given, predicted(order), strict=True):
            assert torch.equal(one, other)


def float32_rows(noise: float, n: int = 600) -> Observations:
    """Rows of a float32 model, close enough to one another to be hard on float32."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, D, generator=generator)
    y = (3.0 * x).sin().sum(1, keepdim=True).mT.double()
    y = y + noise**0.5 * torch.randn(1, n, generator=generator)
    return Observations(x, y, torch.full((1, n), noise).double())


@pytest.mark.parametrize(("inducing", "count"), [(0, 32), (B, 37), (150, 32), (150, 37)])
def test_float32_serves_where_noise_covers_its_rounding(monkeypatch, inducing, count):
    covariance, rows = Covariance(default_kernel()), float32_rows(noise=0.05)
    narrow = predictor(covariance, rows, count, inducing)
    monkeypatch.setattr(near_precision, "LARGEST_ROUNDING", -1.0)
    wide = predictor(covariance, rows, count, inducing)
    assert (narrow.dtype, wide.dtype) == (torch.float32, torch.float64)
    new = torch.rand(300, D, generator=torch.Generator().manual_seed(2))
    (mean, variance), (expected, spread) = narrow.marginals(new), wide.marginals(new)
    assert mean.dtype == variance.dtype == torch.float64
    assert not torch.equal(mean, expected)
    assert ((mean - expected).abs() <= 0.01 * (spread + 0.05).sqrt()).all()
    assert ((variance - spread).abs() <= 0.01 * (spread + 0.05)).all()


def test_float64_serves_where_there_is_little_noise():
    covariance = Covariance(default_kernel())
    assert predictor(covariance, float32_rows(noise=1e-6), 32).dtype == torch.float64


@pytest.mark.skipif(compiled_backend(torch.zeros(1, 1)) is None, reason="no machine code here")
def test_float64_serves_where_matrices_have_no_factor_in_float32(monkeypatch):
    """What is worked on again is right, but slow: not where that is every matrix."""
    monkeypatch.setattr(near_precision, "LARGEST_ROUNDING", math.inf)
    covariance, rows = Covariance(default_kernel()), float32_rows(noise=1e-9)
    assert predictor(covariance, rows, 256).dtype == torch.float64
    monkeypatch.setattr(near_precision, "MOST_FAILURES", 1.0)
    p = predictor(covariance, rows, 256)
    assert p.dtype == torch.float32
    assert p.share_of_failures(torch.arange(50)) > 0.5


def test_rows_in_float64_are_never_rounded(covariance):
    assert predictor(covariance, observations(), 9).dtype == torch.float64


@pytest.mark.parametrize("noise", [0.05, 1e-6])
def test_the_number_of_threads_changes_nothing(noise):
    p = predictor(Covariance(default_kernel()), float32_rows(noise), 20)
    new = torch.rand(100, D, generator=torch.Generator().manual_seed(2))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(p.marginals(new))
    finally:
        torch.set_num_threads(threads)
    for mean, variance in found[1:]:
        torch.testing.assert_close(mean, found[0][0], rtol=0, atol=1e-9)
        torch.testing.assert_close(variance, found[0][1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("inducing", [0, 1, B, 70])
@pytest.mark.parametrize("count", [1, 3, 4, 15, N])
def test_machine_code_and_torch_agree(monkeypatch, inducing, count):
    rows = observations(2, shared=False)
    p = predictor(Covariance(default_kernel()), rows, count, inducing)
    if p._compiled_kernel() is None:
        pytest.skip("no machine code here")
    found = p.marginals(NEW)
    monkeypatch.setattr(near_rows, "compiled_backend", lambda *_: None)
    for one, other in zip(found, p.marginals(NEW), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_a_matrix_without_a_factor_gets_jitter():
    """Duplicates without noise: machine code finds no factor, and torch then adds what it takes."""
    rows = observations()
    twice = Observations(rows.x.repeat(2, 1), rows.y.repeat(1, 2), torch.zeros(1, 2 * N).double())
    mean, variance = predictor(Covariance(default_kernel()), twice, 10, inducing=0).marginals(NEW)
    assert mean.isfinite().all()
    assert (variance > 0).all()
