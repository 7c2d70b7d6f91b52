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

from orthogp.estimators.calibration import fit_variance_scales
from orthogp.likelihoods import Bernoulli, Gaussian, Softmax
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.posterior.points import choose_beta, choose_gamma
from orthogp.training import Rows, TrainingConfig, fit, full_bound
from orthogp.training.evaluate import predict_in_chunks

MODEL = {
    "n_inducing": 300, "n_residual": 700, "ard": True, "basis": "orthogonal", "noise": 0.1,
    "optimizer": "natural", "hold_fixed": "unwhitened", "dtype": "float32", "variance": 1.0,
    "rough": 0.1, "smooth": 1.0,
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
    for part, size in zip(kernel.kernels, (m["rough"], m["smooth"]), strict=True):
        part.base_kernel.lengthscale = size * x.shape[1] ** 0.5
    latents = classes if classes > 2 else 1
    likelihood = Gaussian(1) if regression else Bernoulli(1) if classes == 2 else Softmax(classes)
    if regression:
        likelihood.likelihood.noise = m["noise"]
    basis = build_basis(m["basis"], kernel, beta, gamma, latents, m["optimizer"], m["hold_fixed"])
    model = VariationalGP(kernel, likelihood, basis).to(device, dtype)
    held, train = split_off(train, regression)
    start = time.perf_counter()
    result = fit(model, train, config)
    seconds = time.perf_counter() - start
    out = {"seconds": seconds, "recoveries": result.recoveries, "steps": result.steps}
    out["elbo_row"] = full_bound(model, train) / len(train)
    mean, variance = predict(model, test)
    y = test.y.to(device)
    with torch.no_grad():
        out["log_density"] = float(likelihood.log_density(y, mean, variance).mean())
        if not regression:
            chosen = likelihood.probabilities(mean, variance).argmax(1)
            out["accuracy"] = float((chosen == y).double().mean())
            return out
        noise = likelihood.likelihood.noise.double().expand(len(y))
        error, variance = y - mean[0], variance[0]
        out["rmse"] = float(error.square().mean().sqrt())
        out["coverage"] = coverage(error, variance + noise)
        out["noise"] = float(noise[0])
    mean, s = predict(model, held)
    noise_held = noise[:1].expand(len(held))
    scales = fit_variance_scales(held.y.to(device) - mean[0], s[0], noise_held)
    variance = scales.latent * variance + scales.noise * noise
    density = -0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi))
    out |= {"calibrated": float(density.mean()), "calibrated_coverage": coverage(error, variance)}
    out |= {"scales": [scales.latent, scales.noise]}
    return out


def split_off(train: Rows, regression: bool) -> tuple[Rows, Rows]:
    """Up to 2000 rows that calibrate, and the rest that trains."""
    count = min(2000, len(train) // 10) if regression else 0
    return train.map(lambda t: t[:count]) if count else train, train.map(lambda t: t[count:])


def predict(model: VariationalGP, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    means, variances = zip(*predict_in_chunks(model, rows.x), strict=True)
    return torch.cat(means, dim=1), torch.cat(variances, dim=1)


def coverage(error: torch.Tensor, variance: torch.Tensor) -> float:
    return float((error.abs() <= 1.6448536 * variance.sqrt()).double().mean())


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
