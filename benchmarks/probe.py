"""Fits one model a line of settings on real data sets and prints what came out.

    python benchmarks/probe.py --data-dir DIR --datasets pol,kin40k --settings FILE [--device cuda]

Each line of FILE is JSON: {"name": …, "n_inducing": …, "n_residual": …, "ard": …, "basis": …,
"optimizer": …, "hold_fixed": …, "dtype": …, plus any field of TrainingConfig}.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch

from orthogp.likelihoods import Bernoulli, Gaussian, RobustMax
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.points import choose_beta, choose_gamma
from orthogp.training import Rows, TrainingConfig, fit, full_bound
from orthogp.training.evaluate import predict_in_chunks

MODEL = {
    "n_inducing": 300, "n_residual": 700, "ard": True, "basis": "orthogonal", "noise": 0.1,
    "optimizer": "natural", "hold_fixed": "whitened", "dtype": "float32", "variance": 1.0,
}  # fmt: skip


def load(directory: Path, name: str, split: int, limit: int | None):
    path = next(directory.glob(f"*/{name}.npz"))
    with np.load(path) as file:
        x, y = file["X"].astype(np.float64), file["y"]
    order = np.random.default_rng(split).permutation(len(x))[:limit]
    test = len(order) // 10
    train, test = order[test:], order[:test]
    mean, std = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(std > 0, std, 1.0)
    if y.dtype.kind == "f":
        y = (y - y[train].mean()) / y[train].std()
    return (
        Rows(torch.tensor(x[train]), torch.tensor(y[train])),
        Rows(torch.tensor(x[test]), torch.tensor(y[test])),
    )


def run(train: Rows, test: Rows, settings: dict, device: str) -> dict:
    given = dict(settings)
    given.pop("name")
    m = MODEL | {k: given.pop(k) for k in list(given) if k in MODEL}
    config = TrainingConfig(**given)
    dtype = getattr(torch, m["dtype"])
    rng = torch.Generator().manual_seed(config.seed)
    x = train.x.to(dtype)
    beta = choose_beta(x, m["n_inducing"], rng)
    gamma = choose_gamma(x, m["n_residual"], beta, rng)
    regression = train.y.is_floating_point()
    classes = 0 if regression else int(max(train.y.max(), test.y.max())) + 1
    variance = m["variance"] if regression else 5.0
    kernel = default_kernel(x.shape[1], m["ard"], variance)
    latents = classes if classes > 2 else 1
    likelihood = Gaussian(1) if regression else Bernoulli(1) if classes == 2 else RobustMax(classes)
    if regression:
        likelihood.likelihood.noise = m["noise"]
    basis = build_basis(m["basis"], kernel, beta, gamma, latents, m["optimizer"], m["hold_fixed"])
    model = VariationalGP(kernel, likelihood, basis).to(device, dtype)
    start = time.perf_counter()
    result = fit(model, train, config)
    seconds = time.perf_counter() - start
    out = {"seconds": seconds, "recoveries": result.recoveries, "steps": result.steps}
    out["elbo_row"] = full_bound(model, train) / len(train)
    log_density, wrong, square, covered = 0.0, 0, 0.0, 0
    position = 0
    for mean, variance in predict_in_chunks(model, test.x):
        y = test.y[position : position + mean.shape[1]].to(device)
        position += mean.shape[1]
        log_density += float(likelihood.log_density(y, mean, variance).sum())
        if regression:
            moments = likelihood.predictive(mean, variance)
            error = y - moments.mean[0]
            square += float(error.square().sum())
            covered += int((error.abs() <= 1.6448536 * moments.variance[0].sqrt()).sum())
        else:
            wrong += int((likelihood.probabilities(mean, variance).argmax(1) != y).sum())
    n = len(test)
    out["log_density"] = log_density / n
    if regression:
        out |= {"rmse": math.sqrt(square / n), "coverage": covered / n}
        out["noise"] = float(likelihood.likelihood.noise)
    else:
        out["accuracy"] = 1 - wrong / n
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--datasets", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.settings.read_text().splitlines() if line.strip()]
    for name in options.datasets.split(","):
        train, test = load(options.data_dir, name, options.split, options.limit)
        for settings in lines:
            try:
                out = run(train, test, settings, options.device)
            except Exception as error:
                out = {"error": f"{type(error).__name__}: {error}"[:200]}
            print(name, settings["name"], {k: round(v, 4) if isinstance(v, float) else v
                                           for k, v in out.items()}, flush=True)  # fmt: skip
            if options.out:
                with open(options.out, "a") as file:
                    file.write(json.dumps({"dataset": name, **settings, **out}) + "\n")


if __name__ == "__main__":
    main()
