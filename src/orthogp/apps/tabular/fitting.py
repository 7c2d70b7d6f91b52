"""The fit itself, and the report on the rows that were held out."""

from dataclasses import dataclass, field, replace

import torch

from orthogp.apps.tabular.contributions import contributions
from orthogp.apps.tabular.guarantees import (
    DEFAULT_COVERAGE,
    guaranteed_figures,
    is_guaranteed,
    promise,
)
from orthogp.apps.tabular.measures import measure
from orthogp.apps.tabular.model import TableModel
from orthogp.apps.tabular.preparing import FitRequest, Prepared, unseen_notes
from orthogp.apps.tabular.report import FitReport
from orthogp.errors import ConfigurationError
from orthogp.estimators import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.estimators.setting_checks import torch_device
from orthogp.tables import Described, Tally, transform_notes
from orthogp.training import Event


@dataclass
class Ending:
    """A callback that remembers why a run ended."""

    reason: str = field(default="")

    def __call__(self, event: Event) -> None:
        if event.kind == "end":
            self.reason = event.message


def require_device(device: str | None) -> None:
    """Refuses a device that this machine has not, before the table is read for it."""
    if torch_device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"--device is {device}, and torch finds no GPU here; use cpu")


def train(request: FitRequest, prepared: Prepared) -> tuple[TableModel, bool]:
    """The model fitted to the training rows, and whether an interrupt ended the training."""
    ending = Ending()
    settings = {**request.settings, "random_state": request.seed, "callbacks": (ending,)}
    # Rows that stay in their files bring their targets with them.
    y = prepared.y if isinstance(prepared.X, Described) else None
    if prepared.classes is None:
        estimator = OrthogonalGPRegressor(**settings).fit(prepared.X, y)
    else:
        # A rare class may occur in the test rows alone.
        estimator = OrthogonalGPClassifier(**settings)
        estimator.partial_fit(prepared.X, y, prepared.classes)
    missing = request.missing_values
    model = TableModel(estimator, request.target, request.id_column, missing)
    return model, ending.reason == "interrupt"


def judge(
    request: FitRequest, prepared: Prepared, model: TableModel, interrupted: bool, explains: bool
) -> FitReport:
    """The report on the test rows, of which there must be some; `explains` some of them too."""
    estimator, tally = model.estimator, Tally()
    history, test = estimator.history_, model.encode(prepared.test, tally)
    measures, guarantee = measure(estimator, test, prepared.y_test, prepared.y), ""
    if is_guaranteed(model):
        guarantee = promise(model, DEFAULT_COVERAGE)
        own = guaranteed_figures(model, prepared.test, prepared.y_test)
        measures = replace(measures, figures=measures.figures | own)
    unseen = [f"in the test rows, {note}" for note in unseen_notes(tally)]
    return FitReport(
        table=str(request.table),
        model=str(request.out),
        target=request.target,
        task=prepared.target.task,
        reason=prepared.target.reason,
        rows=prepared.rows,
        columns=len(model.plan.kinds),
        column_rows=tuple(row._asdict() for row in estimator.columns_),
        inputs=len(model.plan.sources),
        steps=estimator.n_iter_,
        seconds=history[-1]["seconds"] if history else 0.0,
        interrupted=interrupted,
        notes=(*prepared.notes, *transform_notes(model.plan), *unseen),
        measures=measures,
        relevance=tuple(estimator.relevance_.items()),
        contributions=contributions(model, prepared.test, request.seed) if explains else None,
        settings={**request.settings, "random_state": request.seed},
        guarantee=guarantee,
    )
