"""GPBoost's Gaussian process: inducing points plus a Vecchia approximation of what they leave."""

from importlib import import_module

import numpy as np

from orthogp.apps.accuracy.models.contract import FittedModel, Problem
from orthogp.apps.accuracy.predictive import Array, GaussianPredictive

INDUCING_POINTS = 200
NEIGHBOURS = 30


def fit_gpboost(problem: Problem) -> FittedModel:
    """A Matérn-5/2 with a lengthscale for every input, parameters by the marginal likelihood."""
    gpboost = import_module("gpboost")

    settings = {
        "cov_function": "matern_ard",
        "cov_fct_shape": 2.5,
        "gp_approx": "full_scale_vecchia",
        "num_ind_points": min(INDUCING_POINTS, len(problem.y) // 2),
        "num_neighbors": NEIGHBOURS,
        "num_parallel_threads": problem.threads,
        "seed": problem.seed,
    }
    model = gpboost.GPModel(gp_coords=problem.x, likelihood="gaussian", **settings)
    model.fit(y=problem.y)

    def predict(x: Array) -> GaussianPredictive:
        # The variance of an observation, noise included.
        found = model.predict(gp_coords_pred=x, predict_var=True, predict_response=True)
        return GaussianPredictive(np.asarray(found["mu"]), np.sqrt(np.asarray(found["var"])))

    return FittedModel(predict, settings)
