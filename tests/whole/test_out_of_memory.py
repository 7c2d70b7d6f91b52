"""Where a device's memory ends, prediction goes on in smaller chunks."""

import pytest
import torch

from orthogp.errors import NumericalError
from orthogp.model import VariationalGP
from orthogp.training import TrainingConfig, fit, full_bound, held_out_log_density
from orthogp.training.evaluate import predict_in_chunks
from runs import data, model


def out_of_memory_beyond(monkeypatch, most):
    """A device that has memory for so many rows; the chunks that were asked for."""
    predict, asked = VariationalGP.predict, []

    def limited(self, x, predictor=None):
        asked.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predict(self, x, predictor)

    monkeypatch.setattr(VariationalGP, "predict", limited)
    return asked


def test_out_of_memory_halves_the_chunks_and_changes_no_prediction(monkeypatch):
    rows = data(500, dtype=torch.float64)
    m = model(rows)
    expected = [torch.cat(parts, 1) for parts in zip(*predict_in_chunks(m, rows.x), strict=True)]
    asked = out_of_memory_beyond(monkeypatch, 70)
    found = [torch.cat(parts, 1) for parts in zip(*predict_in_chunks(m, rows.x), strict=True)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert asked[0] == 500
    # Once it is known what fits, no more is asked for.
    assert [count for count in asked if count > 70] == [500, 250, 125]


def test_memory_for_no_row_at_all_is_told_in_a_sentence(monkeypatch):
    rows = data(20)
    out_of_memory_beyond(monkeypatch, 0)
    with pytest.raises(NumericalError, match="no memory"):
        list(predict_in_chunks(model(rows), rows.x))


def test_bounds_and_held_out_densities_are_taken_in_smaller_chunks(monkeypatch):
    rows = data(500, dtype=torch.float64)
    m = model(rows)
    expected = full_bound(m, rows), held_out_log_density(m, rows)
    project = type(m.basis).project

    def limited(self, covariance, factor, x, *more):
        if len(x) > 70:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return project(self, covariance, factor, x, *more)

    monkeypatch.setattr(type(m.basis), "project", limited)
    asked = out_of_memory_beyond(monkeypatch, 70)
    found = full_bound(m, rows), held_out_log_density(m, rows)
    assert found == pytest.approx(expected, rel=1e-12)
    assert asked[:4] == [500, 250, 125, 62]


@pytest.mark.cuda
def test_a_gpu_that_is_nearly_full_predicts_in_smaller_chunks():
    rows = data(200_000, d=8)
    m = model(rows, b=300, g=700).cuda()
    fit(m, rows, TrainingConfig(max_steps=20))
    predictor = m.predictor()
    expected = list(predict_in_chunks(m, rows.x, predictor))
    torch.cuda.empty_cache()
    # Less than one chunk of the usual size needs, more than a small one does.
    allowed = torch.cuda.memory_reserved() + 2**27
    try:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(allowed / total)
        found = list(predict_in_chunks(m, rows.x, predictor))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(found) > len(expected)
    for one, other in zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(one, 1), torch.cat(other, 1), rtol=1e-9, atol=1e-9)
