"""Variances of many rows: in float32, and in float64 where float32 would show."""

import pytest
import torch

from orthogp.kernel import radial
from orthogp.likelihoods import RobustMax
from orthogp.posterior import predictor
from orthogp.training import Rows, fit
from runs import data, model, settings

ROWS = 2 * predictor.MANY


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if radial.compiled_backend(torch.zeros(1, 1)) is None:
        pytest.skip("without compiled sums everything is in float64")


def trained(dtype=torch.float32, classes=0):
    rows = data(n=600, dtype=dtype)
    likelihood = RobustMax(classes) if classes else None
    if classes:
        rows = Rows(rows.x, (rows.x[:, 0] * 2).long().clamp(0, classes - 1))
    m = model(rows, b=40, likelihood=likelihood)
    fit(m, rows, settings(max_steps=60, batch_size=256))
    # Rows that lie far out, near a point, and on one.
    x = torch.cat([3.0 * torch.randn(ROWS - 80, 2), m.basis.beta.detach() + 1e-3, m.basis.beta])
    return m.predictor(), x.detach()


def in_pieces(p, x):
    """So few rows at a time that everything is in float64."""
    parts = [p.marginals(part) for part in x.split(predictor.MANY - 1)]
    return (torch.cat(t, dim=1) for t in zip(*parts, strict=True))


@pytest.mark.parametrize("classes", [0, 3])
def test_many_rows_have_the_variances_of_few(classes, monkeypatch):
    p, x = trained(classes=classes)
    assert 0.0 < p.rounding < 1e-5
    mean, wanted = in_pieces(p, x)
    prior = p.covariance.diagonal(x.double())
    # Half of the rows are too small for float32.
    share = (wanted / prior).amin(0).median().item()
    monkeypatch.setattr(predictor, "TIMES_ROUNDING", share / p.rounding)
    many, found = p.marginals(x)
    torch.testing.assert_close(many, mean, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(p.mean(x), many, rtol=1e-11, atol=1e-12)
    error = (found - wanted).abs() / prior
    assert 0.0 < error.max() < 3.0 * p.rounding
    again = (wanted < 0.99 * share * prior).any(0)
    assert 0.3 * len(x) < again.sum() < 0.7 * len(x)
    assert error[:, again].max() < 1e-13


def test_what_rounding_leaves_of_a_variance_is_a_small_share_of_it():
    p, x = trained()
    _, wanted = in_pieces(p, x)
    _, found = p.marginals(x)
    assert ((found - wanted).abs() / wanted).max() < 2.0 / predictor.TIMES_ROUNDING


def test_rounding_that_is_too_large_leaves_everything_in_float64(monkeypatch):
    monkeypatch.setattr(predictor, "LARGEST_ROUNDING", 1e-12)
    p, x = trained()
    assert p.rounding is None
    for many, few in zip(p.marginals(x), in_pieces(p, x), strict=True):
        torch.testing.assert_close(many, few, rtol=1e-11, atol=1e-12)


def test_a_float64_model_is_predicted_in_float64():
    assert trained(torch.float64)[0].rounding is None
