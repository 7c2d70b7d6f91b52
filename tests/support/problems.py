"""Small random problems, and every basis at random parameters, beside its NumPy reference."""

from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

import reference
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.linalg import factorise_robustly
from orthogp.model import VariationalGP
from orthogp.posterior import (
    Basis,
    Coupled,
    CovarianceFactor,
    Decoupled,
    DecoupledS,
    FactorGaussian,
    Hybrid,
    NaturalGaussian,
    Orthogonal,
)
from orthogp.training import Rows

KINDS = (
    "coupled", "coupled-natural", "orthogonal", "orthogonal-natural", "hybrid", "decoupled",
    "decoupled-S",
)  # fmt: skip
JITTER = 1e-3


def default_sum(dims: int, ard: bool = False) -> Kernel:
    rough = MaternKernel(2.5, ard_num_dims=dims if ard else None)
    smooth = RBFKernel(ard_num_dims=dims if ard else None)
    rough.lengthscale = torch.linspace(0.7, 1.3, dims) if ard else 0.8
    smooth.lengthscale = torch.linspace(1.6, 2.1, dims) if ard else 1.9
    rough, smooth = ScaleKernel(rough), ScaleKernel(smooth)
    rough.outputscale, smooth.outputscale = 0.9, 0.6
    return rough + smooth


def reference_terms(kernel: Kernel) -> list[reference.Term]:
    terms = Covariance(kernel).terms
    assert terms is not None
    return [
        reference.Term(
            t.family, t.kernel.lengthscale.detach().double().numpy().ravel(), t.scale().item()
        )
        for t in terms
    ]


@dataclass(frozen=True)
class Problem:
    kernel: Kernel
    x: Tensor
    y: Tensor
    beta: Tensor
    gamma: Tensor

    @property
    def covariance(self) -> Covariance:
        return Covariance(self.kernel)


def problem(seed=0, n=9, d=2, b=4, g=5, ard=False, dtype=torch.float64) -> Problem:
    rng = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> Tensor:
        return torch.randn(rows, d, generator=rng, dtype=dtype)

    x = draw(n)
    y = torch.sin(2.0 * x.sum(1)) + 0.3 * torch.randn(n, generator=rng, dtype=dtype)
    return Problem(default_sum(d, ard).to(dtype), x, y, draw(b), draw(g))


def make_basis(
    kind: str, p: Problem, latents: int = 1, jitter: float = JITTER, hold_fixed: str = "whitened"
) -> Basis:
    factor = initial_factor(p, jitter)
    if kind == "decoupled":
        return Decoupled(p.beta, p.gamma, latents)
    if kind == "decoupled-S":
        S = CovarianceFactor(factor, latents, hold_fixed, p.beta.dtype)
        return DecoupledS(p.beta, p.gamma, S)
    natural = kind.endswith("natural")
    q = (
        NaturalGaussian(factor, latents, hold_fixed)
        if natural
        else FactorGaussian(factor, latents, hold_fixed, p.beta.dtype)
    )
    if kind.startswith("coupled"):
        return Coupled(p.beta, q)
    if kind.startswith("orthogonal"):
        return Orthogonal(p.beta, p.gamma, q)
    assert isinstance(q, FactorGaussian)
    return Hybrid(p.beta, p.gamma, q)


def initial_factor(p: Problem, jitter: float = JITTER):
    with torch.no_grad():
        beta = p.beta.double()
        return factorise_robustly(p.covariance.block(beta, beta), jitter)


@torch.no_grad()
def randomise(basis: Basis, seed: int = 1, size: float = 0.4) -> Basis:
    """Random parameters of moderate size, through the basis's own parameters and buffers."""
    rng = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return size * torch.randn(like.shape, generator=rng, dtype=like.dtype)

    basis.a_gamma.copy_(noise(basis.a_gamma))
    for name, parameter in basis.named_parameters():
        if name.endswith("F"):
            parameter.add_(noise(parameter).tril())
        elif name.endswith(("mean", "a_beta")):
            parameter.copy_(noise(parameter))
    q = getattr(basis, "q", None)
    if isinstance(q, NaturalGaussian):
        root = noise(q.precision)
        q.precision.add_(root @ root.mT)
        q.precision_mean.copy_(noise(q.precision_mean))
    return basis


def make_model(
    kind: str, p: Problem, latents=1, noise=0.2, jitter=JITTER, random=True, **options
) -> VariationalGP:
    basis = make_basis(kind, p, latents, jitter, **options)
    likelihood = Gaussian(latents).to(p.x.dtype)
    likelihood.likelihood.noise = torch.tensor(noise, dtype=p.x.dtype)
    return VariationalGP(p.kernel, likelihood, randomise(basis) if random else basis, jitter=jitter)


def reference_posteriors(model: VariationalGP, p: Problem) -> list[reference.Posterior]:
    """Each latent function's posterior in NumPy, straight from the basis's own parameters."""
    basis = model.basis
    terms = reference_terms(p.kernel)
    beta, gamma = to_numpy(basis.beta), to_numpy(basis.gamma)
    K = reference.kernel_block(terms, beta, beta)
    epsilon = model.jitter * np.mean(np.diag(K))
    K_b, K_bg = K + epsilon * np.eye(len(beta)), reference.kernel_block(terms, beta, gamma)
    L = np.linalg.cholesky(K_b)
    out = []
    for c in range(basis.num_latents):
        a_gamma = to_numpy(basis.a_gamma[c])
        if isinstance(basis, Decoupled):
            F = np.tril(to_numpy(basis.F[c]))
            # Σ = (I + Ψ B Ψᵀ)⁻¹ has S = (K_β⁻¹ + B)⁻¹
            S, a_beta = np.linalg.inv(np.linalg.inv(K_b) + F @ F.T), to_numpy(basis.a_beta[c])
        elif isinstance(basis, DecoupledS):
            S, a_beta = _factor_covariance(basis.S, L, c), to_numpy(basis.a_beta[c])
        else:
            assert isinstance(basis, Coupled | Orthogonal | Hybrid)
            m_beta, S = _mean_and_covariance(basis.q, L, c)
            a_beta = np.linalg.solve(K_b, m_beta)
            if isinstance(basis, Orthogonal):
                a_beta, a_gamma = reference.orthogonal_weights(K_b, K_bg, a_beta, a_gamma)
        out.append(reference.Posterior(terms, beta, gamma, a_beta, a_gamma, S, epsilon))
    return out


def _mean_and_covariance(q, L: np.ndarray, c: int) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(q, NaturalGaussian):
        S = np.linalg.inv(to_numpy(q.precision[c]))
        return L @ S @ to_numpy(q.precision_mean[c]), L @ S @ L.T
    mean = to_numpy(q.mean[c])
    whitened = q.covariance.hold_fixed == "whitened"
    return (L @ mean if whitened else mean), _factor_covariance(q.covariance, L, c)


def _factor_covariance(S: CovarianceFactor, L: np.ndarray, c: int) -> np.ndarray:
    F = np.tril(to_numpy(S.F[c]))
    F = L @ F if S.hold_fixed == "whitened" else F
    return F @ F.T


def to_numpy(t: Tensor) -> np.ndarray:
    return t.detach().double().numpy()


def with_parameters(likelihood, **parameters: float):
    """The likelihood in float64, with these parameters of its GPyTorch likelihood."""
    likelihood.double()
    for name, value in parameters.items():
        setattr(likelihood.likelihood, name, torch.tensor(value, dtype=torch.float64))
    return likelihood


def several_kinds_of_inputs(n: int, seed: int = 0) -> torch.Tensor:
    """Columns: a number, a number that is often the largest one, and five levels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    x[:, 1] = x[:, 1].clamp_max(0.5)
    x[:, 2] = (2.5 * x[:, 2]).round().clamp(-2, 2)
    return x


def thresholds(n: int, seed: int = 0) -> Rows:
    """Classes that change with each level of the last input, and where the first one is small."""
    x = several_kinds_of_inputs(n, seed)
    return Rows(x, ((x[:, 2].abs() == 1) ^ (x[:, 0].abs() < 0.3)).long())
