"""A fit by the steps of the training engine: any likelihood and basis, in memory or streamed.

Rows that are held out tell what near rows are worth and calibrate; a short last run takes them in.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from gpytorch.means import Mean
from torch import Tensor

from orthogp import training
from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.class_map import MAP_SHARE, learns_class_map
from orthogp.estimators.defaults import (
    LAST_STEPS,
    first_config,
    last_config,
    starts_by_evidence,
    training_config,
)
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.intake import FitData
from orthogp.estimators.near_fit import Calibrate
from orthogp.estimators.near_rows import add_near_rows
from orthogp.estimators.near_settings import NearSettings
from orthogp.estimators.outcome import COMPARED_ROWS, fitted_with_rows, warn_if_nothing_learned
from orthogp.estimators.site_rows import (
    TIME_SHARE,
    left_out_rows,
    residual_process,
    site_rows,
    uses_sites,
)
from orthogp.estimators.start import NewModel, new_model
from orthogp.execution.team import current_team
from orthogp.execution.urls import locate
from orthogp.likelihoods import ClassificationLikelihood, Likelihood
from orthogp.model import VariationalGP
from orthogp.posterior import Orthogonal, SiteRows
from orthogp.training import (
    ProgressBar,
    Result,
    Rows,
    TrainingConfig,
    full_bound,
    latents_at,
    solvable,
)
from orthogp.training.sites import ENOUGH_HELD_OUT, ResidualProcess


@dataclass(frozen=True)
class StepFit:
    """What a fit by steps depends on.

    `before` is the fit that it continues, if any, and `adds` says that these rows join those of
    that fit; with `near` the rows are near rows of the trained model; `identity` is the calibration
    that leaves predictions as they are.
    """

    settings: Mapping[str, Any]
    data: FitData
    prior: tuple[Likelihood, Mean | None, float]
    near: NearSettings | None
    before: Fitted | None
    adds: bool
    calibrate: Calibrate
    identity: Calibration | LatentScales
    device: torch.device
    seed: int
    generator: torch.Generator

    def fitted(self) -> Fitted:
        start = self._start()
        model = start.model.to(self.device)
        result = self._train(start)
        interrupted = result.reason == "interrupt"
        if self.near is not None:
            found = add_near_rows(
                self.settings, model, self.data.bound_rows, self.near, self.calibrate,
                self.generator, result.history, result.steps,
            )  # fmt: skip
            return fitted_with_rows(self.data, found)
        if current_team().leads:
            rows = self.data.bound_rows if self.data.held_out is None else self.data.held_out
            rows = rows.map(lambda t: t[:: math.ceil(len(t) / COMPARED_ROWS)])
            warn_if_nothing_learned(model.likelihood, rows.y, *latents_at(model, rows.x))
        process = self._residual_process(model, interrupted)
        calibration = self._calibration(model, process, interrupted)
        if self._trains_on_all and not interrupted:
            config = self._config(start, len(self.data.bound_rows))
            self._train_on_all(model, config, result.steps)
        return self._outcome(model, result, process, calibration)

    @property
    def _steps_before(self) -> int:
        return 0 if self.before is None else self.before.steps

    @property
    def _trains_on_all(self) -> bool:
        """Whether rows that are held out at first are trained on in the end."""
        return self.data.held_out is not None and isinstance(self.data.train, Rows)

    @cached_property
    def _previous(self) -> SiteRows | None:
        """The rows of the fit before that these join."""
        near = self.before.model.near if self.adds and self.before is not None else None
        return near if isinstance(near, SiteRows) else None

    def _start(self) -> NewModel:
        if self.before is None:
            return new_model(self.settings, self.data, *self.prior, self.generator)
        # Training changes a model in place, and this run may fail.
        model = deepcopy(self.before.model.without_near_rows())
        started = starts_by_evidence(self.settings, len(self.data.train), model.likelihood)
        return NewModel(model, started, model.basis.gamma[:0])

    def _config(self, start: NewModel, num_rows: int) -> TrainingConfig:
        # Another seed than the previous run had: its checkpoints are not resumed from.
        seed = self.seed + self._steps_before
        gaussian = start.model.likelihood.gaussian
        return training_config(
            self.settings, num_rows, gaussian, seed, start.started, self.device.type
        )

    def _train(self, start: NewModel) -> Result:
        """Trains on the rows that are not held out, and solves for q where that can be done."""
        settings, train, model = self.settings, self.data.train, start.model
        config = self._config(start, len(train))
        solves = solvable(model) and isinstance(train, Rows)
        if self._trains_on_all or solves:
            share = TIME_SHARE if uses_sites(settings, self.data, model) else 0.0
            if self.before is None and learns_class_map(settings, self.data, model.likelihood):
                share += MAP_SHARE
            config = first_config(config, share)
        verbose = settings["verbose"]
        bar = (ProgressBar(config.max_steps, config.max_time),) if verbose else ()
        # Evaluating thousands of rows at every report pays only where training may stop early.
        validation = self.data.held_out if settings["early_stopping"] else None
        callbacks = (*settings["callbacks"], *bar)
        folder = settings["checkpoint_dir"]
        result = training.fit(model, train, config, validation, callbacks, folder)
        if solves and isinstance(train, Rows) and result.reason != "interrupt":
            if isinstance(model.basis, Orthogonal):
                model.basis = model.basis.with_more(start.added_gamma)
            self._solve(model, train, config)
        return result

    def _residual_process(self, model: VariationalGP, interrupted: bool) -> ResidualProcess | None:
        """That of the fit whose rows these join, or one that is learned."""
        if self._previous is not None:
            return ResidualProcess.of(self._previous)
        if interrupted or not uses_sites(self.settings, self.data, model):
            return None
        return residual_process(self.settings, self.data, model, self.prior[2], self.generator)

    def _calibration(
        self, model: VariationalGP, process: ResidualProcess | None, interrupted: bool
    ) -> Calibration | LatentScales:
        """Learned from the rows held out, given near rows among the others, and from those others,
        each without its own site, where the rows held out are none or, of classes, few; otherwise
        that of the fit before, if any."""
        train, held_out = self.data.train, self.data.held_out
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        if held_out is not None:
            if process is not None and isinstance(train, Rows):
                model.near = site_rows(self.settings, process, model, train, self._previous)
            parts.append((held_out.y, *latents_at(model, held_out.x)))
            # Training moves all parameters of a model.
            model.near = None
        if isinstance(train, Rows) and self._calibrates_by_left_out_rows(model, interrupted):
            parts.append(left_out_rows(self.settings, process, model, train))
        if not parts:
            return self.identity if self.before is None else self.before.calibration
        y, mean, variance = zip(*parts, strict=True)
        moments = torch.cat(mean, dim=1), torch.cat(variance, dim=1)
        return current_team().agree(self.calibrate(model.likelihood, torch.cat(y), *moments))

    def _calibrates_by_left_out_rows(self, model: VariationalGP, interrupted: bool) -> bool:
        """Sites are those of a finished fit, and in `adds` rows of an earlier one are missing.

        Numbers without their own sites are moved too far where the points are too few, which makes
        intervals too wide.
        """
        held_out = self.data.held_out
        of_classes = isinstance(model.likelihood, ClassificationLikelihood)
        few = held_out is None or (of_classes and len(held_out) < ENOUGH_HELD_OUT)
        asked = bool(self.settings["validation_fraction"])
        has_sites = not interrupted and not self.adds and not model.likelihood.gaussian
        return few and asked and has_sites

    def _train_on_all(self, model: VariationalGP, config: TrainingConfig, steps: int) -> None:
        """q for all rows, once those held out have served to calibrate: solved, or a short run."""
        rows = self.data.bound_rows
        if solvable(model):
            self._solve(model, rows, config)
            return
        last = last_config(config, steps)
        if last is None:
            return
        folder = self.settings["checkpoint_dir"]
        # It has another configuration than the first run, so checkpoints of its own.
        folder = None if folder is None else locate(folder) / "held-out"
        training.fit(model, rows, last, checkpoint_dir=folder)

    def _outcome(
        self,
        model: VariationalGP,
        result: Result,
        process: ResidualProcess | None,
        calibration: Calibration | LatentScales,
    ) -> Fitted:
        data, team = self.data, current_team()
        history = () if self.before is None else self.before.history
        elapsed = history[-1]["seconds"] if history else 0.0
        reports = [
            replace(r, step=r.step + self._steps_before, seconds=r.seconds + elapsed)
            for r in team.agree(result.history)
        ]
        bound = team.agree(full_bound(model, data.bound_rows, data.num_rows))
        if process is not None:
            model.near = site_rows(self.settings, process, model, data.bound_rows, self._previous)
        return Fitted(
            units=data.units,
            model=model,
            predictor=model.predictor(),
            calibration=calibration,
            elbo=bound + data.weight * data.units.targets.log_jacobian,
            history=(*history, *map(asdict, reports)),
            steps=self._steps_before + result.steps,
        )

    @staticmethod
    def _solve(model: VariationalGP, rows: Rows, config: TrainingConfig) -> None:
        """Puts q at its optimum for these rows."""
        max_time = None if config.max_time is None else 0.5 * LAST_STEPS * config.max_time
        training.solve(model, rows, config, max_time)
        current_team().align([*model.basis.buffers(), model.basis.a_gamma])
