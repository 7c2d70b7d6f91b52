"""The step as a GPU takes it, piece by piece, beside the plain one."""

import copy

import pytest
import torch

from orthogp.training import Rows, TrainingConfig
from orthogp.training.overlapped import OverlappedStep, overlapped_bound
from orthogp.training.step import Step
from problems import KINDS, make_model, problem
from runs import single_step

HOLDS = ["whitened", "unwhitened", "dual"]
NATURAL = [(kind, hold) for kind in KINDS if kind.endswith("natural") for hold in HOLDS]
BY_ADAM = [(kind, "whitened") for kind in KINDS if not kind.endswith("natural")]


def columns_of(model) -> list[torch.Tensor | None]:
    """None for the exact KL, and some of γ where there are any."""
    return [None, torch.tensor([0, 2, 3])] if len(model.basis.gamma) else [None]


@pytest.mark.parametrize(("kind", "hold_fixed"), [*NATURAL, *BY_ADAM])
def test_overlapped_steps_end_where_plain_ones_do(kind, hold_fixed):
    p = problem(seed=3)
    rows = Rows(p.x, p.y, torch.linspace(0.5, 1.5, len(p.x), dtype=p.x.dtype))
    config = TrainingConfig(learning_rate=0.01, natural_step=0.2)
    for columns in columns_of(make_model(kind, p)):
        ends, count = [], None if columns is None else len(columns)
        for step_class in (Step, OverlappedStep):
            # Models of one problem share its kernel.
            model = copy.deepcopy(make_model(kind, p, hold_fixed=hold_fixed))
            step = single_step(model, rows, config, count, step_class)
            if columns is not None:
                step.columns.copy_(columns)
            for _ in range(3):
                step()
            assert step.fault() is None
            ends.append(step.tensors())
        for name, tensor in ends[0].items():
            torch.testing.assert_close(ends[1][name], tensor, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_overlapped_bound_is_the_bound(kind):
    p = problem(seed=4)
    model = make_model(kind, p)
    weight = torch.linspace(0.5, 1.5, len(p.x), dtype=p.x.dtype)
    for columns in columns_of(model):
        plain = model.bound(p.x, p.y, 100, columns, weight, robust=False)
        other = overlapped_bound(model, p.x, p.y, 100, columns, weight).bound
        for name in ("value", "expected_log_prob", "kl"):
            ours, expected = getattr(other, name), getattr(plain, name)
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=0)
