"""Small tables for models that are compared, and stand-ins for libraries that are not installed."""

import numpy as np
import torch

from orthogp.apps.accuracy.models.contract import Problem


def numbers(rows=240):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3))
    return x, np.sin(x[:, 0]) + x[:, 1] + 0.2 * rng.standard_normal(rows)


def regression_problem(rows=200, **changes):
    x, y = numbers(rows)
    return Problem(x, (y - y.mean()) / y.std(), 0, seed=0, **changes)


def classification_problem(rows=200):
    """Labels 0, 1 and 3 of four: 2 has no row."""
    x, y = numbers(rows)
    labels = np.array([0, 1, 3])[np.digitize(y, [-0.7, 0.7])]
    return Problem(x, labels, 4, seed=0)


class UnavailableError(Exception):
    """As TabPFN raises when it cannot download."""


class GaussianCriterion(torch.nn.Module):
    """A density like TabPFN's criterion: here a Gaussian whose logits are its mean and log σ."""

    def forward(self, logits, y):
        return -torch.distributions.Normal(logits[:, 0], logits[:, 1].exp()).log_prob(y)

    def icdf(self, logits, level):
        normal = torch.distributions.Normal(logits[:, 0], logits[:, 1].exp())
        return normal.icdf(torch.tensor(level))


class TabPFNRegressor:
    """Predicts the mean and spread of the training targets, through TabPFN's interface."""

    weights = True

    def __init__(self, *, device, random_state):
        self.device, self.random_state = device, random_state

    def fit(self, X, y):
        if not self.weights:
            raise UnavailableError("authentication error downloading from a gated repository")
        self.mean_, self.std_ = float(np.mean(y)), float(np.std(y))
        return self

    def predict(self, X, *, output_type):
        assert output_type == "full"
        logits = torch.tensor([self.mean_, np.log(self.std_)]).expand(len(X), 2).float()
        mean = np.full(len(X), self.mean_, np.float32)
        return {"mean": mean, "criterion": GaussianCriterion(), "logits": logits}


class TabPFNClassifier:
    def __init__(self, *, device, random_state):
        pass

    def fit(self, X, y):
        self.classes_, counts = np.unique(y, return_counts=True)
        self.shares = counts / counts.sum()
        return self

    def predict_proba(self, X):
        return np.tile(self.shares, (len(X), 1))


class GPModel:
    """GPBoost's: a dict of mean and variance at the coordinates asked for."""

    def __init__(self, *, gp_coords, likelihood, cov_function, cov_fct_shape, gp_approx,
                 num_ind_points, num_neighbors, num_parallel_threads, seed):  # fmt: skip
        assert (likelihood, gp_approx) == ("gaussian", "full_scale_vecchia")
        assert num_ind_points < len(gp_coords)

    def fit(self, y):
        self.mean, self.variance = float(np.mean(y)), float(np.var(y))

    def predict(self, gp_coords_pred, predict_var, predict_response):
        assert predict_var
        assert predict_response
        rows = len(gp_coords_pred)
        return {"mu": np.full(rows, self.mean), "var": np.full(rows, self.variance)}
