"""The progress bar: news for a terminal, silence for anything else."""

import io
import re

import pytest
from rich.console import Console

from orthogp.training import Event, ProgressBar, Report, fit
from runs import data, model, settings

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def terminal(**options) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=140, **options)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(console: Console) -> list[str]:
    """The lines as a terminal got them, without colours and movements of the cursor."""
    return [line for line in re.split(r"[\r\n]+", ESCAPES.sub("", written(console))) if line]


def report(step: int, seconds: float, held_out: float | None = None, bound=-12345.678) -> Event:
    return Event("report", step, Report(step, seconds, bound, held_out, 0.01, 0.1))


def test_a_run_is_shown_from_start_to_end():
    console, rows = terminal(), data()
    result = fit(model(rows), rows, settings(), data(seed=1), [ProgressBar(20, console=console)])
    lines = shown(console)
    for row in result.history:
        bound, held_out = f"bound {row.bound:.6g} ", f"held-out {row.held_out:.4f} "
        step = f"step {row.step}/20 "
        assert any(step in s and bound in s and held_out in s for s in lines)
    assert "100%" in lines[-1]


def test_speed_and_time_left():
    console = terminal()
    bar = ProgressBar(1000, console=console)
    bar(Event("start", 0))
    bar(report(100, 4.0))
    assert "25 steps/s · bound -12345.7 · 0:00:36 left" in shown(console)[-1]
    assert "10%" in shown(console)[-1]
    assert "held-out" not in written(console)
    bar(Event("end", 100))


def test_speed_is_that_of_the_resumed_process():
    console = terminal()
    bar = ProgressBar(1000, console=console)
    history = (Report(500, 1000.0, 0.0, None, 0.01, 0.1),)
    bar(Event("start", 500, history=history))
    bar(report(600, 1010.0))
    assert "10 steps/s" in shown(console)[-1]
    assert "0:00:40 left" in shown(console)[-1]
    bar(Event("end", 600))


@pytest.mark.parametrize(
    ("seconds", "percent", "left"), [(15.0, " 25%", "0:00:45"), (70.0, "100%", "0:00:00")]
)
def test_a_time_budget_counts_where_it_ends_the_run_first(seconds, percent, left):
    console = terminal()
    bar = ProgressBar(10**6, max_time=60.0, console=console)
    bar(Event("start", 0))
    bar(report(150, seconds))
    assert percent in shown(console)[-1]
    assert f"{left} left" in shown(console)[-1]
    bar(Event("end", 150))


def test_a_recovery_is_printed_above_the_bar_and_stays():
    console = terminal()
    bar = ProgressBar(1000, console=console)
    bar(Event("start", 0))
    bar(report(50, 1.0))
    bar(Event("recovery", 50, message="step 50: the bound is not finite [again]"))
    lines = shown(console)
    assert "step 50: the bound is not finite [again]" in lines
    # The bar is drawn again below it.
    assert "step 50/1000" in lines[-1]
    bar(Event("end", 50))


@pytest.mark.parametrize("message", ["steps", "training failed 9 times"])
def test_the_end_gives_the_terminal_back(message):
    console = terminal()
    bar = ProgressBar(1000, console=console)
    bar(Event("start", 0))
    assert written(console).rstrip().startswith("\x1b[?25l")
    bar(Event("end", 0, message=message))
    assert written(console).rstrip().endswith("\x1b[?25h")


def test_without_a_terminal_there_is_silence():
    console, rows = Console(file=io.StringIO()), data()
    fit(model(rows), rows, settings(), callbacks=[ProgressBar(20, console=console)])
    assert written(console) == ""
