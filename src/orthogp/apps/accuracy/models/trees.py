"""LightGBM, XGBoost and CatBoost: trees until the held-out rows gain nothing more.

A tenth of the training rows is held out. LightGBM and XGBoost predict a mean, so their density and
their intervals come from the residuals of these rows; CatBoost's `RMSEWithUncertainty` has a
variance of its own. A tuned model is the best of a random search on the same rows, whose first
trial is the model that is not tuned.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from orthogp.apps.accuracy.models.contract import (
    FittedModel,
    HeldOutSplit,
    Problem,
    compact_labels,
    hold_out,
)
from orthogp.apps.accuracy.models.search import (
    TRIALS,
    Space,
    Trial,
    integers,
    log_integers,
    log_uniform,
    random_search,
    uniform,
)
from orthogp.apps.accuracy.predictive import (
    Array,
    ClassProbabilities,
    GaussianPredictive,
    HeldOutPredictive,
)
from orthogp.apps.paper.own import NGBOOST_ROWS
from orthogp.errors import ConfigurationError

MOST_TREES = 5000
PATIENCE = 100
LEARNING_RATE = 0.05
# Each of NGBoost's takes as long as several of the others'.
NGBOOST_TREES = 2000
# Of every search; the ends of a range are what tuning guides and benchmarks of these libraries use.
SPACES: dict[str, Space] = {
    "lightgbm": {
        "learning_rate": log_uniform(0.01, 0.3),
        "num_leaves": log_integers(8, 512),
        "min_child_samples": log_integers(1, 100),
        "subsample": uniform(0.5, 1.0),
        "colsample_bytree": uniform(0.5, 1.0),
        "reg_lambda": log_uniform(1e-3, 10.0),
    },
    "xgboost": {
        "learning_rate": log_uniform(0.01, 0.3),
        "max_depth": integers(3, 12),
        "min_child_weight": log_uniform(0.5, 100.0),
        "subsample": uniform(0.5, 1.0),
        "colsample_bytree": uniform(0.5, 1.0),
        "reg_lambda": log_uniform(1e-3, 10.0),
    },
    "catboost": {
        "learning_rate": log_uniform(0.01, 0.3),
        "depth": integers(4, 10),
        "l2_leaf_reg": log_uniform(0.1, 30.0),
        "random_strength": log_uniform(0.1, 10.0),
        "bagging_temperature": uniform(0.0, 1.0),
    },
}

# A trial of a library: the problem, its two parts, and settings in place of the library's own.
Train = Callable[[Problem, HeldOutSplit, dict[str, Any]], Trial[Any]]


@dataclass(frozen=True)
class Booster:
    name: str
    train: Train
    # Whether predictions of a number are [n, 2], a mean and a variance.
    has_variance: bool = False


def train_lightgbm(problem: Problem, split: HeldOutSplit, settings: dict[str, Any]) -> Trial:
    lightgbm = import_module("lightgbm")

    kind = lightgbm.LGBMRegressor if problem.regression else lightgbm.LGBMClassifier
    chosen = {"learning_rate": LEARNING_RATE, "n_estimators": MOST_TREES, **settings}
    # Rows are drawn afresh for every tree; without this `subsample` has no effect.
    if "subsample" in settings:
        chosen["subsample_freq"] = 1
    model = kind(random_state=problem.seed, n_jobs=problem.threads, verbose=-1, **chosen)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    model.fit(split.x, split.y, eval_set=[(split.x_held, split.y_held)], callbacks=[stop])
    (losses,) = model.best_score_.values()
    (loss,) = losses.values()
    return Trial(float(loss), model, chosen | {"trees": int(model.best_iteration_)})


def train_xgboost(problem: Problem, split: HeldOutSplit, settings: dict[str, Any]) -> Trial:
    xgboost = import_module("xgboost")

    kind = xgboost.XGBRegressor if problem.regression else xgboost.XGBClassifier
    chosen = {"learning_rate": LEARNING_RATE, "n_estimators": MOST_TREES, **settings}
    model = kind(
        random_state=problem.seed,
        n_jobs=problem.threads,
        early_stopping_rounds=PATIENCE,
        tree_method="hist",
        **chosen,
    )
    model.fit(split.x, split.y, eval_set=[(split.x_held, split.y_held)], verbose=False)
    return Trial(float(model.best_score), model, chosen | {"trees": int(model.best_iteration) + 1})


def train_catboost(problem: Problem, split: HeldOutSplit, settings: dict[str, Any]) -> Trial:
    catboost = import_module("catboost")

    chosen = {"learning_rate": LEARNING_RATE, "iterations": MOST_TREES, **settings}
    options = {
        "random_seed": problem.seed, "thread_count": problem.threads, "verbose": False,
        "allow_writing_files": False, **chosen,
    }  # fmt: skip
    if problem.regression:
        chosen["loss_function"] = "RMSEWithUncertainty"
        model = catboost.CatBoostRegressor(loss_function="RMSEWithUncertainty", **options)
    else:
        model = catboost.CatBoostClassifier(**options)
    held = (split.x_held, split.y_held)
    model.fit(split.x, split.y, eval_set=held, early_stopping_rounds=PATIENCE)
    (loss,) = model.get_best_score()["validation"].values()
    return Trial(float(loss), model, chosen | {"trees": int(model.tree_count_)})


LIGHTGBM = Booster("lightgbm", train_lightgbm)
XGBOOST = Booster("xgboost", train_xgboost)
CATBOOST = Booster("catboost", train_catboost, has_variance=True)


def fit_trees(booster: Booster, trials: int, problem: Problem) -> FittedModel:
    """The best of `trials` trials; one trial is the library at its own settings."""
    classes = None
    if not problem.regression:
        # XGBoost wants labels without a gap.
        classes, labels = compact_labels(problem.y)
        problem = Problem(problem.x, labels, len(classes), problem.seed, "cpu", problem.threads)
    split = hold_out(problem)
    attempt = partial(booster.train, problem, split)
    best = random_search(attempt, SPACES[booster.name], trials, problem.seed)
    model, settings = best.fitted, best.settings | {
        "trials": trials, "patience": PATIENCE, "held_out_rows": len(split.y_held),
        "held_out_loss": best.loss, "threads": problem.threads,
    }  # fmt: skip
    if classes is not None:
        return FittedModel(
            lambda x: ClassProbabilities(classes, _doubles(model.predict_proba(x))), settings
        )
    if booster.has_variance:
        return FittedModel(lambda x: _gaussian(model, x), settings)
    residuals = split.y_held - _doubles(model.predict(split.x_held))
    return FittedModel(lambda x: HeldOutPredictive(_doubles(model.predict(x)), residuals), settings)


def _doubles(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _gaussian(model: Any, x: Array) -> GaussianPredictive:
    mean, variance = _doubles(model.predict(x)).T
    return GaussianPredictive(mean, np.sqrt(variance))


def fit_ngboost(problem: Problem) -> FittedModel:
    """NGBoost's regressor: a Gaussian whose mean and width are both boosted."""
    if len(problem.y) > NGBOOST_ROWS:
        raise ConfigurationError(
            f"NGBoost is left out beyond {NGBOOST_ROWS:,} training rows, where it takes too long; "
            f"here are {len(problem.y):,}"
        )
    split = hold_out(problem)
    settings = {"n_estimators": NGBOOST_TREES, "learning_rate": LEARNING_RATE}
    model = import_module("ngboost").NGBRegressor(
        random_state=problem.seed, verbose=False, **settings
    )
    model.fit(
        split.x, split.y, X_val=split.x_held, Y_val=split.y_held, early_stopping_rounds=PATIENCE
    )
    trees = model.best_val_loss_itr + 1

    def predict(x: Array) -> GaussianPredictive:
        # By default it takes all trees, those after the best as well.
        found = model.pred_dist(x, max_iter=trees)
        return GaussianPredictive(np.asarray(found.loc), np.asarray(found.scale))

    settings |= {"trees": trees, "patience": PATIENCE}
    return FittedModel(predict, settings)


BOOSTED = {
    "lightgbm": partial(fit_trees, LIGHTGBM, 1),
    "lightgbm-tuned": partial(fit_trees, LIGHTGBM, TRIALS),
    "xgboost": partial(fit_trees, XGBOOST, 1),
    "xgboost-tuned": partial(fit_trees, XGBOOST, TRIALS),
    "catboost": partial(fit_trees, CATBOOST, 1),
    "catboost-tuned": partial(fit_trees, CATBOOST, TRIALS),
}
