"""Steps a second and peak memory of training against the number of residual points.

    python benchmarks/scaling.py [--device cuda] [--residual 0,700,7000] [--seconds 5]

Default kernel (isotropic), |β| = 300, batch 1024, 8 inputs, 64 KL columns, all parameters and
points trained, float32. Each size runs in a process of its own, so that the peak is its own.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

import torch

from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.training import Rows, TrainingConfig, fit


def measure(residual: int, device: str, seconds: float, inducing: int) -> dict:
    rng = torch.Generator().manual_seed(0)

    def points(rows: int) -> torch.Tensor:
        return torch.randn(rows, 8, generator=rng)

    x = points(100_000)
    rows = Rows(x, torch.sin(x.sum(1)))
    kernel = default_kernel(8)
    basis = build_basis("orthogonal", kernel, points(inducing), points(residual))
    model = VariationalGP(kernel, Gaussian(1), basis).to(device)
    common = {"kl_columns": 64, "schedule": "constant", "refresh_every": 10**9}
    # The first chunk captures, compiles and fills caches; the second is timed.
    marks: list[tuple[int, float]] = []
    config = TrainingConfig(max_steps=10**9, max_time=seconds, report_every=4, **common)
    fit(model, rows, config, callbacks=[lambda e: marks.append((e.step, time.perf_counter()))])
    marks = [m for m in marks if m[0] > 0]
    steps = marks[-1][0] - marks[0][0]
    rate = steps / (marks[-1][1] - marks[0][1]) if steps else 4 / seconds
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"residual": residual, "ms": 1e3 / rate, "steps_per_s": rate, "peak_gb": peak}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--residual", default="0,700,7000,70000,700000")
    parser.add_argument("--inducing", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--single", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.single is not None:
        out = measure(options.single, options.device, options.seconds, options.inducing)
        print(json.dumps(out))
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    print(f"torch {torch.__version__}, {name or platform.machine()}, float32")
    for residual in options.residual.split(","):
        command = [sys.executable, __file__, "--single", residual, "--device", options.device]
        command += ["--seconds", str(options.seconds), "--inducing", str(options.inducing)]
        out = subprocess.run(command, capture_output=True, text=True)
        print(out.stdout.strip() or out.stderr.strip()[-400:], flush=True)


if __name__ == "__main__":
    main()
