"""Rows in blocks: each once an epoch, in an order that the seed alone decides."""

import pytest
import torch

from orthogp.execution.team import Team
from orthogp.training import Rows, fit, full_bound, streams
from orthogp.training.feeds import BLOCKS_A_PROCESS, make_feed
from runs import Blocks, contents, data, model, same, settings, untimed
from team import together

CPU = torch.device("cpu")


def numbered(sizes):
    count = sum(sizes)
    return Blocks(Rows(torch.zeros(count, 1), torch.arange(count)), sizes)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(streams, "WINDOW_ROWS", 8)


def seen(feed, steps):
    return torch.cat([feed.batch[1].clone() for _ in feed.run(steps)])


@pytest.mark.parametrize("batch", [1, 3, 7, 10, 25])
@pytest.mark.parametrize("sizes", [(5, 3, 0, 4, 9, 1, 3), (25,), (1,) * 25])
def test_every_epoch_has_every_row_once(sizes, batch):
    feed = make_feed(numbered(sizes), batch, 0, Team(), CPU, torch.float32)
    epochs = seen(feed, 25 * 3).reshape(-1, 25)
    assert torch.equal(epochs.sort(1).values, torch.arange(25).expand_as(epochs))
    assert not torch.equal(epochs[0], epochs[1])


def test_rows_of_one_window_are_mixed():
    feed = make_feed(numbered((4,) * 10), 8, 0, Team(), CPU, torch.float32)
    first = seen(feed, 1)
    blocks = (first // 4).unique()
    assert len(blocks) == 2
    assert not torch.equal(first, first.sort().values)


@pytest.mark.parametrize("before", [0, 1, 2, 9, 40])
def test_a_restored_feed_goes_on_with_the_same_rows(before):
    stream = numbered((5, 3, 0, 4, 9, 1, 3))
    feed = make_feed(stream, 4, 7, Team(), CPU, torch.float32)
    if before:
        seen(feed, before)
    state = feed.state()
    expected = seen(feed, 30)
    other = make_feed(stream, 4, 7, Team(), CPU, torch.float32)
    for again in (feed, other):
        again.restore(state)
        assert torch.equal(seen(again, 30), expected)


def test_several_readers_change_nothing(monkeypatch):
    def batches():
        stream = numbered((5, 3, 0, 4, 9, 1, 3))
        stream.concurrent = True
        feed = make_feed(stream, 4, 7, Team(), CPU, torch.float32)
        first = seen(feed, 5)
        state = feed.state()
        rest = seen(feed, 30)
        feed.restore(state)
        return first, rest, seen(feed, 30)

    expected = batches()
    monkeypatch.setitem(streams.READERS, "cpu", 3)
    found = batches()
    assert all(map(torch.equal, found, expected))
    assert torch.equal(found[1], found[2])


def test_processes_read_blocks_of_their_own():
    sizes, teams = (3,) * 16, [Team(rank, 3) for rank in range(3)]
    assert len(sizes) >= BLOCKS_A_PROCESS * len(teams)
    parts = [numbered(sizes) for _ in teams]
    feeds = [make_feed(p, 6, 1, t, CPU, torch.float32) for p, t in zip(parts, teams, strict=True)]
    rows = torch.cat([seen(feed, 6) for feed in feeds])
    assert len(rows.unique()) == len(rows) == 36
    # The first window of each, and the one after it, which is read ahead.
    first = [set(part.read[:3]) for part in parts]
    assert all(len(blocks) == 3 for blocks in first)
    assert len(set.union(*first)) == 9


def test_with_few_blocks_processes_share_every_batch():
    stream = numbered((10, 15))
    alone = make_feed(stream, 7, 3, Team(), CPU, torch.float32)
    feeds = [make_feed(stream, 7, 3, Team(r, 2), CPU, torch.float32) for r in range(2)]
    for _ in range(12):
        assert torch.equal(torch.cat([seen(feed, 1) for feed in feeds]), seen(alone, 1))


def test_a_run_on_a_stream_resumes_where_it_stopped(tmp_path):
    rows = data(60)
    stream = Blocks(rows, (11, 20, 0, 29))
    undisturbed = model(rows)
    expected = fit(undisturbed, stream, settings())

    def interrupt(event):
        if event.kind == "report" and event.step == 10:
            raise KeyboardInterrupt

    disturbed = model(rows)
    fit(disturbed, stream, settings(), callbacks=[interrupt], checkpoint_dir=tmp_path)
    disturbed = model(rows)
    result = fit(disturbed, stream, settings(), checkpoint_dir=tmp_path)
    assert untimed(result) == untimed(expected)
    assert same(contents(disturbed), contents(undisturbed))


def test_the_bound_of_a_stream_is_that_of_its_rows():
    rows = data(60, dtype=torch.float64)
    m = model(rows)
    assert full_bound(m, Blocks(rows, (11, 20, 0, 29))) == pytest.approx(full_bound(m, rows))


def test_whole_batches_of_a_stream_train_as_rows_in_memory_do():
    # With every row in every batch the order is all that differs.
    rows = data(40, dtype=torch.float64)
    ends = []
    for source in (rows, Blocks(rows, (15, 25))):
        m = model(rows)
        fit(m, source, settings(batch_size=40))
        ends.append(contents(m))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("blocks", ["2", "40"])
def test_processes_end_alike_on_a_stream(tmp_path, blocks):
    ends = together(2, "train_stream", tmp_path, blocks)
    assert same(*ends)
    assert all(bool(value.isfinite().all()) for value in ends[0].values())
