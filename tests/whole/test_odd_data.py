"""Data at the edges of what a table can be: each trains to a finite model, without a recovery."""

import pytest
import torch

from orthogp.likelihoods import Bernoulli, RobustMax
from orthogp.training import Rows, fit, full_bound
from runs import contents, data, finite, model, same, settings


def trained(m, rows, **changes):
    before = full_bound(m, rows)
    result = fit(m, rows, settings(**changes))
    assert result.recoveries == 0
    assert result.steps == 20
    assert finite(m)
    assert full_bound(m, rows) > before
    return m


def test_one_column():
    rows = data(d=1)
    trained(model(rows), rows)


@pytest.mark.parametrize("optimizer", ["natural", "adam"])
def test_one_row(optimizer):
    rows = data(n=1)
    m = trained(model(rows, optimizer=optimizer, b=1, g=0), rows)
    assert m.basis.gamma.shape[0] == 0


def test_one_residual_point():
    rows = data()
    trained(model(rows, b=5, g=1), rows)


def test_fewer_rows_than_a_batch_and_than_inducing_points():
    rows, wide = data(n=7), data(n=40)
    m = model(wide, b=12, g=16)
    trained(m, rows, batch_size=1000)


def test_fewer_rows_than_a_batch_makes_the_batch_all_rows():
    rows, ends = data(n=7), []
    for size in (7, 1000):
        m = model(data(n=40))
        fit(m, rows, settings(batch_size=size))
        ends.append(contents(m))
    assert same(*ends)


def test_batches_of_one_row():
    rows = data()
    trained(model(rows), rows, batch_size=1, natural_step=0.02)


def test_a_constant_target():
    rows = data()
    rows = Rows(rows.x, torch.full_like(rows.y, 3.0))
    trained(model(rows), rows)


def test_equal_rows():
    rows = data()
    rows = Rows(rows.x[:1].repeat(50, 1), rows.y[:50])
    trained(model(rows, "coupled"), rows)


def test_labels_of_one_kind_only():
    rows = data()
    rows = Rows(rows.x, torch.ones(len(rows), dtype=torch.long))
    trained(model(rows, likelihood=Bernoulli(1)), rows)


def test_twenty_six_classes():
    rows = data()
    labels = ((rows.y - rows.y.min()) / (rows.y.max() - rows.y.min()) * 25.999).long()
    rows = Rows(rows.x, labels)
    assert len(labels.unique()) > 15
    m = model(rows, likelihood=RobustMax(26))
    # Rounding alone decides where steps of the default size, on so few points, end.
    trained(m, rows, natural_warmup=5, natural_step=0.02)


def test_rows_of_weight_zero_are_as_good_as_absent():
    rows = data(n=60)
    weight = torch.ones(60)
    weight[30:] = 0.0
    spoiled = Rows(rows.x, torch.where(weight > 0, rows.y, torch.full_like(rows.y, 1e3)), weight)
    ends = []
    for part in (Rows(rows.x, rows.y, weight), spoiled):
        m = model(rows)
        fit(m, part, settings(batch_size=60))
        ends.append(contents(m))
    assert same(*ends)


def test_no_weight_at_all_leads_to_the_prior():
    rows = data()
    nothing = Rows(rows.x, rows.y, torch.zeros(len(rows)))
    m = model(rows)
    with torch.no_grad():
        m.basis.get_submodule("q").get_buffer("precision_mean").fill_(1.0)
    fit(m, nothing, settings(natural_step=0.5))
    mean, _ = m.predict(rows.x)
    assert mean.abs().max() < 1e-3
