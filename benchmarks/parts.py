"""Times the parts of one training step apart, forward and backward, as medians.

    python benchmarks/parts.py [--inducing 300] [--residual 700]

Batch 1024, 8 inputs, float32, the default kernel (isotropic), natural steps, 64 KL columns.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from orthogp.likelihoods import Gaussian
from orthogp.linalg import factorise_robustly
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.posterior import marginals
from orthogp.training import TrainingConfig
from orthogp.training.step import Step


def milliseconds(work: Callable[[], object], repeats: int = 15) -> float:
    times = []
    for k in range(repeats + 3):
        start = time.perf_counter()
        work()
        if k >= 3:
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def report(name: str, forward: Callable, outputs: Callable, inputs: list) -> None:
    """One line: the forward pass, and the backward pass from the sum of its outputs."""
    loss = sum(part.sum() for part in outputs(forward()))
    back = milliseconds(lambda: torch.autograd.grad(loss, inputs, retain_graph=True))
    print(f"{name:34}{milliseconds(forward):8.1f}{back:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inducing", type=int, default=300)
    parser.add_argument("--residual", type=int, default=700)
    options = parser.parse_args()
    rng = torch.Generator().manual_seed(0)

    def points(rows: int) -> torch.Tensor:
        return torch.randn(rows, 8, generator=rng)

    kernel = default_kernel(8)
    basis = build_basis("orthogonal", kernel, points(options.inducing), points(options.residual))
    model = VariationalGP(kernel, Gaussian(1), basis)
    x = points(1024)
    y = torch.sin(x.sum(1))
    covariance, beta, gamma = model.covariance, basis.beta, basis.gamma
    hyper = list(covariance.parameters())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, ms")
    print(f"{'part':34}{'forward':>8}{'back':>8}")

    wide = beta.double()
    report("K_β in float64", lambda: covariance.block(wide, wide), lambda K: [K], [*hyper, beta])
    K_b = covariance.block(wide, wide).detach().requires_grad_()
    report("its factor and inverse", lambda: factorise_robustly(K_b, 1e-5), lambda f: [f.R], [K_b])
    report("k_βx", lambda: covariance.block(beta, x), lambda k: [k], [*hyper, beta])
    if options.residual:
        queries = torch.cat([beta, x, gamma[:64]])
        report(
            "product with γ",
            lambda: covariance.matvec(queries, gamma, basis.a_gamma),
            lambda t: [t],
            [*hyper, gamma, basis.a_gamma],
        )
    factor = factorise_robustly(K_b, 1e-5)
    q = basis.q.whitened(factor)
    report(
        "q(f_β) whitened", lambda: basis.q.whitened(factor), lambda q: [q.v, q.S, q.log_det], [K_b]
    )
    report(
        "projection and marginals",
        lambda: marginals(basis.project(covariance, factor, x), q),
        list,
        [q.v, q.S],
    )

    columns = torch.arange(64) if options.residual >= 64 else None
    batch = [x, y]
    step = Step(model, TrainingConfig(), 10**5, batch, None if columns is None else len(columns))
    step.refresh()
    step.rates.copy_(torch.tensor([1e-3, 1e-2, 1e-3]))
    print(f"{'the whole step':34}{milliseconds(step):16.1f}")


if __name__ == "__main__":
    main()
