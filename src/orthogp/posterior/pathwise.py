"""Samples of the posterior that are functions: pathwise conditioning (Matheron's rule).

A function g of the prior, here a sum of random Fourier features, splits into g_∥(x) = w_xᵀ v_g with
v_g = R (g(β) + √ε ξ) and g_⊥ = g − g_∥, of covariance k_⊥ and independent of v_g; ε is the jitter
of K_β and ξ standard normal. With v ~ q(v), a draw ε_n of the noise of every row, and c_x and ŵ_x
of the rows near x (`joint`),

    F(x) = base(x) + ŵ_xᵀ v + c_xᵀ (y_N − g_⊥(N) − ε_N) + g_⊥(x).

The noise of a row is drawn once for a function, so that F is one function wherever and however
often it is evaluated. Its mean and covariance are those of the posterior: over its random
frequencies the covariance of the features is k exactly. Up to `SETS` functions have frequencies of
their own, more of them share as many sets; p frequencies in each of h sets leave an error of about
1/√(p h) in the covariance over many functions that are drawn together.

The features [cos ωᵀx, sin ωᵀx] have the frequencies of the spectral density of k: ω = z / ℓ with z
standard normal for an RBF kernel, and z √(2ν / u) / ℓ with u ~ χ²(2ν) for a Matérn kernel.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.kernel.covariance import Covariance
from orthogp.posterior.induced import dot, factor_with_noise
from orthogp.posterior.joint import FactoredRows, Local, basis_mean, local, rows_near
from orthogp.posterior.near_rows import NearPredictor

FREQUENCIES, SETS = 512, 8
# Numbers in a table of features that is made at a time.
CHUNK_ELEMENTS = 2**22
DEGREES = {"matern12": 1, "matern32": 3, "matern52": 5}


@dataclass(frozen=True)
class PriorFunctions:
    """Functions of the prior, f of them for each of c outputs.

    Function i has the p frequencies of the set i modulo h.
    """

    frequencies: Float[Tensor, "h c p d"]
    cosines: Float[Tensor, "f c p"]
    sines: Float[Tensor, "f c p"]

    @staticmethod
    @torch.no_grad()
    def draw(
        covariance: Covariance,
        x: Float[Tensor, "n d"],
        number: int,
        outputs: int,
        generator: torch.Generator,
        frequencies: int = FREQUENCIES,
    ) -> "PriorFunctions":
        """Functions of inputs like x; so many frequencies for each summand of the kernel."""
        if covariance.terms is None:
            raise ConfigurationError(
                "functions are drawn for sums of RBF and Matérn kernels, whose spectral densities "
                f"are known; the kernel is a {type(covariance.kernel).__name__}"
            )
        omegas, scales = [], []
        for term in covariance.terms:
            lengthscale = term.kernel.lengthscale.double().reshape(-1)
            z = _normal((min(number, SETS), outputs, frequencies, x.shape[1]), generator, x)
            if term.family in DEGREES:
                degrees = DEGREES[term.family]
                u = _normal((degrees, *z.shape[:-1], 1), generator, x).square().sum(0)
                z = z * (degrees / u).sqrt()
            omegas.append(z / lengthscale)
            scale = (term.scale().double() / frequencies).sqrt()
            scales.append(scale.reshape(1).expand(frequencies))
        scale, shape = torch.cat(scales), (number, outputs, frequencies * len(scales))
        weights = [scale * _normal(shape, generator, x) for _ in range(2)]
        return PriorFunctions(torch.cat(omegas, -2), *weights)

    def __call__(self, x: Float[Tensor, "*f m d"]) -> Float[Tensor, "g c m"]:
        """The functions at x, `[m, d]`, or at an x of each function, `[f, m, d]`."""
        sets, number = len(self.frequencies), len(self.cosines)
        order = torch.cat([torch.arange(i, number, sets) for i in range(sets)])
        values = torch.cat([self._of_set(i, x) for i in range(sets)])
        return values[order.argsort().to(values.device)]

    def _of_set(self, i: int, x: Tensor) -> Tensor:
        """Those functions that have the frequencies of one set."""
        part = slice(i, None, len(self.frequencies))
        cosines, sines = self.cosines[part], self.sines[part]
        x = x if x.ndim == 2 else x[part].unsqueeze(1)
        _, c, p, _ = self.frequencies.shape
        height = max(1, CHUNK_ELEMENTS // (c * p * (1 if x.ndim == 2 else len(x))))
        return torch.cat(
            [self._at(self.frequencies[i], cosines, sines, z) for z in x.split(height, dim=-2)], -1
        )

    @staticmethod
    def _at(omega: Tensor, cosines: Tensor, sines: Tensor, x: Tensor) -> Tensor:
        # [c, p, m], or with the functions before.
        phase = omega @ x.mT
        if phase.ndim == 3:
            cosines, sines = cosines.movedim(1, 0), sines.movedim(1, 0)
            return (cosines @ phase.cos() + sines @ phase.sin()).movedim(1, 0)
        cosines, sines = cosines.unsqueeze(-2), sines.unsqueeze(-2)
        return (cosines @ phase.cos() + sines @ phase.sin()).squeeze(-2)


@dataclass(frozen=True)
class PosteriorFunctions:
    """Functions of a posterior; `rows` are y_n − g_⊥(x_n) − ε_n, `v` and `v_prior` v and v_g.

    `given` are rows that stand for those near x wherever x is.
    """

    predictor: NearPredictor
    prior: PriorFunctions
    v: Float[Tensor, "f c b"] | None
    v_prior: Float[Tensor, "f c b"] | None
    rows: Float[Tensor, "f c n"]
    given: FactoredRows | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def given_rows_near(self, x: Float[Tensor, "*f m d"]) -> "PosteriorFunctions":
        """These functions for as many points as x has, each given the rows near that x for good.

        They are smooth then, equal to these ones near x, and a call takes O(k² + k |β|) for a point
        rather than O(k³ + k² |β|).
        """
        x = x.detach().to(self.predictor.device, torch.float64)
        return replace(self, given=rows_near(self.predictor, x.reshape(-1, x.shape[-1])))

    def __call__(self, x: Float[Tensor, "*f m d"]) -> Float[Tensor, "g c m"]:
        """Every function at x, `[m, d]`, or at an x of its own, `[f, m, d]`; differentiable in x.

        O(f p d) for a point and p frequencies, and what the conditioning on its near rows takes.
        """
        x = x.to(self.predictor.device, torch.float64)
        x = x if x.ndim == 3 else x.unsqueeze(0)
        if self.given is not None:
            return self._at(x)
        compiled = _by_machine_code(self.predictor, x)
        height = max(1, self.predictor._height(compiled) // len(x))
        parts = [self._at(part) for part in x.split(height, dim=1)]
        return torch.cat(parts, -1)

    def _at(self, x: Float[Tensor, "g m d"]) -> Float[Tensor, "f c m"]:
        p, (g, m, d) = self.predictor, x.shape
        flat = x.reshape(-1, d)
        at = _local(p, flat) if self.given is None else local(p, flat, self.given)
        values = self.prior(x if g > 1 else flat)

        def by_function(t: Tensor) -> Tensor:
            """From `[s, g m, …]` to `[g, s, m, …]`."""
            return t.reshape(len(t), g, m, *t.shape[2:]).movedim(1, 0)

        if self.v is not None and self.v_prior is not None:
            assert at.left is not None
            assert at.w is not None
            for w, v in ((at.left, self.v), (at.w.unsqueeze(0), -self.v_prior)):
                values = values + (by_function(w) @ v.unsqueeze(-1)).squeeze(-1)
        if at.near.shape[1]:
            near = by_function(at.near.unsqueeze(0)).expand(len(self), self.rows.shape[1], -1, -1)
            rows = self.rows.unsqueeze(2).expand(-1, -1, m, -1).gather(-1, near)
            values = values + dot(by_function(at.c), rows)
        return values if p.base is None else values + by_function(basis_mean(p.base, flat))


def _by_machine_code(p: NearPredictor, x: Tensor) -> bool:
    """Whether no gradient is asked for, and machine code is there that rounds as torch does."""
    return not x.requires_grad and p.dtype == torch.float64 and p._compiled_kernel() is not None


def _local(p: NearPredictor, x: Float[Tensor, "m d"]) -> Local:
    if not _by_machine_code(p, x):
        return local(p, x)
    with torch.no_grad():
        found, w = p._local(p.nearest(x), x), None if p.features is None else p.features(x)
    # Functions do not need k_⊥Nx.
    return Local(found.near, found.c, found.c[0], w, found.w)


@torch.no_grad()
def sample_functions(
    p: NearPredictor,
    number: int,
    generator: torch.Generator,
    frequencies: int = FREQUENCIES,
) -> PosteriorFunctions:
    """So many functions; O(f p d) for every row and p frequencies, once."""
    outputs, x = len(p.rows.y), p.rows.x
    prior = PriorFunctions.draw(p.covariance, x, number, outputs, generator, frequencies)
    noise = p.rows.noise.double()
    rows = p.rows.y.double() - prior(x.double())
    rows = rows - noise.sqrt() * _normal((number, outputs, len(x)), generator, x)
    if p.features is None or p.induced is None:
        return PosteriorFunctions(p, prior, None, None, rows)
    beta, R = p.features.beta, p.features.R
    K = p.covariance.block(beta, beta)
    L = torch.linalg.solve_triangular(R, torch.eye(len(R)).to(R), upper=False)
    jitter = ((L @ L.mT).diagonal() - K.diagonal()).mean().clamp_min(0.0)
    at_beta = prior(beta) + jitter.sqrt() * _normal((number, outputs, len(beta)), generator, x)
    v_prior = at_beta @ R.mT
    S, nothing = p.induced.S, p.induced.S.diagonal(dim1=-2, dim2=-1).mul(0.0)
    root = factor_with_noise(S, nothing.unsqueeze(0))[0]
    v = _normal((number, outputs, len(beta)), generator, x).unsqueeze(-1)
    v = p.induced.mean + (root @ v).squeeze(-1)
    # g_⊥(x_n) = g(x_n) − w_nᵀ v_g
    rows = rows + v_prior @ p.features.W.double().mT
    return PosteriorFunctions(p, prior, v, v_prior, rows)


def _normal(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    device = generator.device
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
    return values.to(like.device)
