"""How many training steps a second several processes make together on one CUDA device.

    python benchmarks/together.py [--processes 1,4,10,16] [--sizes 300:700] [--latents 1]

Each process captures a step as `benchmarks/gpu_step.py` does and replays it for four seconds; all
begin at the same time. NVIDIA's MPS is started where it is installed: without it they take turns.
"""

import argparse
import multiprocessing
import time

from orthogp.apps.paper.runner import shared_gpu

SECONDS = 4.0


def replay(inducing: int, residual: int, latents: int, barrier, rates) -> None:
    import torch
    from gpu_step import make_step

    torch.set_num_threads(1)
    step = make_step(inducing, residual, latents)
    step()
    torch.cuda.synchronize()
    barrier.wait()
    start, steps = time.monotonic(), 0
    while time.monotonic() - start < SECONDS:
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        steps += 20
    rates.put(steps / (time.monotonic() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="1,4,10,16")
    parser.add_argument("--sizes", default="300:700")
    parser.add_argument("--latents", type=int, default=1)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for size in options.sizes.split(","):
        inducing, residual = map(int, size.split(":"))
        for count in map(int, options.processes.split(",")):
            with shared_gpu("cuda"):
                barrier, rates = spawn.Barrier(count), spawn.Queue()
                work = (inducing, residual, options.latents, barrier, rates)
                crew = [spawn.Process(target=replay, args=work) for _ in range(count)]
                for process in crew:
                    process.start()
                total = sum(rates.get() for _ in crew)
                for process in crew:
                    process.join()
            print(f"{size}, {options.latents} latents, {count:3} processes: {total:8.0f} steps/s")


if __name__ == "__main__":
    main()
