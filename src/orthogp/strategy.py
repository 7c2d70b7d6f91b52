"""The orthogonally decoupled posterior for GPyTorch models, and natural steps on its q(f_β).

A base strategy keeps β and q(f_β); this one adds the residual function of γ to the mean and its
energy to the KL, with the blocks of the prior [OD18, eq. 12]:

    r(x) = k_xγ a_γ − k_xβ K_β⁻¹ K_βγ a_γ        KL = KL_β + ½ Σ_j a_j r(γ_j)

The covariance is the base's own. GPyTorch's names stay: `inducing_points` are γ, the mean of the
`DeltaVariationalDistribution` is a_γ, and a `state_dict` has the keys of GPyTorch's own strategy.
"""

from typing import Any

import torch
from gpytorch.distributions import Delta, MultivariateNormal  # pyright: ignore
from gpytorch.lazy import LazyEvaluatedKernelTensor
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.models.gp import GP
from gpytorch.variational import (
    BatchDecoupledVariationalStrategy,
    DeltaVariationalDistribution,
    NaturalVariationalDistribution,
    NNVariationalStrategy,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
    _VariationalDistribution,
    _VariationalStrategy,
)
from jaxtyping import Float
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn
from torch.distributions.kl import register_kl
from torch.utils.checkpoint import checkpoint

from orthogp.errors import ConfigurationError
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial.terms import radial_terms
from orthogp.linalg import condition_gaussian
from orthogp.posterior.natural import WhitenedNatural, natural_step, safe_step_size

# Elements of a block held at a time by kernels without a fused product.
TILE = {"cpu": 2**20, "cuda": 2**24}


class OrthogonalVariationalStrategy(_VariationalStrategy):
    """In place of `gpytorch.variational.OrthogonallyDecoupledVariationalStrategy`.

    `covar_variational_strategy` holds β and q(f_β), whitened or not. In training mode `kl_columns`
    estimates the KL without bias from so many points of γ, drawn afresh each time from torch's
    generator; None is exact. A step costs O((n + b) g) more than the base's, and the KL O(g²) when
    exact or O(g) for each column; no memory grows with n · g or g².
    """

    has_fantasy_strategy = True
    inducing_points: Tensor
    base_variational_strategy: VariationalStrategy | UnwhitenedVariationalStrategy
    _variational_distribution: DeltaVariationalDistribution

    def __init__(
        self,
        covar_variational_strategy: _VariationalStrategy,
        inducing_points: Float[Tensor, "*batch g d"] | Float[Tensor, " g"],
        variational_distribution: _VariationalDistribution,
        jitter_val: float | None = None,
        learn_inducing_locations: bool = True,
        kl_columns: int | None = None,
    ):
        base = _checked_base(covar_variational_strategy)
        if not isinstance(variational_distribution, DeltaVariationalDistribution):
            raise ConfigurationError(
                f"the weights of γ are a {type(variational_distribution).__name__}; "
                "expected a DeltaVariationalDistribution"
            )
        if kl_columns is not None and kl_columns < 1:
            raise ConfigurationError(
                f"kl_columns is {kl_columns}; expected a positive number, or None for the exact KL"
            )
        super().__init__(
            base,
            inducing_points,
            variational_distribution,
            learn_inducing_locations=learn_inducing_locations,
            jitter_val=jitter_val,
        )
        self.base_variational_strategy = base
        self.kl_columns = kl_columns

    @property
    def prior_distribution(self) -> MultivariateNormal:
        """N(0, K_γ), not evaluated: a_γ starts around its mean, and wrappers pass it on."""
        covariance = self._prior_covariance(self.inducing_points).add_jitter(self.jitter_val)
        zeros = torch.zeros_like(self.variational_distribution.mean)
        return MultivariateNormal(zeros, covariance)

    @property
    def variational_distribution(self) -> "ResidualWeights":
        return ResidualWeights(self)

    def __call__(
        self, x: Float[Tensor, "*batch n d"], prior: bool = False, diag: bool = True, **kwargs
    ) -> MultivariateNormal:
        """q(f) at x, or p(f) when `prior`."""
        if prior:
            return self.base_variational_strategy(x, prior=True, diag=diag, **kwargs)
        return super().__call__(x, diag=diag, **kwargs)

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        inducing_points: Float[Tensor, "*batch g d"],
        inducing_values: Float[Tensor, "*values g"],
        variational_inducing_covar: None = None,
        diag: bool = True,
        **kwargs,
    ) -> MultivariateNormal:
        # The base goes first: it starts a training step with a fresh factor of K_β.
        q = self.base_variational_strategy(x, diag=diag, **kwargs)
        mean = q.mean + self._residual(x, inducing_points, inducing_values, **kwargs)
        covariance = q.lazy_covariance_matrix
        if covariance.shape[:-1] != mean.shape:
            covariance = covariance.expand(*mean.shape, mean.shape[-1])
        return MultivariateNormal(mean, covariance)

    def kl_divergence(self) -> Float[Tensor, "*kl"]:
        """KL(q‖p) for every function of the batch: the base's, and the energy of the residual."""
        gamma, a_gamma = self.inducing_points, self.variational_distribution.mean
        rows, weights, num_points = gamma, a_gamma, gamma.shape[-2]
        if self.training and self.kl_columns is not None and self.kl_columns < num_points:
            columns = torch.randperm(num_points, device=gamma.device)[: self.kl_columns]
            rows = gamma[..., columns, :]
            weights = a_gamma[..., columns] * (num_points / self.kl_columns)
        # a_γᵀ K_γ⊥β a_γ = Σ_j a_j r(γ_j)
        energy = (weights * self._residual(rows, gamma, a_gamma)).sum(-1)
        return self.base_variational_strategy.kl_divergence() + 0.5 * energy

    def get_fantasy_model(
        self, inputs: Float[Tensor, "*b m d"], targets: Float[Tensor, "*f m"], **kwargs
    ) -> "FantasyModel":
        """The posterior given more observations, for a model whose `likelihood` is Gaussian.

        The posterior is the Gaussian process q(f), whatever q(f_β) is made of, and it is that
        process which is conditioned on. GPyTorch goes by pseudo-points and modules for mean and
        kernel, which are not needed here and not taken.
        """
        likelihood = getattr(self.base_variational_strategy.model, "likelihood", None)
        if not isinstance(likelihood, GaussianLikelihood):
            raise NotImplementedError(
                f"the likelihood of the model is a {type(likelihood).__name__}; fantasies need a "
                "GaussianLikelihood, as the model's attribute `likelihood`"
            )
        given = [name for name, value in kwargs.items() if value is not None]
        if given:
            raise ConfigurationError(f"a fantasy model takes no {', '.join(given)}; leave it out")
        return FantasyModel(self, likelihood, inputs, targets)

    def _residual(self, x: Tensor, gamma: Tensor, a_gamma: Tensor, **kwargs) -> Tensor:
        """r(x)."""
        base = self.base_variational_strategy
        beta: Tensor = base.inducing_points  # pyright: ignore[reportAssignmentType]
        n, b = x.shape[-2], beta.shape[-2]
        K = self._prior_covariance(x, beta, gamma, **kwargs)
        # One pass over γ serves x and β.
        products = _product(K[..., : n + b, n + b :], a_gamma)
        at_x, at_beta = products.split([n, b], dim=-1)
        K_b = to_linear_operator(K[..., n : n + b, n : n + b]).add_jitter(base.jitter_val)
        L = factor_of_base(base, K_b)
        weights = torch.cholesky_solve(at_beta.unsqueeze(-1).to(L.dtype), L).squeeze(-1)
        return at_x - _product(K[..., :n, n : n + b], weights.to(at_x.dtype))

    def _prior_covariance(self, *points: Tensor, **kwargs) -> LinearOperator:
        """The prior's covariance between all the points, lazily."""
        batch = torch.broadcast_shapes(*(p.shape[:-2] for p in points))
        joint = torch.cat([p.expand(*batch, *p.shape[-2:]) for p in points], dim=-2)
        prior = self.base_variational_strategy.model.forward(joint, **kwargs)  # pyright: ignore
        return prior.lazy_covariance_matrix


class FantasyModel(GP):
    """q(f) given observations at `inputs`, which it is a function of, as of x:

    m′(x) = m(x) + Σ_xF (Σ_FF + σ²I)⁻¹ (y_F − m_F),    Σ′ = Σ − Σ_xF (Σ_FF + σ²I)⁻¹ Σ_Fx

    with mean and covariance of q(f). It shares the strategy: training that one changes it too.
    """

    def __init__(
        self,
        strategy: OrthogonalVariationalStrategy,
        likelihood: GaussianLikelihood,
        inputs: Float[Tensor, "*b m d"],
        targets: Float[Tensor, "*f m"],
    ):
        super().__init__()
        self.strategy, self.likelihood = strategy, likelihood
        self.inputs, self.targets = inputs, targets

    def __call__(self, x: Float[Tensor, "*batch n d"]) -> MultivariateNormal:
        batch = torch.broadcast_shapes(x.shape[:-2], self.inputs.shape[:-2])
        both = [t.expand(*batch, *t.shape[-2:]) for t in (self.inputs, x)]
        q = self.strategy(torch.cat(both, -2), diag=False)
        noise = self.likelihood.noise
        noise = noise.expand(*noise.shape[:-1], self.inputs.shape[-2]).to(q.mean)
        found = condition_gaussian(q.mean, q.covariance_matrix, self.targets, noise)
        return MultivariateNormal(*found)

    def get_fantasy_model(
        self, inputs: Float[Tensor, "*b m d"], targets: Float[Tensor, "*f m"]
    ) -> "FantasyModel":
        """With more observations."""

        def joined(one: Tensor, other: Tensor, dims: int) -> Tensor:
            batch = torch.broadcast_shapes(one.shape[:-dims], other.shape[:-dims])
            parts = [t.expand(*batch, *t.shape[-dims:]) for t in (one, other)]
            return torch.cat(parts, -dims)

        both = joined(self.inputs, inputs, 2), joined(self.targets, targets, 1)
        return FantasyModel(self.strategy, self.likelihood, *both)


class ResidualWeights(Delta):
    """a_γ as a point mass that knows its strategy.

    Multitask wrappers ask torch for the KL between the strategy's two distributions, never the
    strategy itself: this is how they get KL(q‖p).
    """

    def __init__(self, strategy: OrthogonalVariationalStrategy):
        super().__init__(strategy._variational_distribution.variational_mean)
        self.strategy = strategy


@register_kl(ResidualWeights, MultivariateNormal)
def _strategy_kl(q: ResidualWeights, p: MultivariateNormal) -> Tensor:
    return q.strategy.kl_divergence()


class NaturalSteps(torch.optim.Optimizer):
    """Natural steps on every `NaturalVariationalDistribution` in `module`, shortened where needed.

    `gpytorch.optim.NGD`, but for a likelihood that is not log-concave: there a full step can leave
    the positive definite matrices, and this one takes a sixteenth of it, or a 256th,
    or stands still. `lr` is τ; the gradients are those of the bound divided by `num_data`, as
    GPyTorch's are.
    """

    def __init__(self, module: nn.Module, num_data: int, lr: float = 0.1):
        found = [m for m in module.modules() if isinstance(m, NaturalVariationalDistribution)]
        if not found:
            raise ConfigurationError(
                f"the {type(module).__name__} has no NaturalVariationalDistribution to step on"
            )
        self.num_data = num_data
        groups = [{"params": [q.natural_vec, q.natural_mat]} for q in found]
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if closure is not None:
            raise ConfigurationError("NaturalSteps takes no closure; call backward before step")
        for group in self.param_groups:
            vector, matrix = group["params"]
            if matrix.grad is not None:
                self._move(vector, matrix, group["lr"])

    def _move(self, vector: nn.Parameter, matrix: nn.Parameter, lr: float) -> None:
        assert vector.grad is not None
        assert matrix.grad is not None
        size = vector.shape[-1]
        # Λ̃ = −2 Θ, with the batch as one axis of latent functions, in float64.
        precision = -2.0 * matrix.double().reshape(-1, size, size)
        q = WhitenedNatural(precision, vector.double().reshape(-1, size))
        v = torch.linalg.solve(precision, q.precision_mean)
        # What GPyTorch leaves in .grad is with respect to v and S̃ + v vᵀ, entropy included.
        grad_S = self.num_data * matrix.grad.double().reshape_as(precision)
        grad_v = self.num_data * vector.grad.double().reshape_as(v)
        grad_v = grad_v + 2.0 * (grad_S @ v.unsqueeze(-1)).squeeze(-1)
        grad_S = grad_S + 0.5 * precision
        tau = safe_step_size(precision, grad_S, precision.new_tensor(lr))
        moved = natural_step(q, v, grad_v, grad_S, tau)
        vector.copy_(moved.precision_mean.reshape_as(vector))
        matrix.copy_(-0.5 * moved.precision.reshape_as(matrix))


def factor_of_base(base: Any, K_b: LinearOperator | Tensor) -> Tensor:
    """The Cholesky factor of K_β: the one that the base has computed in this step, if it has.

    GPyTorch keeps it behind a private method; a version without one costs a factorisation.
    """
    cached = getattr(base, "_cholesky_factor", None)
    if cached is not None:
        return to_dense(cached(K_b))
    return psd_safe_cholesky(to_dense(K_b).double())


def _checked_base(
    base: _VariationalStrategy,
) -> VariationalStrategy | UnwhitenedVariationalStrategy:
    # Two subclasses do not fit: one has a second K_β for its mean, one has no K_β.
    excluded = isinstance(base, BatchDecoupledVariationalStrategy | NNVariationalStrategy)
    if isinstance(base, VariationalStrategy | UnwhitenedVariationalStrategy) and not excluded:
        return base
    raise ConfigurationError(
        f"the base strategy is a {type(base).__name__}; expected a VariationalStrategy or an "
        "UnwhitenedVariationalStrategy"
    )


def _product(K: LinearOperator | Tensor, a: Float[Tensor, "*c m"]) -> Float[Tensor, "*k n"]:
    """K a, in memory that does not grow with the block K stands for."""
    if a.shape[-1] == 0:
        return a.new_zeros(*torch.broadcast_shapes(K.shape[:-2], a.shape[:-1]), K.shape[-2])
    if isinstance(K, LazyEvaluatedKernelTensor) and _is_fusable(K):
        rows = Covariance(K.kernel).matvec(K.x1, K.x2, a.reshape(-1, a.shape[-1]))
        return rows.reshape(*a.shape[:-1], K.shape[-2])
    height = max(1, TILE.get(a.device.type, TILE["cpu"]) // K.shape[:-2].numel() // K.shape[-1])
    starts = range(0, K.shape[-2], height)
    if len(starts) == 1:
        return _dense_product(K, a)
    tiles = [
        checkpoint(
            lambda start: _dense_product(K[..., start : start + height, :], a), start,
            use_reentrant=False, preserve_rng_state=False,
        )
        for start in starts
    ]  # fmt: skip
    return torch.cat(tiles, dim=-1)


def _dense_product(K: LinearOperator | Tensor, a: Tensor) -> Tensor:
    return (to_dense(K) @ a.unsqueeze(-1)).squeeze(-1)


def _is_fusable(K: LazyEvaluatedKernelTensor) -> bool:
    return (
        K.x1.dim() == K.x2.dim() == 2
        and len(K.kernel.batch_shape) == 0
        and not K.params
        and not K.last_dim_is_batch
        and radial_terms(K.kernel) is not None
    )
