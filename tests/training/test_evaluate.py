"""The bound and predictions on all rows: what the direct computation gives, in any chunks."""

import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Bernoulli
from orthogp.training import Rows, evaluate, fit, full_bound, held_out_log_density
from orthogp.training.evaluate import predict_in_chunks
from problems import KINDS, make_model, problem
from runs import data, model, settings


def trained(rows, **options):
    m = model(rows, **options)
    fit(m, rows, settings())
    return m


def in_chunks_of(monkeypatch, m, size: int) -> None:
    for name in ("bound_rows", "prediction_rows"):
        monkeypatch.setattr(evaluate, name, lambda _: size)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_full_bound_is_the_bound_on_all_rows(kind, weighted):
    p = problem(seed=3, n=150)
    m = make_model(kind, p)
    weight = torch.rand(150, dtype=torch.float64) if weighted else None
    expected = m.bound(p.x, p.y, weight=weight).value
    assert full_bound(m, Rows(p.x, p.y, weight)) == pytest.approx(expected.item(), rel=1e-10)


def test_the_full_bound_does_not_depend_on_the_chunks(monkeypatch):
    rows = data(n=300)
    m = trained(rows)
    whole = full_bound(m, rows)
    for size in (7, 299, 300, 1000):
        in_chunks_of(monkeypatch, m, size)
        assert full_bound(m, rows) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("kind", ["orthogonal-natural", "hybrid"])
@pytest.mark.parametrize("others", [0, 10])
def test_the_full_bound_where_the_residual_points_are_the_rows(monkeypatch, kind, others):
    """In another order, some of them copies; with `others` not all are."""
    p = problem(seed=3, n=50)
    x, y = torch.cat([p.x, p.x[:5]]), torch.cat([p.y, p.y[5:10]])
    gamma = x[torch.randperm(55, generator=torch.Generator().manual_seed(0))]
    gamma[:others] += 0.5
    m = make_model(kind, type(p)(**vars(p) | {"gamma": gamma}))
    with torch.no_grad():
        m.basis.a_gamma.normal_(generator=torch.Generator().manual_seed(1))
    expected = m.bound(x, y).value.item()
    products, matvec = [], Covariance.matvec

    def counted(self, x, z, a):
        products.append(len(x) if len(z) == 55 else 0)
        return matvec(self, x, z, a)

    monkeypatch.setattr(Covariance, "matvec", counted)
    in_chunks_of(monkeypatch, m, 7)
    monkeypatch.setattr(evaluate, "EXACT_KL_LIMIT", 55 if others else 0)
    assert full_bound(m, Rows(x, y)) == pytest.approx(expected, rel=1e-10)
    assert sum(products) == len(m.basis.beta) + (110 if others else 55)


def test_the_full_bound_of_a_float32_model_is_computed_in_float64():
    rows = data()
    m = trained(rows)
    in_double = m.bound(rows.x.double(), rows.y.double()).value.item()
    assert full_bound(m, rows) == pytest.approx(in_double, rel=1e-11)
    assert full_bound(m, rows) != pytest.approx(m.bound(rows.x, rows.y).value.item(), rel=1e-11)


def test_chunks_shrink_as_inducing_points_grow(monkeypatch):
    monkeypatch.setitem(evaluate.BOUND_ELEMENTS, "cpu", 5000)
    monkeypatch.setitem(evaluate.PREDICTION_ELEMENTS, "cpu", 10_000)
    for inducing, bound, prediction in ((10, 500, 1000), (40, 125, 250), (150, 150, 150)):
        basis = model(data(), b=inducing).basis
        assert evaluate.bound_rows(basis) == bound
        assert evaluate.prediction_rows(basis) == prediction


def test_beyond_the_limit_the_kl_is_estimated_closely(monkeypatch):
    rows = data(n=900)
    m = trained(rows, b=10, g=800)
    exact = full_bound(m, rows)
    monkeypatch.setattr(evaluate, "EXACT_KL_LIMIT", 500)
    errors = {}
    for columns in (10, 400):
        monkeypatch.setattr(evaluate, "ESTIMATE_COLUMNS", columns)
        errors[columns] = abs(full_bound(m, rows) - exact)
    assert 0.0 < errors[400] < 0.02 * abs(exact)


@pytest.mark.parametrize("labels", [False, True])
def test_the_held_out_log_density_is_the_mean_of_its_rows(monkeypatch, labels):
    rows = data()
    if labels:
        rows = Rows(rows.x, (rows.y > 0).long())
    m = trained(rows, likelihood=Bernoulli(1) if labels else None)
    mean, variance = m.predict(rows.x)
    direct = float(m.likelihood.log_density(rows.y, mean, variance).mean().detach())
    for size in (1000, 13):
        in_chunks_of(monkeypatch, m, size)
        assert held_out_log_density(m, rows) == pytest.approx(direct, rel=1e-12)


def test_predictions_come_in_the_order_of_the_rows(monkeypatch):
    rows = data()
    m = trained(rows)
    whole = m.predict(rows.x)
    for size in (7, 1000):
        in_chunks_of(monkeypatch, m, size)
        parts = list(predict_in_chunks(m, rows.x))
        assert len(parts) == -(-len(rows) // size)
        for chunked, direct in zip(zip(*parts, strict=True), whole, strict=True):
            torch.testing.assert_close(torch.cat(chunked, 1), direct, rtol=1e-10, atol=1e-12)


def test_the_bound_of_a_sample_counts_for_all_rows():
    rows = data(40, dtype=torch.float64)
    m = model(rows)
    twice = rows.map(lambda t: torch.cat([t, t]))
    assert full_bound(m, rows, 80) == pytest.approx(full_bound(m, twice))
