"""The best q for Gaussian noise with any number of points, by conjugate gradients.

In the coordinates (v, a_γ) of the orthogonal basis the bound is quadratic in the mean. Minus the
bound, up to a constant, is

    J(v, a) = ½ (vᵀv + aᵀ K_γ⊥β a) + ½ Σ_n (y_n − m(x_n))² / σ_n²
    m(x)    = k_xβ Rᵀ (v − u) + k_xγ a,    u = R K_βγ a,

while the best S̃ is (I + Σ_n w_n w_nᵀ / σ_n²)⁻¹ whatever v and a are. A product with the Hessian
takes one pass over the rows forward and one back, O(n (b + g) + g²) time and no memory that grows
with n · g. With a few hundred points `decoupled_optimum` has the same in closed form.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import Factor, cholesky, symmetric_product
from orthogp.posterior.base import Basis
from orthogp.posterior.factor_gaussian import FactorGaussian
from orthogp.posterior.gaussian import NaturalGaussian

# Rows that estimate the diagonal of the Hessian, and rows whose w_n are in memory at a time.
PROBES, CHUNK = 1024, 2**14
# It is at an end where so many products together gain less than this, in nats a row.
LOOK_BACK, LEAST_GAIN = 5, 1e-6


@dataclass(frozen=True)
class Solved:
    """How a solution ended: products with the Hessian, and what J fell by in all, in nats."""

    products: int
    gain: float


@torch.no_grad()
def solve_gaussian(
    basis: Basis,
    covariance: Covariance,
    factor: Factor,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "c n"],
    precision: Float[Tensor, "c n"],
    max_products: int = 100,
    deadline: float | None = None,
) -> Solved:
    """Moves a_γ and q(f_β) of a coupled or an orthogonal basis to the best of their family.

    `y` is without the prior mean and `precision` is weight_n / σ_n². The mean starts where it is
    and only ever improves; it is left as it was where rounding leaves nothing to gain. `deadline`
    is a time of `time.monotonic()` after which no product begins.
    """
    q = basis.q
    assert isinstance(q, NaturalGaussian | FactorGaussian)
    problem = _Problem(basis, covariance, factor, x, y.double(), precision.double())
    S = problem.best_covariance()
    start = q.whitened(factor).v.detach().double(), basis.a_gamma.double()
    (v, a), solved = problem.minimise(start, S, max_products, deadline)
    basis.a_gamma.copy_(a)
    q.set_whitened(factor, v, S)
    return solved


# v and a_γ of every latent function, or gradients with respect to them.
Pair = tuple[Float[Tensor, "c b"], Float[Tensor, "c g"]]


class _Problem:
    """J, its gradient and its Hessian, for every latent function at once."""

    def __init__(
        self,
        basis: Basis,
        covariance: Covariance,
        factor: Factor,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "c n"],
        precision: Float[Tensor, "c n"],
    ):
        self.covariance, self.R = covariance, factor.R.detach()
        self.beta, self.gamma = basis.beta.detach().double(), basis.gamma.detach()
        # β's part of the mean is a difference of large numbers and is computed in float64.
        self.x, self.x_wide = x.to(self.gamma.dtype), x.double()
        self.gamma_wide, self.y, self.precision = self.gamma.double(), y, precision

    def best_covariance(self) -> Float[Tensor, "c b b"]:
        """S̃ = (I + Σ_n w_n w_nᵀ / σ_n²)⁻¹."""
        size = self.beta.shape[0]
        identity = torch.eye(size, dtype=self.R.dtype, device=self.R.device)
        # Where outputs share their noise they share S̃.
        shared = bool((self.precision == self.precision[:1]).all())
        precision = self.precision[:1] if shared else self.precision
        total = identity.repeat(len(precision), 1, 1)
        part = torch.empty_like(total)
        for rows, p in zip(self.x_wide.split(CHUNK), precision.split(CHUNK, dim=1), strict=True):
            w = self.R @ self.covariance.block(self.beta, rows)
            symmetric_product(p.unsqueeze(-2) * w, w, out=part)
            total += part
        S = torch.cholesky_inverse(cholesky(total))
        return S.expand(len(self.precision), size, size)

    def minimise(
        self, start: Pair, S: Float[Tensor, "c b b"], max_products: int, deadline: float | None
    ) -> tuple[Pair, Solved]:
        """Preconditioned conjugate gradients; the start itself where J does not fall from there."""
        scale = self._hessian_diagonal()

        def precondition(r: Pair) -> Pair:
            return (S @ r[0].unsqueeze(-1)).squeeze(-1), r[1] / scale

        fit, energy = self._mean(start)
        before = self._value(start, fit, energy)
        gradient = self._gradient(start, (fit - self.y) * self.precision, energy)
        found, products = _conjugate_gradients(
            self._hessian, precondition, (-gradient[0], -gradient[1]),
            least_gain=LEAST_GAIN * self.y.shape[1], max_products=max_products, deadline=deadline,
        )  # fmt: skip
        end = start[0] + found[0], start[1] + found[1]
        gain = before - self._value(end, *self._mean(end))
        # Written so that NaN counts as no gain.
        better = gain > 0.0
        choice = better.unsqueeze(-1)
        best = torch.where(choice, end[0], start[0]), torch.where(choice, end[1], start[1])
        return best, Solved(products, float(torch.where(better, gain, 0.0).sum()))

    def _hessian(self, z: Pair) -> Pair:
        fit, energy = self._mean(z)
        return self._gradient(z, fit * self.precision, energy)

    def _mean(self, z: Pair) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c g"]]:
        """m(x_n) at every row, and K_γ⊥β a."""
        v, a = z
        narrow = a.to(self.gamma.dtype)
        u = self.covariance.matvec(self.beta, self.gamma_wide, a) @ self.R.mT
        fit = self.covariance.matvec(self.x_wide, self.beta, (v - u) @ self.R)
        fit += self.covariance.matvec(self.x, self.gamma, narrow)
        energy = self.covariance.matvec(self.gamma, self.gamma, narrow).double()
        energy -= self.covariance.matvec(self.gamma_wide, self.beta, u @ self.R)
        return fit, energy

    def _gradient(
        self, z: Pair, errors: Float[Tensor, "c n"], energy: Float[Tensor, "c g"]
    ) -> Pair:
        """With respect to (v, a), where `errors` is that with respect to m(x_n)."""
        at_beta = self.covariance.matvec(self.beta, self.x_wide, errors) @ self.R.mT
        at_gamma = self.covariance.matvec(self.gamma, self.x, errors.to(self.gamma.dtype)).double()
        at_gamma -= self.covariance.matvec(self.gamma_wide, self.beta, at_beta @ self.R)
        return z[0] + at_beta, energy + at_gamma

    def _value(
        self, z: Pair, fit: Float[Tensor, "c n"], energy: Float[Tensor, "c g"]
    ) -> Float[Tensor, " c"]:
        prior = z[0].square().sum(-1) + (z[1] * energy).sum(-1)
        return 0.5 * (prior + ((self.y - fit).square() * self.precision).sum(-1))

    def _hessian_diagonal(self) -> Float[Tensor, "c g"]:
        """That with respect to a_γ, the rows' part of it estimated from some of them."""
        stride = -(-self.x.shape[0] // PROBES)
        rows, precision = self.x_wide[::stride], self.precision[:, ::stride]
        w = self.R @ self.covariance.block(self.beta, rows)
        found = []
        for gamma in self.gamma_wide.split(CHUNK):
            w_gamma = self.R @ self.covariance.block(self.beta, gamma)
            k = self.covariance.block(gamma, rows) - w_gamma.mT @ w
            prior = self.covariance.diagonal(gamma) - w_gamma.square().sum(0)
            found.append(prior.clamp_min(0.0) + stride * precision @ k.square().mT)
        if not found:
            return precision.new_zeros(len(precision), 0)
        diagonal = torch.cat(found, dim=1)
        # A γ that no probe is near must not take a step beyond all others.
        return torch.maximum(diagonal, 1e-3 * diagonal.mean(-1, keepdim=True))


def _conjugate_gradients(
    apply: Callable[[Pair], Pair],
    precondition: Callable[[Pair], Pair],
    b: Pair,
    least_gain: float,
    max_products: int,
    deadline: float | None,
) -> tuple[Pair, int]:
    """z with H z ≈ b, for every latent function on its own, and how many products it took."""
    z = torch.zeros_like(b[0]), torch.zeros_like(b[1])
    r, s = b, precondition(b)
    direction, rs = s, _dot(r, s)
    gains: list[float] = []
    for product in range(max_products):
        if deadline is not None and time.monotonic() >= deadline:
            return z, product
        H = apply(direction)
        curvature = _dot(direction, H)
        # A latent function whose curvature has been lost to rounding stands still.
        step = torch.where(curvature > 0.0, rs / curvature, 0.0)
        z = _add(z, step, direction)
        r = _add(r, -step, H)
        gains.append(float((0.5 * step * rs).sum()))
        if not sum(gains[-LOOK_BACK:]) > least_gain and len(gains) >= LOOK_BACK:
            return z, product + 1
        s = precondition(r)
        before, rs = rs, _dot(r, s)
        direction = _add(s, torch.where(before > 0.0, rs / before, 0.0), direction)
    return z, max_products


def _dot(x: Pair, y: Pair) -> Float[Tensor, " c"]:
    return (x[0] * y[0]).sum(-1) + (x[1] * y[1]).sum(-1)


def _add(x: Pair, scale: Float[Tensor, " c"], y: Pair) -> Pair:
    scale = scale.unsqueeze(-1)
    return x[0] + scale * y[0], x[1] + scale * y[1]
