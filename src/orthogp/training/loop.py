"""The training loop: chunks of steps that never wait for the device, checked after each chunk."""

import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orthogp.execution.urls import RemotePath
from orthogp.model import VariationalGP
from orthogp.training.batches import Rows
from orthogp.training.callbacks import Callback, Report
from orthogp.training.config import TrainingConfig
from orthogp.training.evaluate import held_out_log_density
from orthogp.training.run import Run
from orthogp.training.sharing import collect
from orthogp.training.streams import Stream


@dataclass(frozen=True)
class Result:
    """How a run ended. `reason` is one of steps, time, patience, interrupt."""

    steps: int
    seconds: float
    reason: str
    history: tuple[Report, ...]
    recoveries: int


def fit(
    model: VariationalGP,
    rows: Rows | Stream,
    config: TrainingConfig,
    validation: Rows | None = None,
    callbacks: Iterable[Callback] = (),
    checkpoint_dir: str | Path | RemotePath | None = None,
    checkpoint_seconds: float = 30.0,
) -> Result:
    """Trains the model in place, on the device it is on.

    With `checkpoint_dir` a run that was killed goes on from its last checkpoint and ends exactly
    where the undisturbed run ends. With `validation` the history holds the held-out log density,
    and with `config.patience` the run stops after that many reports without a better one and
    returns to the best.
    """
    run = Run(model, rows, config, validation, callbacks, checkpoint_dir, checkpoint_seconds)
    return _train(run)


def _train(run: Run) -> Result:
    model, config = run.model, run.config
    found = run.latest()
    if found is not None:
        run.resume(found)
    run.tell("start")
    good, began = run.state(), time.monotonic() - run.progress.seconds
    try:
        while (reason := run.reason_to_stop()) is None:
            steps = min(config.report_every, config.max_steps - run.progress.step)
            bound, fault = run.chunk(steps)
            # Clocks and last bits may differ between processes; their decisions must not.
            run.progress.seconds = run.team.agree(time.monotonic() - began)
            if fault is not None:
                message = run.recover(good, fault)
                warnings.warn(message, stacklevel=2)
                run.tell("recovery", message=message)
                good = run.state()
                continue
            run.team.align(run.step.common_tensors())
            run.progress.step += steps
            report = _report(run, bound)
            run.relax()
            run.progress.history.append(report)
            good = run.state()
            run.tell("report", report)
            run.save(good)
    except KeyboardInterrupt:
        reason = "interrupt"
        run.rewind(good)
    except Exception as error:
        # So that files are flushed and a terminal gets its cursor back.
        run.tell("end", message=str(error))
        raise
    run.save(good, force=True)
    if config.patience is not None and run.best_state is not None:
        run.step.restore(run.best_state)
    for parameter in model.parameters():
        parameter.grad = None
    collect(model.basis)
    run.tell("end", message=reason)
    p = run.progress
    return Result(p.step, p.seconds, reason, tuple(p.history), p.recoveries)


def _report(run: Run, bound: float) -> Report:
    p, held_out = run.progress, None
    if run.validation is not None:
        held_out = run.team.agree(held_out_log_density(run.model, run.validation))
        if run.config.patience is not None and held_out > p.best:
            p.best, p.best_step = held_out, p.step
            run.best_state = run.step.snapshot()
    rate, tau, _ = run.step.rates.tolist()
    return Report(p.step, p.seconds, bound, held_out, rate, tau)
