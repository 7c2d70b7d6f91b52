"""A linear map of the inputs: how it is climbed, and when the search takes it."""

import json

import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.training import Rows, objectives, predictive
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.predictive import learn_to_predict
from orthogp.training.search_stages import Stage
from problems import default_sum

D = 3


def hyperparameters(linear_map: bool = True) -> Hyperparameters:
    identity = torch.eye(D, dtype=torch.float64) if linear_map else None
    return Hyperparameters(Covariance(default_sum(D, ard=True)), Gaussian(), identity)


def diagonal_table(n: int = 240) -> Rows:
    """A function of x₀ − x₁ alone, which no lengthscales can tell from one of both."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, D, generator=generator)
    y = (3.0 * (x[:, 0] - x[:, 1])).sin() + 0.1 * torch.randn(n, generator=generator)
    return Rows(x, y)


def idle(h: Hyperparameters) -> torch.Tensor:
    """Zero, whatever the parameters of kernel and noise."""
    return sum((0.0 * p.sum() for p in h.parameters), torch.zeros(()))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    steps = {"EVIDENCE_STEPS": 10, "PATCH_STEPS": 5, "LEAVE_ONE_OUT_STEPS": 5, "EVALUATIONS": 10}
    for name, value in (steps | {"MAP_STEPS": 15, "MAP_ROUNDS": 2, "MAP_RATE": 0.15}).items():
        monkeypatch.setattr(predictive, name, value)
    monkeypatch.setattr(objectives, "BLOCK_ROWS", {"cpu": 60})
    monkeypatch.setattr(predictive, "SMALLEST_MAP_BATCH", {"cpu": 60})
    monkeypatch.setattr(objectives, "BATCH", {"cpu": 60})


@pytest.fixture(params=["exact", "large"])
def size(request, monkeypatch) -> str:
    if request.param == "large":
        monkeypatch.setattr(objectives, "MOST_EXACT", {"cpu": 0})
    return request.param


def test_a_map_is_found_where_the_function_has_one(size):
    generator = torch.Generator().manual_seed(0)
    plain = learn_to_predict(hyperparameters(linear_map=False), diagonal_table(), generator)
    found, generator = hyperparameters(), torch.Generator().manual_seed(0)
    mapped = learn_to_predict(found, diagonal_table(), generator)
    stages = {"exact": ("linear_map", "mapped_evidence"), "large": ("linear_map", "leave_one_out")}
    assert mapped.chosen in stages[size]
    assert max(mapped.scores.values()) > max(plain.scores.values()) + 0.1
    assert found.linear_map is not None
    # The kernel sees hardly more than x₀ − x₁.
    scaled = found.covariance.relevance(found.linear_map).sqrt()[:, None] * found.linear_map
    along, across = (scaled @ torch.tensor([1.0, sign, 0.0]).double() for sign in (-1.0, 1.0))
    assert across.norm() < 0.5 * along.norm()


def test_a_map_that_predicts_no_better_is_not_taken(monkeypatch, size):
    def spoil(self, *args):
        self.linear_map = torch.full((D, D), 5.0).double()
        return True

    monkeypatch.setattr(Hyperparameters, "climb_with_map", spoil)
    found = hyperparameters()
    learned = learn_to_predict(found, diagonal_table(), torch.Generator().manual_seed(0))
    assert learned.scores["linear_map"] < learned.scores[learned.chosen]
    assert torch.equal(found.linear_map, torch.eye(D).double())


def test_the_weights_that_move_are_scaled_by_relevance():
    """L = diag(ρ)⁻¹ B diag(r): one step of Adam moves every weight of B by the rate."""
    h = hyperparameters()
    rho = h.covariance.relevance(h.linear_map).sqrt().detach()
    rate = 1e-3
    assert h.climb_with_map(
        lambda step: h.mapped(torch.ones(1, D).double()).sum() + idle(h), 1, rate
    )
    B = rho[:, None] * h.linear_map / rho
    torch.testing.assert_close(
        B - torch.eye(D), torch.full((D, D), rate).double(), rtol=1e-3, atol=0
    )


def test_a_pull_keeps_inputs_apart():
    """At the top of −½ (B₀₁ − 1)² − ½ c Σ_{i≠j} B_ij² is B₀₁ = 1/(1 + c)."""
    h = hyperparameters()
    rho = h.covariance.relevance(h.linear_map).sqrt().detach()

    def objective(step: int) -> torch.Tensor:
        B = rho[:, None] * h.linear_map / rho
        return -0.5 * (B[0, 1] - 1.0).square() + idle(h)

    assert h.climb_with_map(objective, 400, 0.05, pull=1.0)
    B = rho[:, None] * h.linear_map / rho
    torch.testing.assert_close(B[0, 1].item(), 0.5, rtol=0.02, atol=0)


def test_values_hold_the_map_and_a_climb_that_leads_nowhere_leaves_it():
    h = hyperparameters()
    before = h.values()
    assert torch.equal(before[-1], torch.eye(D).double())
    assert not h.climb_with_map(lambda step: torch.tensor(float("nan")), 3, 0.1)
    assert torch.equal(h.linear_map, before[-1])
    h.set([*before[:-1], 2.0 * before[-1]])
    assert torch.equal(h.mapped(torch.ones(1, D).double()), torch.full((1, D), 2.0).double())


@pytest.mark.parametrize(
    ("after", "unless", "best", "wanted"),
    [(None, None, "a", True), ("a", None, "a", True), ("a", None, "b", False),
     (None, "a", "a", False), (None, "a", "b", True)],
)  # fmt: skip
def test_stages_that_depend_on_what_is_best(after, unless, best, wanted):
    stage = Stage("s", None, lambda most, deadline: 0, 1, after=after, unless=unless)
    assert stage.is_wanted(best) == wanted


def test_a_search_with_a_map_goes_on_to_the_same_end(size):
    class Memory:
        def __init__(self, most=None):
            self.most, self.count, self.saved = most, 0, None

        def load(self):
            return self.saved

        def save(self, tensors, meta):
            tensors = {name: value.clone() for name, value in tensors.items()}
            self.saved, self.count = (tensors, json.loads(json.dumps(meta))), self.count + 1
            if self.count == self.most:
                raise KeyboardInterrupt

    def search(memory, seed):
        found, generator = hyperparameters(), torch.Generator().manual_seed(seed)
        return learn_to_predict(found, diagonal_table(), generator, checkpoint=memory), found

    undisturbed = Memory()
    expected, at_end = search(undisturbed, 0)
    assert undisturbed.count > 2
    # In the rounds with the map.
    killed = Memory(undisturbed.count - 1)
    with pytest.raises(KeyboardInterrupt):
        search(killed, 0)
    killed.most = None
    learned, found = search(killed, 1)
    assert learned == expected
    for value, other in zip(found.values(), at_end.values(), strict=True):
        assert torch.equal(value, other)
