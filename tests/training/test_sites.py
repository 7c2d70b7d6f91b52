"""The residual process of near rows: its gradients, its objective, and when it is taken."""

import math

import pytest
import torch

from orthogp.likelihoods import Bernoulli, Gaussian, RobustMax, Softmax, as_likelihood
from orthogp.model import VariationalGP, build_basis
from orthogp.posterior.optimum import leave_one_out
from orthogp.training import Rows, TrainingConfig, fit, latents_at, sites
from orthogp.training.left_out import left_out_latents, left_out_moments
from orthogp.training.sites import learn_residual_process, site_gradients
from problems import default_sum

N, D = 600, 2


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(sites, "SCALE_STEPS", 20)
    monkeypatch.setattr(sites, "STEPS", 20)


def labels(frequency: float, weights: bool = False) -> Rows:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, D, generator=generator) * 4.0
    f = (frequency * x[:, 0]).sin() + (frequency * x[:, 1]).sin()
    y = (f + 0.1 * torch.randn(N, generator=generator) > 0).long()
    return Rows(x, y, torch.linspace(0.5, 1.5, N) if weights else None)


def untrained(rows: Rows, likelihood=None) -> VariationalGP:
    """A model that has learned nothing yet."""
    kernel, beta = default_sum(D), rows.x[:10]
    likelihood = Bernoulli() if likelihood is None else likelihood
    count = likelihood.num_latents
    basis = build_basis("orthogonal", kernel, beta, beta[:0], count, "natural", "unwhitened", 1e-4)
    return VariationalGP(kernel, likelihood, basis, jitter=1e-4)


def learned(rows: Rows, **settings):
    held = rows.map(lambda t: t[-150:])
    train = rows.map(lambda t: t[:-150])
    generator = torch.Generator().manual_seed(0)
    return learn_residual_process(
        untrained(rows), train, held, default_sum(D), generator, **settings
    )


@pytest.mark.parametrize("kind", ["bernoulli", "softmax", "robustmax", "student_t", "poisson"])
def test_gradients_are_those_of_the_expected_log_likelihood(kind):
    count = 3 if kind in ("softmax", "robustmax") else 1
    likelihood = {"softmax": Softmax, "robustmax": RobustMax}.get(kind)
    likelihood = as_likelihood(kind, 1) if likelihood is None else likelihood(count)
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(count, 9, generator=generator).double()
    variance = torch.rand(count, 9, generator=generator).double() + 0.1
    y = torch.arange(9) % max(2, count)
    y = y.double() if kind in ("student_t", "poisson") else y
    weight = torch.linspace(0.5, 2.0, 9).double()
    found = site_gradients(likelihood, Rows(torch.zeros(9, D), y, weight), mean, variance)
    for c in range(count):
        step = torch.zeros_like(mean)
        step[c] = 1e-5
        above, below = (
            likelihood.expected_log_prob(y, mean + sign * step, variance) for sign in (1, -1)
        )
        torch.testing.assert_close(found[c], weight * (above - below) / 2e-5, atol=1e-5, rtol=1e-4)


def test_gradients_for_gaussian_noise_are_scaled_residuals():
    rows = Rows(torch.zeros(4, D), torch.arange(4.0).double())
    likelihood = Gaussian().double()
    mean = torch.full((1, 4), 0.5).double()
    found = site_gradients(likelihood, rows, mean, torch.ones_like(mean))
    torch.testing.assert_close(found[0], (rows.y - 0.5) / likelihood.likelihood.noise.detach())


def test_near_rows_are_taken_where_the_function_is_rough():
    rows = labels(frequency=3.0)
    process = learned(rows)
    assert process is not None
    model = untrained(rows)
    new = labels(3.0).map(lambda t: t[-150:])
    before, variance = model.predict(new.x)
    model.near = process.site_rows(model, rows.map(lambda t: t[:-150]), 32)
    after, _ = model.predict(new.x)
    density = model.likelihood.log_density
    gain = density(new.y, after, variance) - density(new.y, before, variance)
    assert gain.mean() > 0.1


def test_near_rows_are_not_taken_where_there_is_nothing_to_learn():
    rows = labels(frequency=3.0)
    noise = torch.randint(2, (N,), generator=torch.Generator().manual_seed(3))
    assert learned(Rows(rows.x, noise)) is None


def test_weights_count_and_kernels_can_stay():
    rows = labels(frequency=1.0, weights=True)
    process = learned(rows, train_kernel=False)
    assert process is not None
    for found, given in zip(process.kernel.parameters(), default_sum(D).parameters(), strict=True):
        torch.testing.assert_close(found, given)


def test_no_step_begins_after_the_deadline(monkeypatch):
    def forbidden(*arguments):
        raise AssertionError("a step was taken")

    monkeypatch.setattr(sites._Search, "densities", forbidden)
    rows = labels(1.0)
    model, empty = untrained(rows), torch.zeros(1, N).double()
    held, generator = torch.arange(500, N), torch.Generator()
    known = sites._Sites(model.likelihood, rows, empty, empty, empty)
    search = sites._Search(known, held, generator, deadline=-math.inf)
    candidate = search.candidate(model.covariance.kernel)
    search.climb(candidate, candidate.parameters(), 10, 0.1)


def test_a_row_is_predicted_from_the_others():
    """The correction of a row does not depend on its own gradient."""
    rows = labels(2.0)
    model, generator = untrained(rows), torch.Generator().manual_seed(0)
    mean = torch.zeros(1, N).double()
    gradient = torch.randn(1, N, generator=generator).double()
    held = torch.arange(500, N)

    def densities(gradient):
        known = sites._Sites(model.likelihood, rows, mean, mean + 1.0, gradient)
        search = sites._Search(known, held, torch.Generator().manual_seed(0), math.inf)
        return search.judge(search.candidate(model.covariance.kernel))[:100], search

    before, search = densities(gradient)
    changed = gradient.clone()
    changed[0, 500] += 10.0
    after, _ = densities(changed)
    # The first of the held-out rows is row 500; some of the others are near it.
    assert before[0] == after[0]
    assert (before[1:] != after[1:]).any()
    candidate = search.candidate(model.covariance.kernel)
    near = search._others_near(candidate, held[:1]).near
    noise = candidate.logs[0].exp().view(1, 1)
    correction, _ = left_out_moments(
        candidate.covariance, search.x[held[:1]], noise, search.x[near], gradient[:, near],
        noise.unsqueeze(-1).expand(1, *near.shape),
    )  # fmt: skip
    f = candidate.logs[1].exp() * correction
    expected = model.likelihood.log_density(rows.y[held[:1]], f, torch.ones_like(f))
    torch.testing.assert_close(before[:1], expected.detach())


def test_copies_of_a_row_correct_it_by_the_mean_of_their_gradients():
    """Those of a row with more copies than are near are not the first of them."""
    rows = labels(2.0)
    rows = Rows(rows.x[torch.arange(N) % 6], rows.y)
    model, generator = untrained(rows), torch.Generator().manual_seed(0)
    mean = torch.zeros(1, N).double()
    gradient = torch.randn(1, N, generator=generator).double()
    known = sites._Sites(model.likelihood, rows, mean, mean + 1.0, gradient)
    search = sites._Search(known, torch.arange(500, N), generator, math.inf)
    others = search._others_near(search.candidate(model.covariance.kernel), torch.arange(12))
    for row, near in enumerate(others.near.tolist()):
        given = others.rows[torch.tensor(near)]
        for place, x in enumerate(given.x):
            alike = (search.x == x).all(1)
            alike[row] = False
            assert given.noise[0, place].item() == pytest.approx(1.0 / int(alike.sum()))
            expected = gradient[0, alike].mean().item()
            assert given.y[0, place].item() == pytest.approx(expected)


def test_rows_trained_on_count_as_held_out_ones():
    rows = labels(2.0)
    likelihood, variance = Bernoulli(), torch.ones(1, N).double()
    held = torch.arange(400, N)
    sign = (2.0 * rows.y - 1.0).double().unsqueeze(0)
    # Rows trained on are well predicted, the others are not.
    mean = torch.where(torch.arange(N) < 400, 0.8 * sign, 0.5 * sign)
    known = sites._Sites.of(likelihood, rows, mean, variance)
    found = sites._as_held_out(known, held, torch.Generator().manual_seed(0)).mean
    density = likelihood.log_density(rows.y, found, variance)
    assert torch.equal(found[:, 400:], mean[:, 400:])
    assert density[:400].mean().item() == pytest.approx(density[400:].mean().item(), abs=1e-3)
    # Those that are no better predicted stay as they are.
    known = sites._Sites.of(likelihood, rows, 0.1 * sign, variance)
    assert torch.equal(sites._as_held_out(known, held, torch.Generator()).mean, 0.1 * sign)


def test_rows_trained_on_are_no_likelier_than_without_their_own_sites():
    """Where those held out may be lucky; where they cannot be, training has not ended."""
    rows = labels(1.0).map(lambda t: t[:120])
    train = rows.map(lambda t: t[:100])
    model = trained(train, Bernoulli(), rows.x[:40], rows.x[:0])
    mean, variance = latents_at(model, rows.x)
    sign = 2.0 * rows.y[100:] - 1.0
    alone = model.likelihood.log_density(train.y, *left_out_latents(model, train)).mean().item()

    def shifted(held_out, *given):
        """How likely rows trained on are, with these latents of the rows held out."""
        latents = torch.cat([mean[:, :100], held_out.unsqueeze(0)], dim=1)
        known = sites._Sites.of(model.likelihood, rows, latents, variance)
        found = sites._as_held_out(known, torch.arange(100, 120), torch.Generator(), *given)
        return model.likelihood.log_density(train.y, found.mean[:, :100], variance[:, :100])

    as_trained = model.likelihood.log_density(train.y, mean[:, :100], variance[:, :100])
    lucky = 5.0 * sign
    lucky[0] = -sign[0]
    assert shifted(lucky, model).mean().item() == pytest.approx(alone, abs=1e-3)
    assert torch.equal(shifted(lucky), as_trained)
    assert torch.equal(shifted(5.0 * sign, model), as_trained)


def trained(rows: Rows, likelihood, beta, gamma) -> VariationalGP:
    """q at the optimum of the bound, at these points."""
    kernel, count = default_sum(D).double(), likelihood.num_latents
    basis = build_basis(
        "orthogonal", kernel, beta.double(), gamma.double(), count, "natural", "unwhitened", 1e-8
    )
    model = VariationalGP(kernel, likelihood, basis, jitter=1e-8).double()
    rule = {"residual_rule": "exact", "residual_step": 0.5} if len(gamma) else {}
    config = TrainingConfig(
        max_steps=60, batch_size=len(rows), natural_step=0.5, natural_warmup=0, schedule="constant",
        schedule_warmup=0, train_hyperparameters=False, train_points=False, **rule,
    )  # fmt: skip
    fit(model, rows, config)
    return model


def test_without_its_site_a_row_is_predicted_as_by_the_exact_process_of_the_others():
    x = labels(1.0).x[:40].double()
    rows = Rows(x, x.sin().sum(1))
    model = trained(rows, Gaussian().double(), x, x[:0])
    noise = model.likelihood.likelihood.noise.detach().expand(1, 40)
    mean, variance = leave_one_out(model.covariance, x, rows.y.unsqueeze(0), noise)
    found = left_out_latents(model, rows)
    torch.testing.assert_close(found[0], mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[1], variance, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [40, 20], ids=["all rows are beta", "half are gamma"])
def test_without_its_site_a_row_is_predicted_as_by_a_fit_to_the_others(count):
    """To first order in what it changes of the sites of the others; a row that is a γ is moved
    further, as if no other γ were near it."""
    rows = labels(1.0).map(lambda t: t[:40])
    beta, gamma = rows.x[:count], rows.x[count:]
    model = trained(rows, Bernoulli(), beta, gamma)
    mean, variance = left_out_latents(model, rows)
    with_it, _ = model.predict(rows.x.double())
    for i in (0, 7, 25, 38):
        others = rows.map(lambda t, i=i: torch.cat([t[:i], t[i + 1 :]]))
        alone = trained(others, Bernoulli(), beta, gamma)
        exact, spread = (t[0, i] for t in alone.predict(rows.x.double()))
        share = (with_it[0, i] - mean[0, i]) / (with_it[0, i] - exact)
        assert 0.9 < share < (1.15 if i < count else 2.0)
        torch.testing.assert_close(variance[0, i], spread, rtol=0.05, atol=0.0)
