"""What a run tells: events in order, histories on disk that a resumed run continues."""

import csv
import json
import sys
from dataclasses import asdict

import pytest

from orthogp.errors import ConfigurationError
from orthogp.training import CsvHistory, Event, JsonlHistory, Report, TensorBoard, fit
from orthogp.training.callbacks import COLUMNS
from orthogp.training.step import Step
from runs import data, model, settings


def train(callbacks, folder=None, held_out=True):
    rows = data()
    validation = data(seed=1) if held_out else None
    return fit(model(rows), rows, settings(), validation, callbacks, folder, 0.0)


def crash(event: Event) -> None:
    if event.kind == "report" and event.step == 15:
        raise ZeroDivisionError("by a callback")


def test_events_come_in_order_with_what_they_promise():
    first, second = [], []
    result = train([first.append, second.append])
    assert [e.kind for e in first] == ["start", *["report"] * 4, "end"]
    assert [e.step for e in first] == [0, 5, 10, 15, 20, 20]
    assert [e.report for e in first] == [None, *result.history, None]
    assert first[-1].message == "steps"
    assert first == second


def test_a_report_holds_the_mean_bound_of_its_steps(monkeypatch):
    values, run = [], Step._run

    def recorded(self) -> None:
        before = float(self.watch.total)
        run(self)
        values.append(float(self.watch.total) - before)

    monkeypatch.setattr(Step, "_run", recorded)
    result = train([])
    means = [sum(values[k : k + 5]) / 5 for k in range(0, 20, 5)]
    assert [row.bound for row in result.history] == pytest.approx(means)


def test_a_resumed_run_starts_with_the_history_so_far(tmp_path):
    events = []
    with pytest.raises(ZeroDivisionError):
        train([crash], tmp_path)
    result = train([events.append], tmp_path)
    assert events[0].kind == "start"
    assert events[0].step == 10
    assert events[0].history == result.history[:2]
    assert [e.step for e in events[1:]] == [15, 20, 20]


def test_an_error_ends_the_run_for_every_callback():
    events = []
    with pytest.raises(ZeroDivisionError):
        train([events.append, crash])
    assert (events[-1].kind, events[-1].message) == ("end", "by a callback")


def read_csv(path) -> list[Report]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Report(int(row.pop("step")), **{k: float(v) if v else None for k, v in row.items()})
        for row in rows
    ]


@pytest.mark.parametrize("held_out", [True, False])
def test_the_csv_file_is_the_history(tmp_path, held_out):
    path = tmp_path / "history.csv"
    result = train([CsvHistory(path)], held_out=held_out)
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert read_csv(path) == list(result.history)


def test_a_resumed_run_continues_the_csv_file_without_repeating_a_row(tmp_path):
    path = tmp_path / "history.csv"
    with pytest.raises(ZeroDivisionError):
        train([CsvHistory(path), crash], tmp_path / "run")
    # Step 15 was reported, and its checkpoint never written.
    assert [row.step for row in read_csv(path)] == [5, 10, 15]
    result = train([CsvHistory(path)], tmp_path / "run")
    assert read_csv(path) == list(result.history)


def test_the_jsonl_file_has_every_event_after_the_start(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    run, count = Step._run, iter(range(1, 10**6))

    def failing(self) -> None:
        run(self)
        if next(count) == 8:
            self.watch.failed[-1] = True

    monkeypatch.setattr(Step, "_run", failing)
    with pytest.warns(UserWarning, match="gradient"):
        result = train([JsonlHistory(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.pop("kind") for row in rows] == [
        "report", "recovery", "report", "report", "report", "end"
    ]  # fmt: skip
    assert "a gradient is not finite" in rows[1]["message"]
    assert rows[-1] == {"step": 20, "message": "steps"}
    assert [rows[k] for k in (0, 2, 3, 4)] == [asdict(row) for row in result.history]


def test_a_resumed_run_continues_the_jsonl_file_without_repeating_a_row(tmp_path):
    path = tmp_path / "history.jsonl"
    with pytest.raises(ZeroDivisionError):
        train([JsonlHistory(path), crash], tmp_path / "run")
    result = train([JsonlHistory(path)], tmp_path / "run")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[:-1] == [{"kind": "report", **asdict(row)} for row in result.history]


def test_tensorboard_gets_every_scalar_once_also_from_a_resumed_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(ZeroDivisionError):
        train([TensorBoard(tmp_path / "board"), crash], tmp_path / "run")
    result = train([TensorBoard(tmp_path / "board")], tmp_path / "run")
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert set(board.Tags()["scalars"]) == set(COLUMNS[1:])
    for name in COLUMNS[1:]:
        found = board.Scalars(name)
        assert [scalar.step for scalar in found] == [5, 10, 15, 20]
        expected = [getattr(row, name) for row in result.history]
        assert [scalar.value for scalar in found] == pytest.approx(expected, rel=1e-6)


def test_tensorboard_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigurationError, match="tensorboard"):
        TensorBoard(tmp_path)
