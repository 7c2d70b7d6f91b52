"""Rows and columns for every step: each once an epoch, each equally likely, each in its stream."""

import pytest
import torch

from orthogp.errors import DataError
from orthogp.execution.team import Team
from orthogp.training import Rows
from orthogp.training.batches import ColumnSampler, Sampler
from orthogp.training.feeds import make_feed
from runs import unchecked

CPU = torch.device("cpu")


@pytest.mark.parametrize(("rows", "batch"), [(10, 3), (12, 4), (7, 1), (5, 5), (3, 100), (1, 1)])
def test_every_epoch_has_every_row_once_and_every_batch_one_size(rows, batch):
    sampler = Sampler(rows, batch, 0, CPU)
    size = min(rows, batch)
    # Uneven draws, as chunks of steps make them.
    stream = torch.cat(
        [sampler.draw(steps) for steps in (1, 4, rows, 3 * rows - 5 if rows > 1 else 1)]
    )
    assert stream.shape[1] == size
    whole = stream.flatten()[: stream.numel() // rows * rows].reshape(-1, rows)
    assert len(whole) >= 2
    assert torch.equal(whole.sort(1).values, torch.arange(rows).expand_as(whole))


def test_epochs_differ_from_each_other_and_from_those_of_another_seed():
    first, second = Sampler(50, 50, 0, CPU).draw(2)
    assert not torch.equal(first, second)
    assert not torch.equal(first, Sampler(50, 50, 1, CPU).draw(1)[0])


@pytest.mark.parametrize("before", [0, 1, 3, 4, 11])
def test_a_restored_sampler_goes_on_with_the_same_rows(before):
    sampler = Sampler(10, 3, 5, CPU)
    if before:
        sampler.draw(before)
    state = sampler.state()
    expected = sampler.draw(20)
    for other in (sampler, Sampler(10, 3, 99, CPU)):
        other.restore(state)
        assert torch.equal(other.draw(20), expected)


def test_the_columns_come_one_from_each_stratum():
    drawn = ColumnSampler(60, 6, 0, CPU).draw(500)
    assert torch.equal(drawn // 10, torch.arange(6).expand(500, 6))


def test_every_residual_point_is_equally_likely():
    # 7 strata of 10/7 points: those that straddle two strata must not gain by it.
    steps, points, columns = 20_000, 10, 7
    drawn = ColumnSampler(points, columns, 0, CPU).draw(steps)
    counts = torch.bincount(drawn.flatten(), minlength=points).double()
    expected = steps * columns / points
    # Each count is a sum of Bernoullis, of variance below `expected`: 4.5 standard deviations.
    assert (counts - expected).abs().max() < 4.5 * expected**0.5


def test_restored_columns_go_on_with_the_same_columns():
    sampler = ColumnSampler(100, 8, 3, CPU)
    sampler.draw(5)
    state, expected = sampler.state(), sampler.draw(9)
    other = ColumnSampler(100, 8, 4, CPU)
    other.restore(state)
    assert torch.equal(other.draw(9), expected)


def test_the_feed_gives_the_rows_that_were_drawn_in_the_models_dtype():
    x, y, weight = torch.randn(20, 3), torch.arange(20), torch.rand(20)
    feed = make_feed(Rows(x, y, weight), 4, 0, Team(), CPU, torch.float64)
    for index, _ in zip(Sampler(20, 4, 0, CPU).draw(5), feed.run(5), strict=True):
        assert torch.equal(feed.batch[0], x[index].double())
        assert torch.equal(feed.batch[1], y[index])
        assert torch.equal(feed.batch[2], weight[index].double())


def test_chunks_are_the_rows_in_order():
    rows = Rows(torch.randn(10, 2), torch.randn(10), torch.rand(10))
    parts = list(rows.chunks(4))
    assert [len(part) for part in parts] == [4, 4, 2]
    for k, whole in enumerate(rows.parts()):
        assert torch.equal(torch.cat([part.parts()[k] for part in parts]), whole)


def test_rows_that_do_not_fit_together_are_refused():
    x = torch.randn(4, 2)
    with pytest.raises(DataError, match="no rows"):
        Rows(x[:0], torch.zeros(0))
    with pytest.raises(DataError, match="y has 3"):
        unchecked(Rows, x=x, y=torch.zeros(3), weight=None).__post_init__()
    with pytest.raises(DataError, match="weight has 5"):
        unchecked(Rows, x=x, y=torch.zeros(4), weight=torch.ones(5)).__post_init__()
