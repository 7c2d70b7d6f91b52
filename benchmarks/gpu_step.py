"""Times one captured training step on a CUDA device and lists the kernels it spends its time in.

    python benchmarks/gpu_step.py [--sizes 300:0,300:700,1500:3500] [--latents 1] [--ard] [--top 6]

Batch 1024, 8 inputs, float32, the default kernel (isotropic, or with a lengthscale for every
input), natural steps, 64 KL columns. The replay alone is timed: no new batch, no check between
steps.
"""

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from orthogp.likelihoods import Gaussian, RobustMax
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.training import TrainingConfig
from orthogp.training.overlapped import OverlappedStep


def make_step(inducing: int, residual: int, latents: int, ard: bool = False) -> OverlappedStep:
    rng = torch.Generator().manual_seed(0)

    def points(rows: int) -> torch.Tensor:
        return torch.randn(rows, 8, generator=rng)

    kernel = default_kernel(8, ard)
    basis = build_basis("orthogonal", kernel, points(inducing), points(residual), latents)
    likelihood = Gaussian(1) if latents == 1 else RobustMax(latents)
    model = VariationalGP(kernel, likelihood, basis).to("cuda")
    x = points(1024)
    y = torch.sin(x.sum(1)) if latents == 1 else torch.randint(latents, (1024,), generator=rng)
    columns = 64 if residual > 64 else None
    step = OverlappedStep(model, TrainingConfig(), 100_000, [x.cuda(), y.cuda()], columns)
    step.rates.copy_(torch.tensor([1e-3, 1e-2, 1e-3]))
    step.refresh()
    return step


def milliseconds(step: OverlappedStep, repeats: int = 30) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    step()
    begin.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="300:0,300:700,1500:3500,300:100000,300:1000000")
    parser.add_argument("--latents", type=int, default=1)
    parser.add_argument("--ard", action="store_true")
    parser.add_argument("--top", type=int, default=6)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for size in options.sizes.split(","):
        inducing, residual = map(int, size.split(":"))
        torch.cuda.reset_peak_memory_stats()
        step = make_step(inducing, residual, options.latents, options.ard)
        step()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            step()
            torch.cuda.synchronize()
        captured, peak = milliseconds(step), torch.cuda.max_memory_allocated() / 2**30
        kernels = sorted(trace.key_averages(), key=lambda e: -e.self_device_time_total)
        count = sum(e.count for e in kernels if e.self_device_time_total > 0)
        print(f"{size:>14}  {captured:7.3f} ms  {count:5} kernels  {peak:.2f} GB")
        for kernel in kernels[: options.top]:
            spent = kernel.self_device_time_total
            print(f"{'':14}{spent:9.1f} us {kernel.count:5} x  {kernel.key[:70]}")


if __name__ == "__main__":
    main()
