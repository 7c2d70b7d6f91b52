"""Hyperparameters that predict: left-out rows, the evidence, their gradients, and what is taken."""

import json
import math

import pytest
import torch
from gpytorch.priors import LogNormalPrior

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.posterior.optimum import leave_one_out
from orthogp.training import Rows, objectives, predictive
from orthogp.training.evidence import log_evidence
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.left_out import left_out_moments, log_normal
from orthogp.training.predictive import learn_to_predict
from problems import default_sum

D = 2


@pytest.fixture
def hyperparameters() -> Hyperparameters:
    return Hyperparameters(Covariance(default_sum(D, ard=True)), Gaussian())


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in (("EVIDENCE_STEPS", 30), ("PATCH_STEPS", 10), ("LEAVE_ONE_OUT_STEPS", 10)):
        monkeypatch.setattr(predictive, name, value)
    monkeypatch.setattr(objectives, "BLOCK_ROWS", {"cpu": 60})


@pytest.fixture(params=["exact", "large"])
def size(request, monkeypatch) -> str:
    """Of a table: one that the exact evidence is for, or one that counts as large."""
    if request.param == "large":
        monkeypatch.setattr(objectives, "MOST_EXACT", {"cpu": 0})
    return request.param


def table(n: int = 200, weights: bool = False) -> Rows:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, D, generator=generator)
    y = (3.0 * x[:, 0]).sin() + 0.1 * torch.randn(n, generator=generator)
    return Rows(x, y, torch.linspace(0.5, 1.5, n) if weights else None)


@pytest.mark.parametrize("shared", [True, False])
def test_the_density_and_its_gradient_are_those_through_the_factor(shared):
    covariance = Covariance(default_sum(D, ard=True).double())
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).double()

    m, k = 5, 4
    x, y, near, y_near = draw(m, D), draw(2, m), draw(m, k, D), draw(2, m, k)
    noise = torch.tensor([[0.1]] if shared else [[0.1], [0.3]]).double().requires_grad_()
    noise_near = noise.unsqueeze(-1) * torch.rand(m, k, generator=generator).double()
    sources = [*covariance.parameters(), noise]
    mean, variance = left_out_moments(covariance, x, noise, near, y_near, noise_near)
    ours = log_normal(y - mean, variance)
    plain = []
    for c in range(2):
        s = 0 if shared else c
        for i in range(m):
            A = covariance.block(near[i], near[i]) + noise_near[s, i].diag()
            q = covariance.block(near[i], x[i : i + 1])
            weights = torch.linalg.solve(A, q)[:, 0]
            mean = weights @ y_near[c, i]
            variance = covariance.diagonal(x[i : i + 1])[0] - weights @ q[:, 0] + noise[s, 0]
            plain.append(-0.5 * ((y[c, i] - mean) ** 2 / variance + (2 * math.pi * variance).log()))
    expected = torch.stack(plain).reshape(2, m)
    torch.testing.assert_close(ours, expected)
    weight = draw(2, m)
    for one, other in zip(
        torch.autograd.grad((weight * ours).sum(), sources, retain_graph=True),
        torch.autograd.grad((weight * expected).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shared", [True, False])
# At the largest distance most covariances are too small to count.
@pytest.mark.parametrize("distance", [1.0, 5.0, 100.0])
def test_the_evidence_and_its_gradient_are_those_of_a_normal_distribution(shared, distance):
    covariance, n = Covariance(default_sum(D, ard=True).double()), 20
    rows = table(n)
    x, y = distance * rows.x.double(), torch.stack([rows.y, rows.y.flip(0)]).double()
    noise = torch.tensor([0.1] if shared else [0.1, 0.3]).double().requires_grad_()
    sources = [*covariance.parameters(), noise]
    K, eye = covariance.block(x, x), torch.eye(n).double()
    expected = sum(
        torch.distributions.MultivariateNormal(
            x.new_zeros(n), K + noise[c % len(noise)] * eye
        ).log_prob(y[c])
        for c in range(2)
    )
    ours = log_evidence(covariance, noise, x, y)
    torch.testing.assert_close(ours, expected)
    for one, other in zip(
        torch.autograd.grad(ours, sources), torch.autograd.grad(expected, sources), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_row_of_weight_two_is_two_rows():
    covariance = Covariance(default_sum(D).double())
    x, y = table(10).x.double(), table(10).y.double()[None]
    noise, weight = torch.tensor([0.2]).double(), torch.tensor([2.0] + 9 * [1.0]).double()
    twice = log_evidence(covariance, noise, torch.cat([x, x[:1]]), torch.cat([y, y[:, :1]], 1))
    torch.testing.assert_close(log_evidence(covariance, noise, x, y, weight), twice)


def test_a_matrix_without_a_factor_has_no_evidence():
    covariance = Covariance(default_sum(D).double())
    rows = table(5)
    value = log_evidence(
        covariance, torch.tensor([-10.0]).double(), rows.x.double(), rows.y.double()[None]
    )
    assert value.isnan()


@pytest.mark.parametrize("weights", [False, True])
def test_left_out_rows_gain_and_the_best_values_are_taken(hyperparameters, weights, size):
    reports = []
    found = learn_to_predict(
        hyperparameters,
        table(weights=weights),
        torch.Generator().manual_seed(0),
        report=lambda step, density: reports.append((step, density)),
    )
    assert found.scores[found.chosen] == max(found.scores.values())
    assert found.scores[found.chosen] > found.scores["start"] + 0.1
    assert {"start", "evidence"} < set(found.scores)
    assert ("tied" if size == "exact" else "leave_one_out") in found.scores
    assert reports[-1][0] == found.steps


def test_where_every_objective_leads_nowhere_the_start_stays(hyperparameters, monkeypatch, size):
    before = hyperparameters.values()
    monkeypatch.setattr(
        objectives, "log_evidence", lambda *args, **kwargs: hyperparameters.noise.sum() * math.nan
    )
    monkeypatch.setattr(predictive, "LEAVE_ONE_OUT_RATE", 1e30)
    found = learn_to_predict(hyperparameters, table(), torch.Generator().manual_seed(0))
    assert found.chosen == "start"
    for value, old in zip(hyperparameters.values(), before, strict=True):
        assert torch.equal(value, old)


def test_limits(hyperparameters, size):
    found = learn_to_predict(
        hyperparameters, table(), torch.Generator().manual_seed(0), max_steps=12
    )
    assert found.steps == 12
    late = learn_to_predict(
        hyperparameters, table(), torch.Generator().manual_seed(0), deadline=-math.inf
    )
    assert late.steps == 0


def test_the_evidence_of_all_rows_is_at_an_optimum(hyperparameters):
    rows = table()
    found = learn_to_predict(hyperparameters, rows, torch.Generator().manual_seed(0))
    assert found.chosen == "evidence"
    best, parameters = hyperparameters.values(), hyperparameters.parameters

    def evidence() -> float:
        y = rows.y.double()[None]
        return log_evidence(
            hyperparameters.covariance, hyperparameters.noise, rows.x.double(), y
        ).item()

    reached = evidence()
    # The pull to tied lengthscales leaves a little.
    for index in range(len(parameters)):
        for shift in (-0.3, 0.3):
            hyperparameters.set([v + shift * (i == index) for i, v in enumerate(best)])
            assert evidence() < reached + 1.0


def small(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    y = torch.randn(60, generator=generator)
    if kind == "noise":
        return x, (y - y.mean()) / y.std()
    if kind == "duplicates":
        x[20:40] = x[:20]
    if kind == "constant column":
        x[:, 1] = 0.0
    y = (2.0 * x[:, 0]).sin()
    return x, (y - y.mean()) / y.std()


@pytest.mark.parametrize("weights", [False, True])
def test_the_evidence_at_inputs_is_that_of_all_rows_there(hyperparameters, weights):
    """Up to a constant: differences between values of the noise are those of the rows."""
    rows = table()
    weight = torch.linspace(0.5, 2.0, len(rows)) if weights else None
    x = rows.x[torch.arange(len(rows)) % 20]
    rows = Rows(x, torch.stack([rows.y, rows.y.flip(0).square()], 1), weight)
    search = objectives.Objectives(hyperparameters, rows, torch.Generator().manual_seed(0))
    differences = []
    for noise in (0.1, 0.7):
        hyperparameters.likelihood.likelihood.noise = noise
        found = search._evidence_at_inputs(torch.arange(20)) * search.number.sum()
        differences.append(found - search.evidence(torch.arange(len(rows))) * len(rows))
    torch.testing.assert_close(*differences)


def test_rows_are_left_out_of_what_their_copies_say(hyperparameters, monkeypatch):
    """However many copies a row has, other inputs are near it as well."""
    monkeypatch.setattr(objectives, "MOST_EXACT", {"cpu": 10})
    rows = table()
    x = rows.x[torch.arange(len(rows)) % 4]
    search = objectives.Objectives(
        hyperparameters, Rows(x, rows.y), torch.Generator().manual_seed(0)
    )
    search.leave_one_out(0)
    assert search._given.near.shape[1] == 4
    own = search.x[search._pool].unsqueeze(1) == search._given.rows.x[search._given.near]
    assert (own.all(2).sum(1) == 1).all()
    moments = search._judged_moments()
    for row, mean in zip(search.judged.tolist(), moments[0][0].tolist(), strict=True):
        alike = (x == x[row]).all(1)
        alike[row] = False
        assert abs(mean - float(rows.y[alike].double().mean())) < 0.25


def test_rows_that_compare_values_are_not_climbed(hyperparameters, monkeypatch):
    monkeypatch.setattr(objectives, "MOST_EXACT", {"cpu": 10})
    search = objectives.Objectives(hyperparameters, table(), torch.Generator().manual_seed(0))
    search.leave_one_out(0)
    assert len(search.judged) == 100
    assert not torch.isin(search._pool, search.judged).any()


@pytest.mark.parametrize(("gain", "rounds"), [(0.005, 1), (0.2, 1), (0.3, predictive.ROUNDS)])
def test_rounds_go_on_where_they_gain_and_could_become_the_best(
    hyperparameters, monkeypatch, gain, rounds
):
    monkeypatch.setattr(objectives, "MOST_EXACT", {"cpu": 0})
    climbed = []

    def climb(self, objective, *args):
        climbed.append(objective.__name__)
        return True

    def judge(search):
        found = next(scores, None)
        rounds = climbed.count("evidence_of_random_rows")
        return objectives.Judgement(0.0, rounds * gain if found is None else found)

    # Of the start, and of the two stages before that of random rows.
    scores = iter([0.0, 1.0, 1.0])
    monkeypatch.setattr(Hyperparameters, "climb", climb)
    monkeypatch.setattr(Hyperparameters, "ascend", lambda self, *args, **kwargs: 1)
    monkeypatch.setattr(objectives.Objectives, "judge", judge)
    learn_to_predict(hyperparameters, table(), torch.Generator().manual_seed(0))
    assert climbed.count("evidence_of_random_rows") == rounds


@pytest.mark.parametrize(("gain", "taken"), [(0.005, False), (0.02, True)])
def test_leave_one_out_must_gain_clearly(hyperparameters, monkeypatch, gain, taken):
    monkeypatch.setattr(objectives, "MOST_EXACT", {"cpu": 0})
    climbed, climb = [], objectives.Objectives.leave_one_out

    def leave_one_out(search, step):
        climbed.append(step)
        return climb(search, step)

    def judge(search):
        return objectives.Judgement(0.0, gain if climbed else 0.0)

    monkeypatch.setattr(objectives.Objectives, "leave_one_out", leave_one_out)
    monkeypatch.setattr(objectives.Objectives, "judge", judge)
    found = learn_to_predict(hyperparameters, table(), torch.Generator().manual_seed(0))
    assert (found.chosen == "leave_one_out") == taken


@pytest.mark.parametrize(("loss", "taken"), [(0.005, True), (0.02, False)])
def test_the_evidence_of_many_rows_is_preferred(hyperparameters, monkeypatch, loss, taken):
    monkeypatch.setattr(objectives, "MOST_EXACT", {"cpu": 0})
    monkeypatch.setattr(predictive, "FIRST_ROWS", {"cpu": 50})
    monkeypatch.setattr(predictive, "MANY_ROWS", {"cpu": 123})
    sizes, evidence = [0], objectives.Objectives.evidence

    def counted(search, rows):
        sizes.append(len(rows))
        return evidence(search, rows)

    def judge(search):
        return objectives.Judgement(0.0, -loss if sizes[-1] == 123 else 0.0)

    monkeypatch.setattr(objectives.Objectives, "evidence", counted)
    monkeypatch.setattr(objectives.Objectives, "judge", judge)
    found = learn_to_predict(hyperparameters, table(), torch.Generator().manual_seed(0))
    assert (found.chosen == "many_rows") == taken


def test_copies_of_a_row_are_left_out_together(hyperparameters):
    rows = table(30)
    twice = Rows(rows.x.repeat(2, 1), rows.y.repeat(2))
    weighted = Rows(rows.x, rows.y, torch.full((30,), 2.0))
    scores = [
        learn_to_predict(hyperparameters, r, torch.Generator().manual_seed(0), max_steps=0).scores
        for r in (twice, weighted)
    ]
    # Each row's density counts twice in the latter.
    assert 2.0 * scores[0]["start"] == pytest.approx(scores[1]["start"])


@pytest.mark.parametrize("kind", ["noise", "function", "duplicates", "constant column"])
def test_small_tables(kind):
    x, y = small(kind)
    found = Hyperparameters(Covariance(default_sum(5, ard=True)), Gaussian())
    learn_to_predict(found, Rows(x[:40], y[:40]), torch.Generator().manual_seed(0))
    with torch.no_grad():
        K = found.covariance.block(x.double(), x.double())
        A = K[:40, :40] + found.noise * torch.eye(40).double()
        mean = K[40:, :40] @ torch.linalg.solve(A, y[:40].double())
    error, constant = ((t.square().mean().sqrt().item()) for t in (y[40:] - mean, y[40:]))
    assert error < (1.05 if kind == "noise" else 0.5) * constant


class Memory:
    """Keeps what is saved, as bytes would be; is killed after so many times."""

    def __init__(self, most: int | None = None):
        self.most, self.count, self.saved = most, 0, None

    def load(self):
        return self.saved

    def save(self, tensors, meta):
        tensors = {name: value.clone() for name, value in tensors.items()}
        self.saved = tensors, json.loads(json.dumps(meta))
        self.count += 1
        if self.count == self.most:
            raise KeyboardInterrupt


def test_a_search_that_was_killed_ends_where_it_would_have(size):
    def search(checkpoint, seed):
        found = Hyperparameters(Covariance(default_sum(D, ard=True)), Gaussian())
        generator = torch.Generator().manual_seed(seed)
        learned = learn_to_predict(found, table(), generator, checkpoint=checkpoint)
        return learned, found.values(), generator.get_state()

    undisturbed = Memory()
    expected = search(undisturbed, 0)
    assert undisturbed.count > 1
    for most in range(1, undisturbed.count + 1):
        killed = Memory(most)
        with pytest.raises(KeyboardInterrupt):
            search(killed, 0)
        killed.most = None
        # Another seed: all that follows depends on what was saved alone.
        learned, values, state = search(killed, 1)
        assert learned == expected[0]
        assert torch.equal(state, expected[2])
        for value, other in zip(values, expected[1], strict=True):
            assert torch.equal(value, other)


@pytest.mark.parametrize("tied", [True, False])
def test_quasi_newton_steps_find_the_top_of_a_hill(hyperparameters, tied):
    """Of the logarithms of the lengthscales, less the pull."""
    rough = hyperparameters.covariance.kernel.kernels[0].base_kernel
    start, target = rough.lengthscale.detach().log(), torch.tensor([[1.0, 2.0]])

    def hill():
        others = sum(parameter.sum() for parameter in hyperparameters.parameters)
        return -0.5 * (rough.lengthscale.log() - target).square().sum().double() + 0.0 * others

    hyperparameters.ascend(hill, 50, tied=tied, pull=1.0)
    moved = rough.lengthscale.detach().log() - start
    expected = (target - start).mean().expand_as(start) if tied else 0.5 * (target - start)
    torch.testing.assert_close(moved, expected, rtol=0.0, atol=0.01)


def test_a_narrow_prior_counts(size):
    kernel = default_sum(D)
    rough = kernel.kernels[0].base_kernel
    rough.register_prior("prior", LogNormalPrior(math.log(5.0), 1e-3), "lengthscale")
    found = Hyperparameters(Covariance(kernel), Gaussian())
    learn_to_predict(found, table(), torch.Generator().manual_seed(0))
    free = default_sum(D)
    learn_to_predict(
        Hyperparameters(Covariance(free), Gaussian()), table(), torch.Generator().manual_seed(0)
    )
    distance = [abs(k.kernels[0].base_kernel.lengthscale.item() - 5.0) for k in (kernel, free)]
    assert distance[0] < distance[1]


def test_leaving_one_out_of_the_exact_process():
    covariance, rows = Covariance(default_sum(D).double()), table(12)
    x, y, noise = rows.x.double(), rows.y.double()[None], torch.full((1, 12), 0.2).double()
    mean, variance = leave_one_out(covariance, x, y, noise)
    for i in range(12):
        others = torch.arange(12) != i
        with torch.no_grad():
            A = covariance.block(x[others], x[others]) + 0.2 * torch.eye(11).double()
            k = covariance.block(x[others], x[i : i + 1])
            c = torch.linalg.solve(A, k)[:, 0]
            expected = covariance.diagonal(x[:1])[0] - c @ k[:, 0]
        torch.testing.assert_close(mean[0, i], c @ y[0, others])
        torch.testing.assert_close(variance[0, i], expected)
