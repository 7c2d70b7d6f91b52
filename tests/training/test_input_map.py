"""A map of the inputs for labels: what it is learned from, and when it is taken."""

import math

import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Bernoulli, Softmax
from orthogp.training import Rows, input_map
from orthogp.training.curved_map import InputMap
from orthogp.training.input_map import LearnedMap, _Candidate, _Search, learn_input_map
from problems import default_sum, several_kinds_of_inputs

D = 3


@pytest.fixture(autouse=True)
def short(monkeypatch):
    values = {"STEPS": 20, "MAP_STEPS": 40, "MAP_RATE": 0.05, "MAP_ROUNDS": 1}
    for name, value in (values | {"SMALLEST_BATCH": {"cpu": 100}}).items():
        monkeypatch.setattr(input_map, name, value)


def thresholds(n: int, seed: int = 0) -> Rows:
    """Classes that change with each level of the last input, and where the first one is small."""
    x = several_kinds_of_inputs(n, seed)
    return Rows(x, ((x[:, 2].abs() == 1) ^ (x[:, 0].abs() < 0.3)).long())


def additive(n: int, seed: int = 0) -> Rows:
    """Classes that are certain along one input and of which the others say nothing."""
    x = several_kinds_of_inputs(n, seed)
    return Rows(x, (x[:, 0].abs() < 0.5).long())


def found(train: Rows, held_out: Rows, likelihood=None, **settings) -> LearnedMap:
    generator = torch.Generator().manual_seed(0)
    likelihood = Bernoulli() if likelihood is None else likelihood
    kernel = default_sum(D, ard=True)
    result = learn_input_map(likelihood, train, held_out, kernel, generator, **settings)
    assert result is not None
    return result


def learned(train: Rows, held_out: Rows, likelihood=None, **settings) -> InputMap | None:
    return found(train, held_out, likelihood, **settings).map


def a_candidate(rows: Rows) -> _Candidate:
    c = _Candidate(default_sum(D, ard=True), torch.zeros(1).double(), rows.x.double())
    c.begin_map(rows.x.double())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for values in c.map.parameters():
            values.add_(torch.randn(values.shape, generator=generator))
    return c


def a_search(train: Rows, held_out: Rows) -> _Search:
    return _Search(Bernoulli(), train, held_out, torch.Generator().manual_seed(0), math.inf)


def test_outputs_begin_with_the_lengthscales_of_their_inputs():
    rows = thresholds(200)
    x, c = rows.x.double(), a_candidate(rows)
    expected = Covariance(default_sum(D, ard=True)).relevance(x)[[0, 1, 2, 2]]
    torch.testing.assert_close(c.covariance.relevance(c.mapped(x)), expected)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(2)], ids=["bernoulli", "softmax"])
def test_a_map_is_found_where_classes_have_thresholds(likelihood):
    found = learned(thresholds(600), thresholds(300, seed=1), likelihood)
    assert found is not None
    # The curve of the first input rises most where classes change.
    knots = found.knots[0]
    slopes = found.curves[0].diff(dim=0).norm(dim=1) / knots.diff()
    for at in (-0.3, 0.3):
        assert slopes[(knots < at).sum() - 1] > 2.0 * slopes.median()


def test_no_map_is_taken_where_labels_are_noise():
    train, held_out = thresholds(300), thresholds(300, seed=1)
    noise = torch.randint(2, (600,), generator=torch.Generator().manual_seed(3))
    train, held_out = Rows(train.x, noise[:300]), Rows(held_out.x, noise[300:])
    assert learned(train, held_out) is None


@pytest.mark.parametrize(
    ("gain", "spread", "taken"), [(0.3, 0.1, True), (0.08, 0.1, False), (0.3, 5.0, False)]
)
def test_a_map_must_gain_a_tenth_of_the_loss_beyond_two_standard_errors(gain, spread, taken):
    plain = torch.full((400,), -1.0)
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0))
    density = plain + gain + spread * (noise - noise.mean())
    assert input_map._gains(density, plain, 2.0, 0.1) == taken


def test_other_inputs_are_judged_by_the_same_held_out_rows():
    """Those in which near rows have the same label gain; copies of the inputs do not."""
    train, held_out = thresholds(300), thresholds(300, seed=1)
    plain = found(train, held_out, max_steps=20).plain
    assert plain.shape == (300,)
    assert (plain <= 0).all()
    kernel, generator = default_sum(D, ard=True), torch.Generator().manual_seed(0)
    for change, gains in ((0.0, False), (3.0, True)):
        told = [Rows(r.x + change * r.y.unsqueeze(1).to(r.x), r.y) for r in (train, held_out)]
        density = input_map.densities_by_inputs(plain, Bernoulli(), *told, kernel, generator)
        assert (density is not None) == gains
        if density is not None:
            assert density.mean() > plain.mean()


def test_additive_curves_are_taken_as_they_are_where_near_rows_learn_no_more(monkeypatch):
    monkeypatch.setattr(input_map, "MAP_ROUNDS", 0)
    result = found(additive(600), additive(300, seed=1))
    assert result.map is not None
    assert (result.map.linear == 0).all()
    gain = result.density - result.plain
    assert gain.mean() - gain.std() / 300**0.5 > 0
    # The labels say nothing of the other inputs.
    sizes = result.map.curves.flatten(1).std(1)
    assert sizes[0] > 5.0 * sizes[1:].max()


def test_learning_begins_with_additive_curves_where_these_predict_better():
    """Classes that no single input tells of are learned from the inputs as they are."""
    for rows, begins_with_inputs in ((additive, False), (thresholds, True)):
        result = learned(rows(600), rows(300, seed=1))
        assert result is not None
        weights = result.linear.diagonal().abs()
        assert bool(weights[0] > 0.5) == begins_with_inputs


def test_no_map_is_taken_without_time():
    assert learned(thresholds(300), thresholds(100, seed=1), deadline=-math.inf) is None


def test_the_same_rows_give_the_same_map(monkeypatch):
    monkeypatch.setattr(input_map, "MAP_STEPS", 10)
    monkeypatch.setattr(input_map, "LEAST_SHARE", -math.inf)
    first, second = (learned(thresholds(300), thresholds(200, seed=1)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert torch.equal(first.linear, second.linear)
    assert torch.equal(first.curves, second.curves)


def test_held_out_rows_are_told_nothing_of_their_labels():
    """The labels of held-out rows move no prediction, neither of others nor of themselves."""
    train, held_out = thresholds(300), thresholds(50, seed=1)
    other = Rows(held_out.x, 1 - held_out.y)
    means = []
    for judged in (held_out, other):
        search = a_search(train, judged)
        c = a_candidate(train)
        x = search.held_out.x.double()
        means.append(search._mean(c, x, search._near(c, x)))
    assert torch.equal(*means)


def test_rows_are_predicted_without_themselves():
    search = a_search(thresholds(300), thresholds(50, seed=1))
    c, rows = a_candidate(search.train), torch.arange(40)
    near = search._near(c, search.x[rows], rows)
    assert near.shape == (40, 2 * input_map.NEAR)
    assert not (near == rows.unsqueeze(1)).any()
    z = c.mapped(search.x).detach()
    z = z * c.covariance.relevance(z).sqrt()
    distance = torch.cdist(z[rows], z).detach()
    distance[rows, rows] = math.inf
    nearest = distance.topk(2 * input_map.NEAR, largest=False).values
    torch.testing.assert_close(distance.gather(1, near).sort(1).values, nearest)


def test_a_mean_is_that_of_gaussian_regression_on_the_gradients():
    search = a_search(thresholds(300), thresholds(50, seed=1))
    c = a_candidate(search.train)
    x = search.held_out.x.double()[:5]
    near = search._near(c, x)
    kernel = c.covariance
    noise, weight = c.logs.exp().tolist()
    for i, found in enumerate(search._mean(c, x, near)[0].tolist()):
        z, z_near = c.mapped(x[i : i + 1]), c.mapped(search.x[near[i]])
        K = kernel.block(z_near, z_near) + noise * torch.eye(len(z_near)).double()
        k, g = kernel.block(z, z_near)[0], search.gradient[0, near[i]]
        expected = weight * (k @ torch.linalg.solve(K, g)).item()
        assert found == pytest.approx(expected, rel=1e-6)
