"""Runs that train: both optimizers in one step, every basis, every rule, the same seed twice."""

import copy

import pytest
import torch

from orthogp.errors import ConfigurationError
from orthogp.likelihoods import Bernoulli, Gaussian
from orthogp.linalg import factorise_robustly
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.posterior import NaturalGaussian, Orthogonal
from orthogp.posterior.residual import projected_covariance, projected_diagonal
from orthogp.training import Rows, TrainingConfig, fit, full_bound
from orthogp.training.step import Step
from runs import contents, data, finite, model, same, settings, single_step

METHODS = [
    ("coupled", "natural"), ("coupled", "adam"), ("orthogonal", "natural"),
    ("orthogonal", "adam"), ("hybrid", "adam"), ("decoupled", "adam"),
]  # fmt: skip


@pytest.mark.parametrize(("basis", "optimizer"), METHODS)
def test_every_method_raises_the_bound(basis, optimizer):
    rows = data()
    m = model(rows, basis, optimizer)
    before, start = full_bound(m, rows), contents(m)
    result = fit(m, rows, settings(max_steps=25))
    assert result.reason == "steps"
    assert result.steps == 25
    assert [row.step for row in result.history] == [5, 10, 15, 20, 25]
    assert full_bound(m, rows) > before + 20.0
    # q(f_β), hyperparameters and points all move.
    after = contents(m)
    moved = {name for name in after if not torch.equal(after[name], start[name])}
    assert moved == {name for name in after if after[name].numel()}
    assert all(p.grad is None for p in m.parameters())


def test_many_residual_points_end_no_lower_than_few():
    """Neighbours move the function together: steps that did not shrink would overshoot."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(6000, 2, generator=rng)
    noise = 0.1 * torch.randn(6000, generator=rng)
    rows = Rows(x, torch.sin(20 * x[:, 0]) + torch.cos(15 * x[:, 1]) + noise)
    bounds = []
    for count in (700, 5900):
        kernel = default_kernel(2)
        for part, lengthscale in zip(kernel.kernels, (0.3, 0.2), strict=True):
            part.base_kernel.lengthscale = lengthscale
        basis = build_basis("orthogonal", kernel, x[:10], x[10 : 10 + count])
        m = VariationalGP(kernel, Gaussian(1), basis)
        config = TrainingConfig(max_steps=60, batch_size=256, schedule_warmup=10, adam_beta2=0.9)
        fit(m, rows, config)
        bounds.append(full_bound(m, rows) / len(rows))
    assert bounds[1] > bounds[0]


def test_natural_steps_move_q_and_adam_never_touches_it():
    """With every other parameter frozen, a natural step of one reaches the exact posterior."""
    rows = data(dtype=torch.float64)
    m = model(rows, "coupled")
    config = settings(
        max_steps=1, batch_size=200, natural_step=1.0, train_points=False,
        train_hyperparameters=False,
    )  # fmt: skip
    fit(m, rows, config)
    once = contents(m)
    assert isinstance(m.basis.get_submodule("q"), NaturalGaussian)
    m.zero_grad()
    bound = m.bound(rows.x, rows.y)
    # At the optimum the gradients of v and of S̃ vanish: ∂ℒ/∂S̃ = ½ Λ̃ once log|S̃| is apart.
    grad_v, grad_S = torch.autograd.grad(-bound.value, [bound.q.v, bound.q.S])
    torch.testing.assert_close(grad_v, torch.zeros_like(grad_v), rtol=0, atol=1e-6)
    torch.testing.assert_close(2.0 * grad_S, once["q.precision"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["natural", "adam"])
def test_what_is_frozen_stays(optimizer):
    rows = data()
    for option, names in (
        ("train_points", {"basis.beta", "basis.gamma"}),
        ("train_hyperparameters", None),
    ):
        m = model(rows, optimizer=optimizer)
        hyper = {n for n, _ in m.named_parameters() if not n.startswith("basis.")}
        start = contents(m)
        fit(m, rows, settings(**{option: False}))
        after = contents(m)
        still = {name for name in after if torch.equal(after[name], start[name])}
        assert still == (hyper if names is None else names)


def test_the_natural_step_warms_up_for_a_likelihood_that_is_not_gaussian():
    rows = data()
    labels = Rows(rows.x, (rows.y > 0).long())
    m = model(labels, likelihood=Bernoulli(1))
    result = fit(m, labels, settings(natural_step=0.2, natural_warmup=10))
    assert [row.natural_step for row in result.history] == pytest.approx([0.1, 0.2, 0.2, 0.2])
    result = fit(model(rows), rows, settings(natural_step=0.2, natural_warmup=10))
    assert [row.natural_step for row in result.history] == pytest.approx([0.2] * 4)


def test_the_rates_in_the_history_are_those_of_the_schedule():
    rows = data()
    config = settings(schedule="cosine", schedule_warmup=8, learning_rate=0.02)
    result = fit(model(rows), rows, config)
    expected = [config.learning_rate_at(k - 1, (k - 1) / 20) for k in (5, 10, 15, 20)]
    assert [row.learning_rate for row in result.history] == pytest.approx(expected)


def test_clipping_bounds_the_gradient_that_adam_sees():
    rows, clip = data(), 1e-3
    norms = {}
    for limit in (None, clip, 1e9):
        step = single_step(model(rows), rows, settings(clip_norm=limit, kl_columns=None))
        step()
        tensors = step.tensors()
        moments = [tensors[f"adam.{k}.exp_avg"] for k in range(len(step.parameters))]
        # After one step the first moment is a tenth of the gradient.
        norms[limit] = 10.0 * float(torch.cat([t.flatten() for t in moments]).norm())
    assert norms[None] > 2 * clip * len(rows)
    # The limit is a row's share, so that it means the same for any number of rows.
    assert norms[clip] == pytest.approx(clip * len(rows), rel=1e-4)
    assert norms[1e9] == norms[None]


@pytest.mark.parametrize("rule", ["diagonal", "exact"])
def test_the_residual_rules_take_the_steps_they_promise(rule):
    rows = data(dtype=torch.float64)
    m = model(rows, basis="orthogonal")
    config = settings(residual_rule=rule, residual_step=1e-3)
    step = single_step(m, rows, config)
    assert isinstance(m.basis, Orthogonal)
    before = copy.deepcopy(m)
    (grad,) = torch.autograd.grad(-before.bound(rows.x, rows.y).value, [before.basis.a_gamma])
    beta, gamma = before.basis.beta.detach(), before.basis.gamma.detach()
    with torch.no_grad():
        factor = before.basis.factor(before.covariance, before.jitter, robust=True)
        if rule == "diagonal":
            D = projected_diagonal(before.covariance, beta, gamma, factor.R)
            floor = config.residual_floor * before.covariance.diagonal(beta).mean()
            expected = -1e-3 * grad / (D + floor)
        else:
            K = projected_covariance(before.covariance, beta, gamma, factor.R)
            expected = -1e-3 * torch.linalg.solve(factorise_robustly(K, m.jitter).K, grad.mT).mT
    step()
    torch.testing.assert_close(m.basis.a_gamma.detach(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", ["diagonal", "exact"])
def test_the_residual_rules_train(rule):
    rows = data()
    m, still = model(rows), model(rows)
    fit(m, rows, settings(residual_rule=rule, residual_step=1e-3))
    fit(still, rows, settings(residual_rule=rule, residual_step=1e-12))
    assert full_bound(m, rows) > full_bound(still, rows) + 1.0


def test_a_rule_without_residual_points_is_refused():
    rows = data()
    for basis, optimizer in (("coupled", "natural"), ("hybrid", "adam")):
        with pytest.raises(ConfigurationError, match="only the orthogonal"):
            fit(model(rows, basis, optimizer), rows, settings(residual_rule="diagonal"))


@pytest.mark.parametrize(
    ("dtype", "basis", "optimizer"),
    [
        (torch.float32, "orthogonal", "natural"),
        (torch.float64, "orthogonal", "natural"),
        (torch.float32, "hybrid", "adam"),
    ],
)
def test_the_same_seed_gives_the_same_run_bit_for_bit(dtype, basis, optimizer):
    rows, ends = data(dtype=dtype), []
    for seed in (0, 0, 1):
        m = model(rows, basis, optimizer)
        fit(m, rows, settings(seed=seed))
        ends.append(contents(m))
        assert m.basis.beta.dtype == dtype
    assert same(ends[0], ends[1])
    assert not torch.equal(ends[0]["basis.beta"], ends[2]["basis.beta"])


def test_the_run_leaves_the_global_generator_alone_and_does_not_read_it():
    rows, ends = data(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        m = model(rows)
        fit(m, rows, settings())
        assert torch.equal(torch.get_rng_state(), state)
        ends.append(contents(m))
    assert same(*ends)


def test_the_columns_do_not_change_which_rows_are_drawn(monkeypatch):
    rows, seen = data(), {}
    for columns in (None, 3, 6):
        drawn = seen.setdefault(columns, [])
        run = Step._run
        with monkeypatch.context() as patch:
            patch.setattr(
                Step, "_run", lambda s, d=drawn, r=run: (d.append(s.batch[1].clone()), r(s))
            )
            fit(model(rows), rows, settings(kl_columns=columns))
    for columns in (3, 6):
        assert all(torch.equal(a, b) for a, b in zip(seen[columns], seen[None], strict=True))


@pytest.mark.parametrize("hold_fixed", ["whitened", "unwhitened", "dual"])
def test_every_choice_of_what_stands_still_trains(hold_fixed):
    rows = data()
    m = model(rows, hold_fixed=hold_fixed)
    before = full_bound(m, rows)
    assert fit(m, rows, settings()).recoveries == 0
    assert full_bound(m, rows) > before + 20.0


def test_plain_defaults_train():
    rows = data(n=600)
    m = model(rows)
    before = full_bound(m, rows)
    fit(m, rows, TrainingConfig(max_steps=50))
    assert finite(m)
    assert full_bound(m, rows) > before + 100.0
