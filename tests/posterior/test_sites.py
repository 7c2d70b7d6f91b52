"""The sites of rows, and the correction of a mean by those of the near rows."""

import numpy as np
import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Bernoulli, Gaussian
from orthogp.model import VariationalGP, build_basis
from orthogp.posterior import SitePredictor, SiteRows
from orthogp.training import Rows, TrainingConfig, fit
from orthogp.training.sites import ResidualProcess, site_gradients
from problems import default_sum

N, D = 60, 2


def rows_of(labels: bool = False) -> Rows:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator).double()
    f = (3.0 * x[:, 0]).sin() + 0.3 * torch.randn(N, generator=generator)
    return Rows(x, (f > 0).long() if labels else f)


def model_of(rows: Rows, likelihood, beta) -> VariationalGP:
    kernel = default_sum(D).double()
    basis = build_basis("orthogonal", kernel, beta, beta[:0], 1, "natural", "unwhitened", 1e-8)
    return VariationalGP(kernel, likelihood, basis, jitter=1e-8).double()


def test_all_rows_near_a_model_that_knows_nothing_are_the_exact_process():
    """For Gaussian noise the centre of a site is the row itself."""
    rows = rows_of()
    model = model_of(rows, Gaussian().double(), rows.x[:3])
    noise = float(model.likelihood.likelihood.noise)
    process = ResidualProcess(model.covariance.kernel, noise, noise)
    model.near = process.site_rows(model, rows, N)
    new = torch.linspace(-2, 2, 7).double().unsqueeze(1).expand(-1, D)
    mean, variance = model.predict(new)
    with torch.no_grad():
        K = model.covariance.block(rows.x, rows.x).numpy()
        k = model.covariance.block(rows.x, new).numpy()
        before, unchanged = model.without_near_rows().predict(new)
    assert before.abs().max() < 1e-9
    expected = k.T @ np.linalg.solve(K + noise * np.eye(N), rows.y.numpy())
    np.testing.assert_allclose(mean[0], expected, atol=1e-6)
    torch.testing.assert_close(variance, unchanged)


def test_a_row_that_is_left_out_is_corrected_as_by_a_fit_without_it():
    rows = rows_of()
    # The first three are one input: what is left there is the other two.
    rows.x[:3] = rows.x[0].clone()
    model = model_of(rows, Gaussian().double(), rows.x[:3])
    noise = float(model.likelihood.likelihood.noise)
    process = ResidualProcess(model.covariance.kernel, noise, noise)
    some = torch.tensor([0, 5, N - 1])
    found = process.left_out_corrections(model, rows, some, N)
    for place, row in enumerate(some.tolist()):
        others = rows.map(lambda t, row=row: torch.cat([t[:row], t[row + 1 :]]))
        alone = process.site_rows(model, others, N).correction()
        expected, _ = alone.marginals(rows.x[row : row + 1])
        torch.testing.assert_close(found[:, place : place + 1], expected, atol=1e-8, rtol=1e-6)


def test_sites_reproduce_the_optimum_of_the_bound():
    """Where β are all rows the best mean is K g, with the gradients g of its own sites."""
    rows = rows_of(labels=True)
    model = model_of(rows, Bernoulli(), rows.x)
    config = TrainingConfig(
        max_steps=200, batch_size=N, natural_step=0.5, train_hyperparameters=False,
        train_points=False,
    )  # fmt: skip
    fit(model, rows, config)
    mean, variance = model.predict(rows.x)
    g = site_gradients(model.likelihood, rows, mean, variance)
    with torch.no_grad():
        expected = g @ model.covariance.block(rows.x, rows.x)
    torch.testing.assert_close(mean, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def site_rows() -> SiteRows:
    rows = rows_of()
    residual = torch.stack([rows.y, rows.y.square()])
    return SiteRows(rows.x, residual, 0.3, 2.0, default_sum(D).double(), 10)


def test_the_correction_is_that_of_the_nearest_rows(site_rows):
    new = torch.tensor([[0.3, -0.2]]).double()
    covariance = Covariance(site_rows.kernel)
    scale = covariance.relevance(new).sqrt()
    order = ((site_rows.x - new) * scale).square().sum(1).argsort()[:10]
    with torch.no_grad():
        K, k = (covariance.block(site_rows.x[order], z).numpy() for z in (site_rows.x[order], new))
    weights = np.linalg.solve(K + 0.3 * np.eye(10), k)
    found, _ = site_rows.correction().marginals(new)
    expected = site_rows.residual[:, order].numpy() @ weights
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rows_join_in_any_order(site_rows):
    def part(which: slice) -> SiteRows:
        x, residual = site_rows.x[which], site_rows.residual[:, which]
        return SiteRows(x, residual, 0.3, 2.0, site_rows.kernel, 10)

    first, second = part(slice(0, 20)), part(slice(20, N))
    one, other = first.joined(second), second.joined(first)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.residual, other.residual)
    new = site_rows.x[:5] + 0.1
    expected, _ = site_rows.correction().marginals(new)
    torch.testing.assert_close(one.correction().marginals(new)[0], expected)


def test_covariances_are_those_of_the_basis():
    rows = rows_of(labels=True)
    model = model_of(rows, Bernoulli(), rows.x[:5])
    process = ResidualProcess(model.covariance.kernel, 1.0, 1.0)
    plain = model.predictor().full_covariance(rows.x[:4])
    model.near = process.site_rows(model, rows, 8)
    predictor = model.predictor()
    assert isinstance(predictor, SitePredictor)
    torch.testing.assert_close(predictor.full_covariance(rows.x[:4]), plain)
