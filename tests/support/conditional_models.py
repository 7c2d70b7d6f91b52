"""Small models whose rows are near or all of β, and the exact Gaussian process beside them."""

import numpy as np
import torch
from torch import Tensor

from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis
from orthogp.posterior import NearRows
from orthogp.posterior.neighbors import canonical_order
from orthogp.posterior.solve import solve_gaussian
from problems import default_sum

D = 3
JITTER = 1e-10


def rows(n: int, outputs: int = 1, seed: int = 3, d: int = D) -> tuple[Tensor, Tensor]:
    """x, `[n, d]`, and y, `[n]` or `[n, outputs]`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator).double()
    f = torch.stack([(x[:, 0] * (c + 1)).sin() + 0.3 * x[:, 1] for c in range(outputs)], 1)
    y = f + 0.1 * torch.randn(n, outputs, generator=generator)
    return x, y[:, 0] if outputs == 1 else y


def _likelihood(outputs: int, noise: float) -> Gaussian:
    likelihood = Gaussian(outputs).double()
    noises = torch.linspace(noise, 2.0 * noise, outputs).double()
    likelihood.likelihood.noise = noises if outputs > 1 else noises[0]
    return likelihood


def noises(model: VariationalGP) -> Tensor:
    return model.likelihood.likelihood.noise.detach().reshape(-1)


def near_model(
    n: int, count: int, inducing: int = 6, outputs: int = 1, on_beta: bool = True, d: int = D
) -> VariationalGP:
    """A model with near rows, those of `rows(n, outputs)`."""
    x, y = rows(n, outputs, d=d)
    kernel, beta = default_sum(d, ard=True).double(), rows(inducing, seed=5, d=d)[0]
    basis = build_basis(
        "orthogonal", kernel, beta, beta[:0], outputs, "natural", "whitened", JITTER
    )
    y = y.reshape(n, -1).mT
    order = canonical_order(x, y)
    near = NearRows(x[order], y[:, order], None, count, on_beta=on_beta)
    return VariationalGP(kernel, _likelihood(outputs, 0.05), basis, None, JITTER, near)


@torch.no_grad()
def exact_model(n: int, outputs: int = 1, d: int = D) -> VariationalGP:
    """A model whose β are all rows, with q at its optimum."""
    x, y = rows(n, outputs, d=d)
    kernel = default_sum(d, ard=True).double()
    basis = build_basis("orthogonal", kernel, x, x[:0], outputs, "natural", "whitened", JITTER)
    model = VariationalGP(kernel, _likelihood(outputs, 0.05), basis, None, JITTER)
    factor = basis.factor(model.covariance, JITTER, robust=True)
    targets = y.reshape(n, -1).mT
    precision = noises(model).reciprocal().unsqueeze(1).expand_as(targets)
    solve_gaussian(basis, model.covariance, factor, x, targets, precision)
    return model


def closed_form(
    model: VariationalGP, x: Tensor, y: Tensor, new: Tensor, weight: Tensor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean `[c, m]` and covariance `[c, m, m]` of the exact process given these rows."""
    weight = torch.ones(len(x)).double() if weight is None else weight
    with torch.no_grad():
        K, k, prior = (
            model.covariance.block(a, b).numpy() for a, b in ((x, x), (x, new), (new, new))
        )
    means, covariances = [], []
    for noise, target in zip(noises(model), y.reshape(len(x), -1).mT.numpy(), strict=True):
        c = np.linalg.solve(K + np.diag(noise.item() / weight.numpy()), k)
        means.append(c.T @ target)
        covariances.append(prior - k.T @ c)
    return np.stack(means), np.stack(covariances)


def small_models(n: int) -> dict[str, VariationalGP]:
    """Models of n rows and two outputs, by name; some have been joined by more rows."""
    more = rows(9, 2, seed=11)
    return {
        "near": near_model(n, 6, outputs=2),
        "near alone": near_model(n, 6, outputs=2, on_beta=False),
        "joined": near_model(n, 6, outputs=2).condition_on(*more),
        "all rows near": near_model(n, 50, outputs=2),
        "exact": exact_model(n, 2),
        "exact, joined": exact_model(n, 2).condition_on(*more, count=4),
    }
