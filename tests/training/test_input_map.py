"""A map of the inputs for labels: what it is learned from, and when it is taken."""

import math

import pytest
import torch

from orthogp.likelihoods import Bernoulli, Softmax
from orthogp.training import Rows, input_map, map_search
from orthogp.training.curved_map import InputMap
from orthogp.training.input_map import LearnedMap, learn_input_map
from problems import default_sum, several_kinds_of_inputs, thresholds

D = 3


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in {"MAP_STEPS": 40, "MAP_RATE": 0.05, "MAP_ROUNDS": 1}.items():
        monkeypatch.setattr(input_map, name, value)
    monkeypatch.setattr(map_search, "STEPS", 20)
    monkeypatch.setattr(map_search, "SMALLEST_BATCH", {"cpu": 100})


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
    knots = result.map.knots
    rises = int((knots[:, 1:] > knots[:, :-1]).sum())
    # Where they gain less, each rise must have enough rows.
    monkeypatch.setattr(input_map, "LEAST_SHARE", math.inf)
    for least, taken in ((600 / rises - 0.1, True), (600 / rises + 0.1, False)):
        monkeypatch.setattr(input_map, "ROWS_A_RISE", least)
        assert (learned(additive(600), additive(300, seed=1)) is not None) == taken
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
