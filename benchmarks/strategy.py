"""GPyTorch's orthogonally decoupled strategy beside ours: a step's cost, the bound, NGD.

    python benchmarks/strategy.py speed [--device cuda] [--residual 700,7000] [--steps 15]
    python benchmarks/strategy.py bound
    python benchmarks/strategy.py natural

A step is the bound and its gradients: |β| = 300, batch 1024, 8 inputs, Matérn-5/2 + RBF, float32,
all parameters and points trained. Each row of `speed` runs in a process of its own, so that the
peak of memory is its own; wall time and processor time are medians. On a shared machine the
processor time of one thread (OMP_NUM_THREADS=1) is the steadier.
"""

import argparse
import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings

import gpytorch
import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import VariationalELBO
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    NaturalVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)
from linear_operator.utils.errors import NanError, NotPSDError

from orthogp.kernel.covariance import Covariance
from orthogp.model import default_kernel
from orthogp.posterior.optimum import exact_regression
from orthogp.strategy import OrthogonalVariationalStrategy

STRATEGIES = {
    "gpytorch": lambda *parts: OrthogonallyDecoupledVariationalStrategy(*parts),
    "orthogp": lambda *parts: OrthogonalVariationalStrategy(*parts),
    "orthogp, 64 columns": lambda *parts: OrthogonalVariationalStrategy(*parts, kl_columns=64),
}


class Model(gpytorch.models.ApproximateGP):
    def __init__(self, name, kernel, beta, gamma, q=CholeskyVariationalDistribution):
        base = VariationalStrategy(self, beta, q(len(beta)))
        super().__init__(STRATEGIES[name](base, gamma, DeltaVariationalDistribution(len(gamma))))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def measure(name: str, residual: int, steps: int, device: str) -> dict:
    torch.manual_seed(0)
    x = torch.randn(1024, 8, device=device)
    y = torch.sin(x.sum(1))
    points = torch.randn(300 + residual, 8)
    model = Model(name, default_kernel(8), points[:300], points[300:]).to(device)
    elbo = VariationalELBO(GaussianLikelihood().to(device), model, 100_000)
    wall, processor = [], []
    for _ in range(steps + 2):
        start, busy = time.perf_counter(), time.process_time()
        model.zero_grad()
        (-elbo(model(x), y)).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        wall.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - busy))
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "strategy": name,
        "residual": residual,
        "ms": round(statistics.median(wall[2:]), 1),
        "processor_ms": round(statistics.median(processor[2:]), 1),
        "peak_gb": round(peak, 2),
    }


def speed(options: argparse.Namespace) -> None:
    for residual in options.residual.split(","):
        for name in STRATEGIES:
            command = [sys.executable, __file__, "speed", "--single", name, "--residual", residual]
            command += ["--steps", str(options.steps), "--device", options.device]
            out = subprocess.run(command, capture_output=True, text=True)
            print(out.stdout.strip() or out.stderr.strip()[-400:], flush=True)


def bound() -> None:
    """The value both reach on 40 rows whose log evidence is known; only q is trained."""
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 40, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x[:, 0]) + math.sqrt(0.3) * torch.randn(40, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 1.0
    likelihood = GaussianLikelihood().double().requires_grad_(False)
    likelihood.noise = torch.tensor(0.3, dtype=torch.float64)
    evidence = exact_regression(Covariance(kernel), x, y, 0.3, x[:1]).log_evidence
    print(f"log evidence {evidence:.3f}")
    for name in ("gpytorch", "orthogp"):
        model = Model(name, kernel, x[::4], x[1::2]).double()
        elbo = VariationalELBO(likelihood, model, len(y))
        optimizer = torch.optim.Adam(model.variational_parameters(), lr=0.03)
        for _ in range(1000):
            optimizer.zero_grad()
            loss = -len(y) * elbo(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"{name}: {-loss.item():.3f}")


def natural() -> None:
    """Steps of NGD and Adam until the first matrix that cannot be factorised, 300 at most.

    NGD moves q(f_β) alone, or all that GPyTorch calls variational parameters, a_γ among them.
    """
    torch.manual_seed(0)
    x = torch.randn(500, 2)
    y = torch.sin(2 * x.sum(1)) + 0.3 * torch.randn(500)
    points = torch.randn(130, 2)
    for everything in (False, True):
        for tau, rate in ((0.1, 0.01), (0.1, 0.1), (0.9, 0.01), (0.9, 0.1)):
            for name in ("gpytorch", "orthogp"):
                values = natural_steps(name, x, y, points, everything, tau, rate)
                moved = "all variational" if everything else "q(f_β)"
                reached = f"{len(values)} steps, {values[-1]:.3g} nats a row"
                print(f"NGD on {moved}, τ {tau}, Adam {rate}, {name}: {reached}", flush=True)


def natural_steps(name, x, y, points, everything: bool, tau: float, rate: float) -> list[float]:
    kernel, q = default_kernel(2), NaturalVariationalDistribution
    model = Model(name, kernel, points[:30], points[30:], q)
    likelihood = GaussianLikelihood()
    elbo = VariationalELBO(likelihood, model, len(y))
    base = model.variational_strategy.base_variational_strategy
    moved = set((model if everything else base).variational_parameters())
    rest = [t for t in (*model.parameters(), *likelihood.parameters()) if t not in moved]
    ngd = gpytorch.optim.NGD(list(moved), num_data=len(y), lr=tau)
    adam = torch.optim.Adam(rest, lr=rate)
    values = []
    try:
        for _ in range(300):
            model.zero_grad()
            likelihood.zero_grad()
            loss = -elbo(model(x), y)
            loss.backward()
            ngd.step()
            adam.step()
            values.append(-loss.item())
    except (NotPSDError, NanError):
        pass
    return values


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["speed", "bound", "natural"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--residual", default="700,7000")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--single", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.single is not None:
        out = measure(options.single, int(options.residual), options.steps, options.device)
        print(json.dumps(out))
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, gpytorch {gpytorch.__version__}, {name}, {threads} threads")
    {"speed": lambda: speed(options), "bound": bound, "natural": natural}[options.what]()


if __name__ == "__main__":
    main()
