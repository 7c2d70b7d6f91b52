"""What each experiment of the paper is: data sets, methods, sizes, training [OD18, app. F]."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from orthogp.apps.paper.published import CLASSIFICATION_COLUMNS, REGRESSION_COLUMNS
from orthogp.errors import ConfigurationError
from orthogp.training import TrainingConfig

# Columns of our own, on the same splits: methods with a lengthscale for every input, one of them
# from S = I, the estimators' defaults, and boosted trees.
OWN_METHODS = {
    "regression": ("OrthNatARD", "Default", "Boosting", "NGBoost"),
    "classification": (
        "CoupledARD", "OrthARD", "OrthARDUnit", "OrthNatARD", "Default", "Boosting"
    ),
}  # fmt: skip
OPTIMUM = "Optimum"
# One colour a method, in every picture; hues a colour-blind reader can tell apart, on white and on
# black. A basis has one hue; methods trained by Adam alone are dashed, the others solid.
COLOURS = {
    "Coupled300": "#56B4E9",
    "CoupledNat300": "#56B4E9",
    "Coupled": "#0072B2",
    "CoupledNat": "#0072B2",
    "Orth": "#D55E00",
    "OrthNat": "#D55E00",
    "Hybrid": "#009E73",
    "Decoupled": "#CC79A7",
    "CoupledARD": "#6A5ACD",
    "OrthARD": "#B22222",
    "OrthNatARD": "#B22222",
    "OrthARDUnit": "#556B2F",
    "Optimum": "#808080",
    "Default": "#E69F00",
    "Boosting": "#8C564B",
    "NGBoost": "#A89B00",
    "Selu": "#8A8A8A",
}
DASHED = frozenset(
    {
        "Coupled300", "Coupled", "Orth", "Hybrid", "Decoupled", "CoupledARD", "OrthARD",
        "OrthARDUnit", "Optimum",
    }
)  # fmt: skip
_SPARE = ("#2E8B57", "#708090", "#4B6A00", "#7A4FA0")


@dataclass(frozen=True)
class ModelSettings:
    """What one of the paper's methods is made of; `variance` is that of each part of the kernel."""

    basis: str
    optimizer: str
    n_inducing: int
    n_residual: int
    variance: float = 1.0
    noise_variance: float = 0.1
    ard: bool = False
    hold_fixed: str = "unwhitened"
    dtype: str = "float32"
    unit_start: bool = False


# (basis, optimizer) of the methods that the paper's settings train.
METHODS = {
    "Coupled300": ("coupled", "adam"),
    "CoupledNat300": ("coupled", "natural"),
    "Coupled": ("coupled", "adam"),
    "CoupledNat": ("coupled", "natural"),
    "Orth": ("orthogonal", "adam"),
    "OrthNat": ("orthogonal", "natural"),
    "Hybrid": ("hybrid", "adam"),
    "Decoupled": ("decoupled", "adam"),
    "CoupledARD": ("coupled", "adam"),
    "OrthARD": ("orthogonal", "adam"),
    "OrthARDUnit": ("orthogonal", "adam"),
    "OrthNatARD": ("orthogonal", "natural"),
}
WITH_ARD = ("CoupledARD", "OrthARD", "OrthARDUnit", "OrthNatARD")
WITH_UNIT_START = ("OrthARDUnit",)
SMALL_COUPLED = ("Coupled300", "CoupledNat300")

PAPER_TRAINING = TrainingConfig(
    max_steps=20_000,
    batch_size=1024,
    learning_rate=1e-3,
    natural_step=0.005,
    natural_warmup=100,
    schedule="constant",
    kl_columns=64,
    residual_floor=1e-3,
    report_every=200,
)
CLASSIFICATION_VARIANCE = 5.0

Choose = Callable[[str, Sequence[str]], list[str]]


def everything(task: str, names: Sequence[str]) -> list[str]:
    return list(names)


@dataclass(frozen=True)
class Experiment:
    """A grid of data sets and methods. `choose` picks, of a task's data sets, those it runs on.

    `n_coupled` is the coupled bases' size at the cost of `n_inducing` and `n_residual`. With
    `curves` the test metrics are taken at every report.
    """

    title: str
    methods: Mapping[str, tuple[str, ...]]
    n_inducing: int
    n_residual: int
    n_coupled: int
    training: TrainingConfig = PAPER_TRAINING
    choose: Choose = everything
    full_batch: bool = False
    curves: bool = False

    def model_settings(self, task: str, method: str) -> ModelSettings:
        basis, optimizer = METHODS[method]
        small = basis != "coupled" or method in SMALL_COUPLED
        variance = CLASSIFICATION_VARIANCE if task == "classification" else 1.0
        return ModelSettings(
            basis=basis,
            optimizer=optimizer,
            n_inducing=self.n_inducing if small else self.n_coupled,
            n_residual=0 if basis == "coupled" else self.n_residual,
            variance=variance,
            ard=method in WITH_ARD,
            unit_start=method in WITH_UNIT_START,
        )

    def training_config(self, num_rows: int, split: int, steps: int | None) -> TrainingConfig:
        changes: dict[str, Any] = {"seed": split}
        if self.full_batch:
            changes["batch_size"] = num_rows
        if steps is not None:
            changes["max_steps"] = steps
            changes["report_every"] = min(self.training.report_every, steps)
        return replace(self.training, **changes)


def first_of(*choices: tuple[str, str]) -> Choose:
    """Of each task, the first of the (task, name) choices that is there."""

    def choose(task: str, names: Sequence[str]) -> list[str]:
        return [name for wanted, name in choices if wanted == task and name in names][:1]

    return choose


SIX = CLASSIFICATION_COLUMNS
EXPERIMENTS = {
    "illustration": Experiment(
        "Convergence with fixed points and hyperparameters, full batches, |γ| = |β| = 500",
        {"regression": (*SIX, OPTIMUM), "classification": SIX},
        n_inducing=500,
        n_residual=500,
        n_coupled=500,
        training=replace(
            PAPER_TRAINING, train_points=False, train_hyperparameters=False, kl_columns=None,
            report_every=100,
        ),
        choose=first_of(
            ("regression", "3droad"), ("regression", "kin40k"), ("classification", "ringnorm")
        ),
        full_batch=True,
        curves=True,
    ),
    "wall-clock": Experiment(
        "The bound and test figures against time, |γ| = 3500, |β| = 1500 against coupled 2000",
        {"regression": SIX},
        n_inducing=1500,
        n_residual=3500,
        n_coupled=2000,
        # The paper has one learning rate for all.
        training=replace(PAPER_TRAINING, residual_step=PAPER_TRAINING.learning_rate),
        choose=first_of(("regression", "3droad"), ("regression", "terrain")),
        curves=True,
    ),
    "regression": Experiment(
        "Test log-likelihood and RMSE, |γ| = 700, |β| = 300 against coupled 400 and 300",
        {"regression": (*REGRESSION_COLUMNS, *OWN_METHODS["regression"])},
        n_inducing=300,
        n_residual=700,
        n_coupled=400,
    ),
    "classification": Experiment(
        "Test log-likelihood and accuracy, |γ| = 700, |β| = 300 against coupled 400",
        {"classification": (*SIX, *OWN_METHODS["classification"])},
        n_inducing=300,
        n_residual=700,
        n_coupled=400,
    ),
}  # fmt: skip


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigurationError(
            f"there is no experiment {name!r}; there are {_names(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


def chosen_methods(experiment: Experiment, wanted: Sequence[str] | None) -> list[str]:
    """The experiment's methods, or those of them named in any case of letters: ORTHNAT, OrthNat."""
    names = list(dict.fromkeys(m for methods in experiment.methods.values() for m in methods))
    if wanted is None:
        return names
    by_case = {name.lower(): name for name in names}
    unknown = [name for name in wanted if name.lower() not in by_case]
    if unknown:
        raise ConfigurationError(
            f"{_names(unknown)}: no method of this experiment; its methods are {_names(names)}"
        )
    return [by_case[name.lower()] for name in wanted]


def _names(names: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(names)


def colour_of(method: str) -> str:
    """The method's colour, "#RRGGBB"; a name not known here gets one that depends on it alone."""
    return COLOURS.get(method) or _SPARE[crc32(method.encode()) % len(_SPARE)]
