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
from functools import partial

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
# A solution is taken for rounding where J falls by less than this share of what it should.
LEAST_SHARE = 0.5


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
) -> int:
    """Moves a_γ and q(f_β) of a coupled or an orthogonal basis to the best of their family.

    `y` is without the prior mean and `precision` is weight_n / σ_n². The mean starts where it is
    and only ever improves: in the dtype of γ, in float64 where that is too coarse, and it is left
    as it was where rounding leaves nothing to gain. `deadline` is a time of `time.monotonic()`
    after which no product with the Hessian begins. Returns the number of these.
    """
    q = basis.q
    assert isinstance(q, NaturalGaussian | FactorGaussian)
    problem = _Problem(basis, covariance, factor, x, y.double(), precision.double())
    S, v = problem.optimum_without_gamma()
    products = 0
    if len(basis.gamma):
        start = q.whitened(factor).v.detach().double(), basis.a_gamma.double()
        (v, a), products = problem.minimise(start, S, max_products, deadline)
        basis.a_gamma.copy_(a)
    q.set_whitened(factor, v, S)
    return products


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
        self.covariance, self.R, self.dtype = covariance, factor.R.detach(), basis.gamma.dtype
        self.beta, self.gamma = basis.beta.detach().double(), basis.gamma.detach().double()
        self.x, self.y, self.precision = x.double(), y, precision

    def optimum_without_gamma(self) -> tuple[Float[Tensor, "c b b"], Float[Tensor, "c b"]]:
        """S̃ = (I + Σ_n w_n w_nᵀ / σ_n²)⁻¹, and v = S̃ Σ_n w_n y_n / σ_n², the best with a = 0."""
        size = self.beta.shape[0]
        identity = torch.eye(size, dtype=self.R.dtype, device=self.R.device)
        # Where outputs share their noise they share S̃.
        shared = bool((self.precision == self.precision[:1]).all())
        precision = self.precision[:1] if shared else self.precision
        total = identity.repeat(len(precision), 1, 1)
        part, precision_mean = torch.empty_like(total), self.R.new_zeros(len(self.y), size)
        pieces = zip(
            self.x.split(CHUNK), precision.split(CHUNK, dim=1),
            (self.y * self.precision).split(CHUNK, dim=1), strict=True,
        )  # fmt: skip
        for rows, p, py in pieces:
            w = self.R @ self.covariance.block(self.beta, rows)
            symmetric_product(p.unsqueeze(-2) * w, w, out=part)
            total += part
            precision_mean += py @ w.mT
        S = torch.cholesky_inverse(cholesky(total))
        v = (S @ precision_mean.unsqueeze(-1)).squeeze(-1)
        return S.expand(len(self.precision), size, size), v

    def minimise(
        self, start: Pair, S: Float[Tensor, "c b b"], max_products: int, deadline: float | None
    ) -> tuple[Pair, int]:
        """Preconditioned conjugate gradients; the start itself where J does not fall from there."""
        scale = self._hessian_diagonal()

        def precondition(r: Pair) -> Pair:
            return (S @ r[0].unsqueeze(-1)).squeeze(-1), r[1] / scale

        before, products = self.value(start), 0
        best, gain = start, torch.zeros_like(before)
        for dtype in dict.fromkeys((self.dtype, torch.float64)):
            fit, energy = self._mean(start, dtype)
            gradient = self._gradient(start, (fit - self.y) * self.precision, energy, dtype)
            step, expected, used = _conjugate_gradients(
                partial(self._hessian, dtype=dtype), precondition, (-gradient[0], -gradient[1]),
                least_gain=LEAST_GAIN * self.y.shape[1], max_products=max_products,
                deadline=deadline,
            )  # fmt: skip
            products += used
            end = start[0] + step[0], start[1] + step[1]
            gained = before - self.value(end)
            # Written so that NaN counts as no gain.
            better = (gained > gain).unsqueeze(-1)
            best = torch.where(better, end[0], best[0]), torch.where(better, end[1], best[1])
            gain = torch.where(better.squeeze(-1), gained, gain)
            if bool((gained > LEAST_SHARE * expected).all()):
                break
        return best, products

    def _hessian(self, z: Pair, dtype: torch.dtype) -> Pair:
        fit, energy = self._mean(z, dtype)
        return self._gradient(z, fit * self.precision, energy, dtype)

    def _mean(
        self, z: Pair, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c g"]]:
        """m(x_n) at every row and K_γ⊥β a, with products with γ in `dtype`.

        β's part of the mean is a difference of large numbers, always computed in float64.
        """
        v, a = z
        gamma, x = self.gamma.to(dtype), self.x.to(dtype)
        u = self.covariance.matvec(self.beta, self.gamma, a) @ self.R.mT
        fit = self.covariance.matvec(self.x, self.beta, (v - u) @ self.R)
        fit += self.covariance.matvec(x, gamma, a.to(dtype))
        energy = self.covariance.matvec(gamma, gamma, a.to(dtype)).double()
        energy -= self.covariance.matvec(self.gamma, self.beta, u @ self.R)
        return fit, energy

    def _gradient(
        self,
        z: Pair,
        errors: Float[Tensor, "c n"],
        energy: Float[Tensor, "c g"],
        dtype: torch.dtype,
    ) -> Pair:
        """With respect to (v, a), where `errors` is that with respect to m(x_n)."""
        at_beta = self.covariance.matvec(self.beta, self.x, errors) @ self.R.mT
        gamma, x = self.gamma.to(dtype), self.x.to(dtype)
        at_gamma = self.covariance.matvec(gamma, x, errors.to(dtype)).double()
        at_gamma -= self.covariance.matvec(self.gamma, self.beta, at_beta @ self.R)
        return z[0] + at_beta, energy + at_gamma

    def value(self, z: Pair) -> Float[Tensor, " c"]:
        """J: m(x_n) as it is predicted, in the dtype of γ; the KL divergence in float64."""
        fit = self._mean(z, self.dtype)[0]
        energy = self._mean(z, torch.float64)[1]
        prior = z[0].square().sum(-1) + (z[1] * energy).sum(-1)
        return 0.5 * (prior + ((self.y - fit).square() * self.precision).sum(-1))

    def _hessian_diagonal(self) -> Float[Tensor, "c g"]:
        """That with respect to a_γ, the rows' part of it estimated from some of them."""
        stride = -(-self.x.shape[0] // PROBES)
        rows, precision = self.x[::stride], self.precision[:, ::stride]
        w = self.R @ self.covariance.block(self.beta, rows)
        found = []
        for gamma in self.gamma.split(CHUNK):
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
) -> tuple[Pair, Float[Tensor, " c"], int]:
    """z with H z ≈ b, for every latent function on its own; what ½ zᵀHz − bᵀz should have fallen by
    for each, and how many products it took."""
    z = torch.zeros_like(b[0]), torch.zeros_like(b[1])
    r, s = b, precondition(b)
    direction, rs = s, _dot(r, s)
    gain, totals = torch.zeros_like(rs), [0.0]
    for product in range(max_products):
        if deadline is not None and time.monotonic() >= deadline:
            return z, gain, product
        H = apply(direction)
        curvature = _dot(direction, H)
        # A latent function whose curvature has been lost to rounding stands still.
        step = torch.where(curvature > 0.0, rs / curvature, 0.0)
        z = _add(z, step, direction)
        r = _add(r, -step, H)
        gain = gain + 0.5 * step * rs
        totals.append(float(gain.sum()))
        if product + 1 >= LOOK_BACK and not totals[-1] - totals[-1 - LOOK_BACK] > least_gain:
            return z, gain, product + 1
        s = precondition(r)
        before, rs = rs, _dot(r, s)
        direction = _add(s, torch.where(before > 0.0, rs / before, 0.0), direction)
    return z, gain, max_products


def _dot(x: Pair, y: Pair) -> Float[Tensor, " c"]:
    return (x[0] * y[0]).sum(-1) + (x[1] * y[1]).sum(-1)


def _add(x: Pair, scale: Float[Tensor, " c"], y: Pair) -> Pair:
    scale = scale.unsqueeze(-1)
    return x[0] + scale * y[0], x[1] + scale * y[1]
