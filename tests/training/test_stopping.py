"""The ways in which a run ends: patience, time, an interrupt; and what it leaves each time."""

import math

import pytest
import torch

from orthogp.errors import ConfigurationError
from orthogp.training import Event, Rows, fit, held_out_log_density, loop
from orthogp.training.step import Step
from runs import contents, data, finite, model, same, settings


class Remember:
    """The model's contents at every report."""

    def __init__(self, m):
        self.model, self.reported = m, {}

    def __call__(self, event: Event) -> None:
        if event.kind == "report":
            self.reported[event.step] = contents(self.model)


def overfitting() -> tuple[Rows, Rows]:
    """Rows and held-out rows of opposite functions: what is learned of one is lost on the other."""
    rows, other = data(n=60), data(n=60, seed=1)
    return rows, Rows(other.x, -other.y)


def test_patience_stops_and_returns_to_the_best_state():
    rows, held_out = overfitting()
    m = model(rows)
    remember = Remember(m)
    config = settings(max_steps=100, patience=2, natural_step=0.01)
    result = fit(m, rows, config, held_out, [remember])
    assert result.reason == "patience"
    values = [row.held_out for row in result.history]
    best = max(range(len(values)), key=values.__getitem__)
    # Two reports without a better one, and no third.
    assert len(values) == best + 3
    assert result.steps == result.history[-1].step < 100
    assert held_out_log_density(m, held_out) == values[best]
    assert same(contents(m), remember.reported[result.history[best].step])
    assert not same(contents(m), remember.reported[result.steps])


def test_without_patience_the_held_out_value_is_told_and_the_last_state_kept():
    rows, held_out = overfitting()
    m = model(rows)
    result = fit(m, rows, settings(), held_out)
    assert result.reason == "steps"
    assert held_out_log_density(m, held_out) == result.history[-1].held_out
    assert result.history[-1].held_out < result.history[0].held_out


def test_a_run_that_ran_out_of_patience_does_not_go_on_when_resumed(tmp_path, monkeypatch):
    rows, held_out = overfitting()
    config = settings(max_steps=100, patience=2, natural_step=0.01)
    ends = []
    for _ in range(2):
        m = model(rows)
        result = fit(m, rows, config, held_out, (), tmp_path, 0.0)
        ends.append((result, contents(m)))
        monkeypatch.setattr(Step, "_run", lambda self: pytest.fail("a step was taken"))
    assert ends[0][0] == ends[1][0]
    assert same(ends[0][1], ends[1][1])


def test_the_best_state_survives_the_process(tmp_path):
    rows, held_out = overfitting()
    config = settings(max_steps=100, patience=3, natural_step=0.01)

    def crash(event: Event) -> None:
        if event.kind == "report" and event.step == undisturbed.steps - 5:
            raise ZeroDivisionError

    m, n = model(rows), model(rows)
    undisturbed = fit(m, rows, config, held_out)
    with pytest.raises(ZeroDivisionError):
        fit(model(rows), rows, config, held_out, [crash], tmp_path, 0.0)
    result = fit(n, rows, config, held_out, (), tmp_path, 0.0)
    assert (result.reason, result.steps) == ("patience", undisturbed.steps)
    assert same(contents(m), contents(n))


def test_patience_needs_rows_to_judge_by():
    rows = data()
    with pytest.raises(ConfigurationError, match="no validation rows"):
        fit(model(rows), rows, settings(patience=2))


def test_the_time_budget_stops_the_run(monkeypatch):
    rows = data()
    m = model(rows)
    # A clock on which every look takes a second.
    clock = iter(range(10**6))
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(clock)))
    result = fit(m, rows, settings(max_steps=10**6, max_time=3.0))
    assert result.reason == "time"
    assert result.seconds >= 3.0
    assert result.steps == len(result.history) * 5
    assert result.history[-2].seconds < 3.0
    assert finite(m)


def test_the_schedule_follows_the_clock_when_time_is_what_ends_the_run(monkeypatch):
    rows = data()
    clock = iter(range(10**6))
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(clock)))
    config = settings(max_steps=10**6, max_time=8.0, schedule="cosine", schedule_warmup=0)
    result = fit(model(rows), rows, config)
    # A report tells the rate of steps that began when the report before it was made.
    for before, row in zip(result.history, result.history[1:], strict=False):
        share = 0.5 * (1.0 + math.cos(math.pi * before.seconds / 8.0))
        assert row.learning_rate == pytest.approx(config.learning_rate * share, rel=1e-4)


def interrupt_report(monkeypatch, events):
    def callback(event: Event) -> None:
        events.append(event.kind)
        if event.kind == "report" and event.step == 10:
            raise KeyboardInterrupt

    return callback


def interrupt_step(monkeypatch, events):
    count, run = iter(range(1, 10**6)), Step._run

    def interrupted(self) -> None:
        if next(count) == 13:
            raise KeyboardInterrupt
        run(self)

    monkeypatch.setattr(Step, "_run", interrupted)
    return lambda event: events.append(event.kind)


def interrupt_evaluation(monkeypatch, events):
    count = iter(range(1, 10**6))

    def interrupted(m, rows) -> float:
        if next(count) == 3:
            raise KeyboardInterrupt
        return held_out_log_density(m, rows)

    monkeypatch.setattr(loop, "held_out_log_density", interrupted)
    return lambda event: events.append(event.kind)


@pytest.mark.parametrize("arrange", [interrupt_report, interrupt_step, interrupt_evaluation])
def test_an_interrupt_returns_the_model_of_the_last_report(monkeypatch, tmp_path, arrange):
    rows, held_out, events = data(), data(seed=1), []
    m = model(rows)
    remember = Remember(m)
    callback = arrange(monkeypatch, events)
    result = fit(m, rows, settings(), held_out, [remember, callback], tmp_path)
    assert (result.reason, result.steps) == ("interrupt", 10)
    assert [row.step for row in result.history] == [5, 10]
    assert events == ["start", "report", "report", "end"]
    assert same(contents(m), remember.reported[10])
    assert result.history[-1].held_out == held_out_log_density(m, held_out)
    assert all(p.grad is None for p in m.parameters())
    monkeypatch.undo()
    # And it can be gone on with, as if nothing had happened.
    n, undisturbed = model(rows), model(rows)
    assert fit(n, rows, settings(), held_out, (), tmp_path).steps == 20
    fit(undisturbed, rows, settings(), held_out)
    assert same(contents(n), contents(undisturbed))


def test_q_and_the_rest_are_of_one_state_after_an_interrupt():
    """In the coordinates that L fixes, an L of another step would change the predictions."""
    rows, predictions = data(), []
    m = model(rows, hold_fixed="unwhitened")

    def callback(event: Event) -> None:
        if event.kind == "report":
            predictions.append(m.predict(rows.x))
            if event.step == 10:
                raise KeyboardInterrupt

    fit(m, rows, settings(), callbacks=[callback])
    for now, then in zip(m.predict(rows.x), predictions[-1], strict=True):
        assert torch.equal(now, then)
