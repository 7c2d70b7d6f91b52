"""One run: its data and samplers, and what it takes to step, rewind, recover and resume."""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orthogp.errors import ConfigurationError, FileError, NumericalError
from orthogp.execution.team import current_team
from orthogp.execution.urls import RemotePath, locate
from orthogp.model import VariationalGP
from orthogp.training.batches import ColumnSampler, Rows
from orthogp.training.callbacks import Callback, Event, Report
from orthogp.training.checkpoint import Checkpoint, Checkpoints, fingerprint
from orthogp.training.config import TrainingConfig
from orthogp.training.feeds import make_feed
from orthogp.training.overlapped import OverlappedStep
from orthogp.training.sharing import deal, make_shards
from orthogp.training.state import (
    Progress,
    State,
    damaged_otherwise,
    packed,
    require_like,
    unpacked,
)
from orthogp.training.step import Step
from orthogp.training.streams import Stream

MAX_RECOVERIES = 8
# After a recovery steps are a quarter of their size; in ten good reports they are back at it.
EASE, REPORTS_TO_RELAX = 0.25, 10
FLOAT64_AFTER = 3
LARGEST_JITTER = 1e-3


class Run:
    """One run: the model, its data, and what it takes to step, rewind and resume."""

    def __init__(
        self,
        model: VariationalGP,
        rows: Rows | Stream,
        config: TrainingConfig,
        validation: Rows | None,
        callbacks: Iterable[Callback],
        checkpoint_dir: str | Path | RemotePath | None,
        checkpoint_seconds: float,
    ):
        if config.patience is not None and validation is None:
            raise ConfigurationError(
                f"patience is {config.patience} and there are no validation rows to judge by; "
                "pass validation or leave patience None"
            )
        # A label beyond the last class would be an index beyond the end, on a GPU a fault of it.
        for part in (rows, validation):
            if isinstance(part, Rows):
                model.likelihood.check_targets(part.y)
        self.model, self.rows, self.config = model, rows, config
        self.team = current_team()
        self.validation = validation
        self.callbacks = tuple(callbacks) if self.team.leads else ()
        self.checkpoint_seconds, self.last_saved = checkpoint_seconds, time.monotonic()
        self.checkpoints = None
        if checkpoint_dir is not None:
            self.checkpoints = Checkpoints(checkpoint_dir, fingerprint(model, rows, config))
        self.device = model.basis.beta.device
        self.batch_rows = min(config.batch_size, len(rows))
        self._share_residual(checkpoint_dir)
        self.column_sampler = None
        if self.num_columns is not None:
            seed = config.seed + 1 + (self.team.rank if model.basis.shards else 0)
            count = model.basis.gamma.shape[0]
            self.column_sampler = ColumnSampler(count, self.num_columns, seed, self.device)
        self.progress = Progress()
        self.best_state: dict[str, Tensor] | None = None
        self.build()
        # Points by k-means may differ in a last bit between machines.
        self.team.align(self.step.common_tensors())

    def _share_residual(self, checkpoint_dir: str | Path | RemotePath | None) -> None:
        """Deals γ out where that is asked for, and says how many columns a step draws here."""
        basis, config, team = self.model.basis, self.config, self.team
        num_columns = config.columns(basis.gamma.shape[0])
        self.num_columns = num_columns if basis.gamma.shape[0] else None
        validated = self.validation is not None
        shards = make_shards(basis, config, team, self.batch_rows, validated)
        if shards is None:
            return
        deal(basis, shards)
        own = team.share(shards.num_columns)
        self.num_columns = own.stop - own.start
        if checkpoint_dir is not None and self.checkpoints is not None:
            # Each process has something of its own to keep.
            folder = locate(checkpoint_dir) / f"process-{team.rank}-of-{team.size}"
            self.checkpoints = Checkpoints(folder, self.checkpoints.fingerprint)

    def build(self) -> None:
        """The step for the model's present dtype and jitter."""
        dtype = self.model.basis.beta.dtype
        config, team = self.config, self.team
        self.feed = make_feed(self.rows, config.batch_size, config.seed, team, self.device, dtype)
        kind = OverlappedStep if self.device.type == "cuda" else Step
        self.step = kind(
            self.model, config, len(self.rows), self.feed.batch, self.num_columns,
            team, self.batch_rows,
        )  # fmt: skip

    def rates(self, steps: int) -> Tensor:
        """Learning rate, τ and the γ rule's rate of the next steps, on the device."""
        p, config = self.progress, self.config
        spent = 0.0 if config.max_time is None else p.seconds / config.max_time
        gaussian, basis = self.model.likelihood.gaussian, self.model.basis
        shards = basis.shards
        num_residual = len(basis.gamma) if shards is None else shards.num_residual
        rows = []
        for step in range(p.step, p.step + steps):
            done = max(step / config.max_steps, spent)
            rate = config.learning_rate_at(step, done)
            tau = config.natural_step_at(step, done, gaussian)
            residual = config.residual_step_at(step, done, len(self.rows), num_residual)
            ease = math.sqrt(p.caution)
            rows.append([rate * ease, tau * p.caution, residual * ease])
        return torch.tensor(rows, dtype=torch.float32).to(self.device, non_blocking=True)

    def chunk(self, steps: int) -> tuple[float, str | None]:
        """Runs `steps` steps without reading the device; the mean bound, and the fault, if any."""
        try:
            self._run(steps)
            # The host looks here, and only here.
            fault = self.step.fault()
        except NumericalError as error:
            # On a CPU a factor is read as soon as it is made; what spoiled it came before.
            fault = self.step.watch.cause() or str(error)
        return self.step.watch.read() / steps, self.team.first_of(fault)

    def _run(self, steps: int) -> None:
        if self.progress.step // self.config.refresh_every > self.progress.last_refresh:
            self._raise_together(self._failure_of(self.step.refresh))
            self.progress.last_refresh = self.progress.step // self.config.refresh_every
        rates = self.rates(steps)
        columns = None if self.column_sampler is None else self.column_sampler.draw(steps)
        failure = None
        for k, _ in enumerate(self.feed.run(steps)):
            self.step.rates.copy_(rates[k])
            if columns is not None and self.step.columns is not None:
                self.step.columns.copy_(columns[k])
            failure = self._failure_of(self.step) or failure
        self._raise_together(failure)

    def _failure_of(self, work: Callable[[], None]) -> str | None:
        """Does the work; a `NumericalError` is raised where this process is alone.

        Among several it is returned: the others wait for this process in collectives to come.
        """
        try:
            work()
        except NumericalError as error:
            if self.team.size == 1:
                raise
            return str(error)
        return None

    def _raise_together(self, failure: str | None) -> None:
        """Raises in every process what failed in one."""
        found = self.team.first_of(failure)
        if found is not None:
            raise NumericalError(found)

    def state(self) -> State:
        """All that a rewind needs; tensors are copies on the device."""
        columns = {} if self.column_sampler is None else self.column_sampler.state()
        return State(self.step.snapshot(), self.feed.state(), columns, self.progress.copy())

    def rewind(self, state: State) -> None:
        self.step.restore(state.tensors)
        self.feed.restore(state.rows)
        if self.column_sampler is not None:
            self.column_sampler.restore(state.columns)
        self.progress = state.progress.copy()

    def recover(self, good: State, fault: str) -> str:
        """Back to the last good state with smaller steps, more jitter, and at last float64."""
        seconds, attempts = self.progress.seconds, self.progress.recoveries + 1
        self.rewind(good)
        # Blocks of a stream are looked at when they are read.
        if isinstance(self.rows, Rows):
            self.rows.require_finite()
        if attempts > MAX_RECOVERIES:
            raise NumericalError(
                f"training failed {attempts} times near step {self.progress.step} ({fault}) in "
                f"spite of smaller steps, a jitter of {self.model.jitter:.0e} and float64; check "
                "the data for extreme values and the kernel for parameters out of range"
            )
        self.progress.recoveries, self.progress.seconds = attempts, seconds
        self.progress.caution = EASE**attempts
        raised = min(LARGEST_JITTER, 10.0 * self.model.jitter)
        self.model.jitter = max(self.model.jitter, raised)
        if attempts >= FLOAT64_AFTER and self.model.basis.beta.dtype == torch.float32:
            self.model.double()
        self.build()
        self.step.restore(good.tensors)
        self.feed.restore(good.rows)
        return (
            f"step {self.progress.step}: {fault}; "
            f"going on from here with steps of {self.progress.caution:.2g} times their size, "
            f"jitter {self.model.jitter:.0e}, {str(self.model.basis.beta.dtype)[6:]}"
        )

    def relax(self) -> None:
        """Lets steps grow again after a report without a fault."""
        self.progress.caution = min(1.0, self.progress.caution * EASE ** (-1 / REPORTS_TO_RELAX))

    def save(self, good: State, force: bool = False) -> None:
        if self.checkpoints is None:
            return
        waited = time.monotonic() - self.last_saved
        if not self.team.agree(force or waited >= self.checkpoint_seconds):
            return
        if not self.keeps_checkpoints:
            return
        tensors, meta = packed(good, self.best_state)
        meta |= {
            "jitter": self.model.jitter,
            "dtype": str(self.model.basis.beta.dtype),
            "config": self.config.as_dict(),
        }
        try:
            self.checkpoints.save(good.progress.step, tensors, meta)
        except FileError as error:
            # A full disk costs the checkpoint, not the run.
            warnings.warn(f"{error}; training goes on without this checkpoint", stacklevel=2)
        self.last_saved = time.monotonic()

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether this process writes: the first for all, or each its part of γ."""
        return self.team.leads or self.model.basis.shards is not None

    def latest(self) -> Checkpoint | None:
        """The last checkpoint that all processes have."""
        if self.checkpoints is None:
            return None
        if self.model.basis.shards is None:
            return self.team.agree(self.checkpoints.latest() if self.team.leads else None)
        found = self.checkpoints.latest()
        # One that was killed while the others wrote is a checkpoint behind them.
        step = self.team.least(-1 if found is None else found.meta["progress"]["step"])
        return None if step < 0 else self.checkpoints.latest(step)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Goes on from a checkpoint; one that is not built as this run's own is a `FileError`."""
        with damaged_otherwise():
            self._resume(checkpoint.tensors, checkpoint.meta)

    def _resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        require_like(meta["jitter"], self.model.jitter, "jitter")
        self.model.jitter = meta["jitter"]
        if meta["dtype"] == str(torch.float64):
            self.model.double()
        self.build()
        state, best = unpacked(tensors, meta)
        require_like(state, self.state())
        if best is not None:
            require_like(best, state.tensors, "best state")
        self.rewind(state)
        self.best_state = best

    def reason_to_stop(self) -> str | None:
        """A function of the saved state alone: a run resumed at its end ends again at once."""
        p, config = self.progress, self.config
        if p.step >= config.max_steps:
            return "steps"
        waited = p.step - p.best_step
        if config.patience is not None and waited >= config.patience * config.report_every:
            return "patience"
        if config.max_time is not None and p.seconds >= config.max_time:
            return "time"
        return None

    def tell(self, kind, report: Report | None = None, message: str = "") -> None:
        history = tuple(self.progress.history) if kind == "start" else ()
        for callback in self.callbacks:
            callback(Event(kind, self.progress.step, report, message, history))
