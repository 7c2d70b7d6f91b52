"""A progress bar for terminals, as a callback."""

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from orthogp.training.callbacks import Event, Report

if TYPE_CHECKING:
    import rich.console


class ProgressBar:
    """Steps a second, bound, held-out log density and time left; silent without a terminal.

    `max_steps` and `max_time` are those of the run. Rich is imported here and not with orthogp:
    most runs have no terminal.
    """

    def __init__(
        self,
        max_steps: int,
        max_time: float | None = None,
        console: "rich.console.Console | None" = None,
    ):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.max_steps, self.max_time = max_steps, max_time
        self.console = Console(stderr=True) if console is None else console
        columns = (
            TextColumn("{task.percentage:3.0f}%"),
            BarColumn(),
            TextColumn("{task.description}"),
        )
        # Drawn when there is news, not by a thread: the cores belong to the run.
        self.bar = Progress(*columns, console=self.console, auto_refresh=False)
        self.task = self.bar.add_task("", total=1.0)

    def __call__(self, event: Event) -> None:
        if not self.console.is_terminal:
            return
        if event.kind == "start":
            # Speed is that of this process, not of the one that started a resumed run.
            self.first_step = event.step
            self.first_second = event.history[-1].seconds if event.history else 0.0
            self.bar.update(self.task, completed=0.0, description=f"step {event.step}")
            self.bar.start()
        elif event.report is not None:
            done, text = self._describe(event.report)
            self.bar.update(self.task, completed=done, description=text)
        elif event.kind == "recovery":
            self.console.print(event.message, markup=False, highlight=False)
        self.bar.refresh()
        if event.kind == "end":
            self.bar.stop()

    def _describe(self, report: Report) -> tuple[float, str]:
        """How much of the run is done, and what to say of it."""
        elapsed = max(report.seconds - self.first_second, 1e-9)
        speed = (report.step - self.first_step) / elapsed
        # A search for hyperparameters may take more steps than most do.
        done = min(1.0, report.step / self.max_steps)
        left = max(0.0, self.max_steps - report.step) / max(speed, 1e-9)
        if self.max_time is not None:
            done = max(done, min(1.0, report.seconds / self.max_time))
            left = min(left, max(0.0, self.max_time - report.seconds))
        parts = [
            f"step {report.step}/{self.max_steps}",
            f"{speed:.3g} steps/s",
        ]
        if not math.isnan(report.bound):
            parts.append(f"bound {report.bound:.6g}")
        if report.held_out is not None:
            parts.append(f"held-out {report.held_out:.4f}")
        return done, " · ".join([*parts, f"{timedelta(seconds=round(left))} left"])
