"""Fits a table with orthogp and with its peers, each at its defaults, and compares what comes out.

    python benchmarks/compare.py --data-dir DIR --datasets kin40k,protein,elevators \
        [--models orthogp,gpr,svgp,boosting,ngboost] [--split 0] [--out FILE]

A tenth of the rows is held out. Test RMSE and mean log density in units of the standardised
target, coverage of 90 % intervals, seconds of `fit`, rows a second of predicting mean and interval.
"""

import argparse
import json
import math
import time
from pathlib import Path

import gpytorch
import numpy as np
import torch
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from orthogp import OrthogonalGPRegressor

NORMAL = norm.ppf(0.95)
# Of scikit-learn's exact regression, whose cost is cubic in its rows.
EXACT_ROWS = 1000
SVGP_POINTS, SVGP_EPOCHS, SVGP_BATCH = 400, 100, 1024


class Orthogp:
    def fit(self, x, y):
        self.model = OrthogonalGPRegressor(random_state=0).fit(x, y)

    def predict(self, x):
        mean, std = self.model.predict(x, return_std=True)
        return mean, std, *self.model.predict_interval(x, 0.9)

    def log_density(self, x, y):
        return self.model.log_density(x, y)


class Normal:
    """Peers whose prediction is a mean and a standard deviation."""

    def predict(self, x):
        mean, std = self.moments(x)
        return mean, std, mean - NORMAL * std, mean + NORMAL * std

    def log_density(self, x, y):
        return norm.logpdf(y, *self.moments(x))


class ExactSubset(Normal):
    def fit(self, x, y):
        chosen = np.random.default_rng(0).permutation(len(x))[:EXACT_ROWS]
        # One lengthscale each: scikit-learn's gradients with one a column take many minutes.
        kernel = ConstantKernel() * Matern(nu=2.5) + ConstantKernel() * RBF()
        self.model = GaussianProcessRegressor(kernel + WhiteKernel(0.1), random_state=0)
        self.model.fit(x[chosen], y[chosen])

    def moments(self, x):
        parts = [self.model.predict(part, return_std=True) for part in np.array_split(x, 20)]
        return tuple(np.concatenate(p) for p in zip(*parts, strict=True))


class Svgp(Normal):
    """GPyTorch's SVGP with Adam, ARD Matérn-5/2, as in its documentation's example."""

    def fit(self, x, y):
        torch.manual_seed(0)
        x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
        points = x[torch.randperm(len(x))[:SVGP_POINTS]].clone()

        class Model(gpytorch.models.ApproximateGP):
            def __init__(self):
                q = gpytorch.variational.CholeskyVariationalDistribution(len(points))
                super().__init__(gpytorch.variational.VariationalStrategy(self, points, q))
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(
                    gpytorch.kernels.MaternKernel(2.5, ard_num_dims=x.shape[1])
                )

            def forward(self, x):
                mean, covariance = self.mean_module(x), self.covar_module(x)
                return gpytorch.distributions.MultivariateNormal(mean, covariance)

        self.model, self.likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
        elbo = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, len(x))
        parameters = [*self.model.parameters(), *self.likelihood.parameters()]
        adam = torch.optim.Adam(parameters, lr=0.01)
        steps = min(5000, SVGP_EPOCHS * math.ceil(len(x) / SVGP_BATCH))
        for _ in range(steps):
            rows = torch.randint(len(x), (SVGP_BATCH,))
            adam.zero_grad()
            (-elbo(self.model(x[rows]), y[rows])).backward()
            adam.step()
        self.model.eval(), self.likelihood.eval()

    def moments(self, x):
        means, deviations = [], []
        with torch.no_grad():
            for part in torch.tensor(x, dtype=torch.float32).split(4096):
                q = self.likelihood(self.model(part))
                means.append(q.mean), deviations.append(q.stddev)
        return torch.cat(means).double().numpy(), torch.cat(deviations).double().numpy()


class Boosting(Normal):
    """Gradient boosting: one model for the mean and one for each end of the interval."""

    def fit(self, x, y):
        self.mean = HistGradientBoostingRegressor(random_state=0).fit(x, y)
        self.ends = [
            HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0).fit(x, y)
            for q in (0.05, 0.95)
        ]
        self.scale = float(np.std(y - self.mean.predict(x)))

    def moments(self, x):
        return self.mean.predict(x), np.full(len(x), self.scale)

    def predict(self, x):
        return *self.moments(x), *(end.predict(x) for end in self.ends)


class Ngboost(Normal):
    def fit(self, x, y):
        from ngboost import NGBRegressor

        self.model = NGBRegressor(random_state=0, verbose=False).fit(x, y)

    def moments(self, x):
        found = self.model.pred_dist(x)
        return found.loc, found.scale


MODELS = {
    "orthogp": Orthogp, "gpr": ExactSubset, "svgp": Svgp, "boosting": Boosting, "ngboost": Ngboost,
}  # fmt: skip


def load(directory: Path, name: str, split: int):
    with np.load(next(directory.glob(f"*/{name}.npz"))) as file:
        x, y = file["X"].astype(np.float64), file["y"].astype(np.float64)
    order = np.random.default_rng(split).permutation(len(x))
    test, train = order[: len(x) // 10], order[len(x) // 10 :]
    mean, std = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(std > 0, std, 1.0)
    y = (y - y[train].mean()) / y[train].std()
    return x[train], y[train], x[test], y[test]


def compare(name: str, x, y, x_test, y_test) -> dict:
    model = MODELS[name]()
    start = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    mean, _, low, high = model.predict(x_test)
    rate = len(x_test) / (time.perf_counter() - start)
    return {
        "rmse": float(np.sqrt(np.mean((mean - y_test) ** 2))),
        "log_density": float(np.mean(model.log_density(x_test, y_test))),
        "coverage": float(np.mean((low <= y_test) & (y_test <= high))),
        "width": float(np.mean(high - low)),
        "fit_s": seconds,
        "rows_per_s": rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets", default="kin40k,protein,elevators")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(f"{'data set':14}{'model':10}{'rmse':>8}{'log dens':>10}{'cover':>8}{'width':>8}"
          f"{'fit s':>9}{'rows/s':>10}")  # fmt: skip
    for dataset in options.datasets.split(","):
        data = load(options.data_dir, dataset, options.split)
        for name in options.models.split(","):
            r = compare(name, *data)
            print(f"{dataset:14}{name:10}{r['rmse']:8.4f}{r['log_density']:10.4f}"
                  f"{100 * r['coverage']:8.1f}{r['width']:8.3f}{r['fit_s']:9.1f}"
                  f"{r['rows_per_s']:10.0f}", flush=True)  # fmt: skip
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps({"dataset": dataset, "model": name, **r}) + "\n")


if __name__ == "__main__":
    main()
