"""The strategy for GPyTorch models: the paper's mean and KL, batches, wrappers, evaluation."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, ScaleKernel
from gpytorch.means import LinearMean, ZeroMean
from gpytorch.variational import (
    BatchDecoupledVariationalStrategy,
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    LMCVariationalStrategy,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)

import orthogp.strategy
import reference
from orthogp.errors import ConfigurationError
from orthogp.kernel.covariance import Covariance
from orthogp.posterior.optimum import exact_regression
from orthogp.strategy import OrthogonalVariationalStrategy, factor_of_base
from problems import default_sum, make_model, problem, reference_terms, to_numpy
from strategies import (
    JITTER,
    NOISE,
    TOY_NOISE,
    Model,
    bound,
    gaussian,
    gpytorchs,
    orthogonal,
    randomise,
    seeded,
    toy,
)


def reference_posterior(model, p):
    """The model's q in NumPy; the prior mean is left out."""
    base = model.variational_strategy.base_variational_strategy
    beta, gamma = to_numpy(p.beta), to_numpy(p.gamma)
    terms = reference_terms(p.kernel)
    K_b = reference.kernel_block(terms, beta, beta) + JITTER * np.eye(len(beta))
    q = base.variational_distribution
    mean, S = to_numpy(q.mean), to_numpy(q.covariance_matrix)
    if isinstance(base, VariationalStrategy):
        L = np.linalg.cholesky(K_b)
        mean, S = L @ mean, L @ S @ L.T
    else:
        mean = mean - to_numpy(model.mean_module(p.beta))
    a_beta, a_gamma = reference.orthogonal_weights(
        K_b,
        reference.kernel_block(terms, beta, gamma),
        np.linalg.solve(K_b, mean),
        to_numpy(model.variational_strategy.variational_distribution.mean),
    )
    return reference.Posterior(terms, beta, gamma, a_beta, a_gamma, S, JITTER)


@pytest.mark.parametrize("base", [VariationalStrategy, UnwhitenedVariationalStrategy])
@pytest.mark.parametrize("training", [True, False])
def test_eq_12_mean_covariance_and_kl_match_the_reference(base, training):
    p = problem()
    mean = LinearMean(2)
    model = Model(p.kernel, orthogonal(p.beta, p.gamma, base=base), mean).double()
    randomise(model).train(training)
    q, kl = model(p.x), model.variational_strategy.kl_divergence()
    want = reference_posterior(model, p)
    np.testing.assert_allclose(
        to_numpy(q.mean - mean(p.x)), want.mean(to_numpy(p.x)), rtol=1e-9, atol=1e-9
    )
    # The whitened strategy adds its jitter to the variance of every row.
    added = JITTER if base is VariationalStrategy else 0.0
    variance = np.diag(want.covariance(to_numpy(p.x))) + added
    np.testing.assert_allclose(to_numpy(q.variance), variance, rtol=1e-9, atol=1e-9)
    # In evaluation the unwhitened strategy takes its KL with a jitter of 1e-3, not its own.
    if training or base is VariationalStrategy:
        assert kl.item() == pytest.approx(want.kl(), rel=1e-9)


def test_the_kl_needs_no_prediction_before_it():
    p = problem()
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma), ZeroMean()).double())
    kl = model.variational_strategy.kl_divergence()
    assert kl.item() == pytest.approx(reference_posterior(model, p).kl(), rel=1e-9)


def test_the_residual_vanishes_on_beta():
    p = problem()
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma)).double()).eval()
    base = model.variational_strategy.base_variational_strategy
    shift = model(p.beta).mean - base(p.beta).mean
    elsewhere = model(p.x).mean - base(p.x).mean
    assert shift.abs().max() < 10 * JITTER * elsewhere.abs().max()


def test_bound_and_gradients_are_those_of_the_orthogonal_basis():
    p = problem()
    jitter = 1e-9
    ours = make_model("orthogonal", p, noise=NOISE, jitter=jitter)
    epsilon = jitter * p.covariance.diagonal(p.beta).mean().item()
    model = Model(copy.deepcopy(p.kernel), orthogonal(p.beta, p.gamma)).double()
    model.mean_module.constant.requires_grad_(False)
    strategy = randomise(model).variational_strategy
    base = strategy.base_variational_strategy
    base.jitter_val = epsilon
    basis = ours.basis
    with torch.no_grad():
        strategy._variational_distribution.variational_mean.copy_(basis.a_gamma[0])
        base._variational_distribution.variational_mean.copy_(basis.q.mean[0])
        base._variational_distribution.chol_variational_covar.copy_(basis.q.covariance.F[0].tril())
    theirs, value = bound(model, gaussian(), p.x, p.y), ours.bound(p.x, p.y).value
    assert theirs.item() == pytest.approx(value.item(), rel=1e-8)
    pairs = {
        strategy.inducing_points: basis.gamma,
        base.inducing_points: basis.beta,
        strategy._variational_distribution.variational_mean: basis.a_gamma,
        base._variational_distribution.variational_mean: basis.q.mean,
    }
    pairs |= dict(zip(model.covar_module.parameters(), p.kernel.parameters(), strict=True))
    grads = torch.autograd.grad(theirs, list(pairs))
    wants = torch.autograd.grad(value, list(pairs.values()))
    for grad, want in zip(grads, wants, strict=True):
        torch.testing.assert_close(grad, want.reshape(grad.shape), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [default_sum(2), ScaleKernel(PeriodicKernel())])
def test_gradients_are_the_slopes_of_the_bound(kernel):
    p = problem(n=5, b=3, g=4)
    model = randomise(Model(kernel, orthogonal(p.beta, p.gamma)).double())
    strategy = model.variational_strategy
    weights = strategy._variational_distribution.variational_mean
    rng = torch.Generator().manual_seed(2)
    for t in (
        strategy.inducing_points,
        strategy.base_variational_strategy.inducing_points,
        weights,
    ):
        (grad,) = torch.autograd.grad(bound(model, gaussian(), p.x, p.y), t)
        direction = torch.randn(t.shape, generator=rng, dtype=t.dtype)
        with torch.no_grad():
            ends = []
            for step in (1e-5, -2e-5):
                t += step * direction
                ends.append(bound(model, gaussian(), p.x, p.y))
            t += 1e-5 * direction
        slope = (ends[0] - ends[1]) / 2e-5
        torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-5, atol=1e-6)


def test_the_bound_stays_below_the_evidence_where_gpytorchs_does_not(record_property):
    kernel, x, y, beta, gamma = (t.double() for t in toy())
    kernel.requires_grad_(False)
    likelihood = gaussian(TOY_NOISE).requires_grad_(False)
    evidence = exact_regression(Covariance(kernel), x, y, TOY_NOISE, x[:1]).log_evidence.item()
    reached = []
    for strategy in (gpytorchs(beta, gamma), orthogonal(beta, gamma)):
        model = seeded(lambda s=strategy: Model(kernel, s, ZeroMean()).double(), x)
        trained = [t for n, t in model.named_parameters() if "inducing_points" not in n]
        optimizer = torch.optim.Adam([t for t in trained if t.requires_grad], lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            loss = -bound(model, likelihood, x, y)
            loss.backward()
            optimizer.step()
        reached.append(-loss.item())
    record_property(
        "figure",
        f"log evidence {evidence:.2f}, GPyTorch's strategy {reached[0]:.2f}, ours {reached[1]:.2f}",
    )
    assert reached[0] > evidence + 0.3
    assert evidence - 1 < reached[1] < evidence


def test_without_gamma_it_is_the_base():
    p = problem(g=0)
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma)).double())
    strategy = model.variational_strategy
    base = strategy.base_variational_strategy
    torch.testing.assert_close(model(p.x).mean, base(p.x).mean, rtol=0, atol=0)
    assert strategy.kl_divergence() == base.kl_divergence()
    bound(model, gaussian(), p.x, p.y).backward()


def test_the_mean_over_all_columns_is_the_exact_kl(monkeypatch):
    p = problem(g=7)
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma, kl_columns=1)).double())
    strategy = model.variational_strategy
    exact = strategy.eval().kl_divergence()
    strategy.train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert len({strategy.kl_divergence().item() for _ in range(20)}) > 1
    draws = []
    for first in range(7):
        order = torch.arange(7).roll(-first)
        monkeypatch.setattr(torch, "randperm", lambda n, device, order=order: order)
        draws.append(strategy.kl_divergence())
    torch.testing.assert_close(torch.stack(draws).mean(), exact)


def test_other_kernels_are_evaluated_in_tiles(monkeypatch):
    """With tiles of 64 elements no block of γ is larger; values and gradients are the same."""
    p = problem(n=9, b=4, g=12)
    kernel = ScaleKernel(PeriodicKernel())
    model = randomise(Model(kernel, orthogonal(p.beta, p.gamma)).double())
    whole = bound(model, gaussian(), p.x, p.y)
    wants = torch.autograd.grad(whole, list(model.parameters()))
    largest = []
    forward = PeriodicKernel.forward

    def watched(self, x1, x2, diag=False, **params):
        if not diag and x2.shape[-2] == 12:
            largest.append(x1.shape[-2] * x2.shape[-2])
        return forward(self, x1, x2, diag=diag, **params)

    monkeypatch.setattr(PeriodicKernel, "forward", watched)
    monkeypatch.setattr(orthogp.strategy, "TILE", {"cpu": 64})
    tiled = bound(model, gaussian(), p.x, p.y)
    grads = torch.autograd.grad(tiled, list(model.parameters()))
    assert largest
    assert max(largest) <= 64
    torch.testing.assert_close(tiled, whole)
    for grad, want in zip(grads, wants, strict=True):
        torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("shared", [True, False])
def test_a_batch_is_a_loop_over_its_members(shared):
    rng = torch.Generator().manual_seed(3)
    beta, gamma, x = (
        torch.randn(3, rows, 2, generator=rng, dtype=torch.float64) for rows in (4, 5, 9)
    )
    lengthscales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)[:, None, None]

    def matern(lengthscale):
        kernel = MaternKernel(2.5, batch_shape=lengthscale.shape[:-2]).double()
        kernel.lengthscale = lengthscale
        return kernel

    kernel = matern(lengthscales[0] if shared else lengthscales)
    model = randomise(Model(kernel, orthogonal(beta, gamma, batch=(3,))).double())
    q, kl = model(x), model.variational_strategy.kl_divergence()
    parameters = dict(model.named_parameters())
    for i in range(3):
        member = matern(lengthscales[0 if shared else i])
        alone = randomise(Model(member, orthogonal(beta[i], gamma[i])).double())
        with torch.no_grad():
            for name, t in alone.variational_strategy.named_parameters():
                t.copy_(parameters[f"variational_strategy.{name}"][i])
        want = alone(x[i])
        torch.testing.assert_close(q.mean[i], want.mean)
        torch.testing.assert_close(q.variance[i], want.variance)
        torch.testing.assert_close(kl[i], alone.variational_strategy.kl_divergence())


@pytest.mark.parametrize("wrapper", [
    lambda s: IndependentMultitaskVariationalStrategy(s, num_tasks=3),
    lambda s: LMCVariationalStrategy(s, num_tasks=2, num_latents=3),
])  # fmt: skip
def test_wrappers_take_the_kl_of_every_latent(wrapper):
    p = problem()
    inner = orthogonal(p.beta, p.gamma, batch=(3,))
    model = randomise(Model(p.kernel, lambda m: wrapper(inner(m))).double())
    model(p.x)
    strategy = model.variational_strategy
    each = strategy.base_variational_strategy.kl_divergence()
    assert each.shape == (3,)
    torch.testing.assert_close(strategy.kl_divergence(), each.sum())


def test_functions_may_share_q_of_beta_and_differ_in_a_gamma():
    p = problem()

    def strategy(model):
        held = VariationalStrategy(model, p.beta, CholeskyVariationalDistribution(4))
        weights = DeltaVariationalDistribution(5, batch_shape=torch.Size([2]))
        return IndependentMultitaskVariationalStrategy(
            OrthogonalVariationalStrategy(held, p.gamma, weights), num_tasks=2
        )

    model = randomise(Model(p.kernel, strategy).double())
    q = model(p.x)
    assert q.mean.shape == (9, 2)
    assert q.covariance_matrix.shape == (18, 18)
    assert not torch.allclose(q.mean[:, 0], q.mean[:, 1])
    torch.testing.assert_close(q.variance[:, 0], q.variance[:, 1])


def test_the_prior_is_the_models():
    p = problem()
    model = Model(p.kernel, orthogonal(p.beta, p.gamma)).double()
    prior = model(p.x, prior=True)
    torch.testing.assert_close(prior.covariance_matrix, p.covariance.block(p.x, p.x))


def test_a_state_dict_round_trip_and_one_of_gpytorch():
    p = problem()
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma)).double()).eval()
    want = model(p.x)
    other = Model(default_sum(2), orthogonal(0 * p.beta, 0 * p.gamma)).double().eval()
    other(p.x)
    other.load_state_dict(model.state_dict())
    got = other(p.x)
    assert torch.equal(got.mean, want.mean)
    assert torch.equal(got.variance, want.variance)
    theirs = Model(p.kernel, gpytorchs(p.beta, p.gamma))
    assert theirs.state_dict().keys() == model.state_dict().keys()


def test_evaluation_sees_the_last_step():
    p = problem()
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    (-bound(model, gaussian(), p.x, p.y)).backward()
    optimizer.step()
    other = Model(default_sum(2), orthogonal(p.beta, p.gamma)).double()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(p.x).mean, other.eval()(p.x).mean, rtol=0, atol=0)


def test_gamma_is_learned_or_frozen():
    p = problem()
    for learn in (True, False):
        strategy = orthogonal(p.beta, p.gamma, learn_inducing_locations=learn)
        model = randomise(Model(p.kernel, strategy).double())
        names = {name for name, _ in model.named_parameters()}
        assert ("variational_strategy.inducing_points" in names) is learn
        assert "variational_strategy.inducing_points" in model.state_dict()


@pytest.mark.cuda
def test_a_gpu_gives_the_bound_of_the_cpu():
    p = problem()
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma)).double())
    want = bound(model, gaussian(), p.x, p.y)
    got = bound(model.cuda(), gaussian().cuda(), p.x.cuda(), p.y.cuda())
    torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-9)


def test_float32_agrees_with_float64():
    p = problem(b=20, g=30, n=40)
    model = randomise(Model(p.kernel, orthogonal(p.beta, p.gamma)).double())
    wide, wide_kl = model(p.x), model.variational_strategy.kl_divergence()
    model.float()
    narrow, narrow_kl = model(p.x.float()), model.variational_strategy.kl_divergence()
    assert narrow.mean.dtype == torch.float32
    torch.testing.assert_close(narrow.mean.double(), wide.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(narrow_kl.double(), wide_kl, rtol=1e-3, atol=1e-3)


def test_refusals_are_one_sentence():
    p = problem()
    with pytest.raises(ConfigurationError, match="DeltaVariationalDistribution"):
        Model(p.kernel, lambda m: OrthogonalVariationalStrategy(
            VariationalStrategy(m, p.beta, CholeskyVariationalDistribution(4)), p.gamma,
            CholeskyVariationalDistribution(5)))  # fmt: skip
    with pytest.raises(ConfigurationError, match="BatchDecoupledVariationalStrategy"):
        Model(p.kernel, orthogonal(p.beta, p.gamma, base=BatchDecoupledVariationalStrategy))
    with pytest.raises(ConfigurationError, match="kl_columns is 0"):
        Model(p.kernel, orthogonal(p.beta, p.gamma, kl_columns=0))


def test_the_examples_in_the_documentation_run():
    page = Path(__file__).parent.parent / "docs" / "gpytorch.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    example, optimizers, fantasies = blocks
    assert "range(300)" in example
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(example.replace("range(300)", "range(3)"), names)
        exec(optimizers, names)
        moved = [p for o in ("ngd", "adam") for p in names[o].param_groups[0]["params"]]
        assert len(moved) == len(list(names["model"].parameters()))
        exec(fantasies, names)
    assert names["mean"].shape == (8, 10)
    assert names["prediction"].mean.shape == (10,)


def test_a_base_without_its_private_factor_costs_a_factorisation():
    K = torch.eye(3).double() + 0.5
    torch.testing.assert_close(factor_of_base(object(), K), torch.linalg.cholesky(K))
