"""A run that meets a value it cannot use goes back, takes smaller steps, and ends finite."""

import math
import re
import warnings
from dataclasses import replace

import pytest
import torch

from orthogp.errors import DataError, NumericalError
from orthogp.model import VariationalGP
from orthogp.posterior import NaturalGaussian
from orthogp.training import Rows, fit, full_bound
from orthogp.training.batches import ColumnSampler, Sampler
from orthogp.training.run import REPORTS_TO_RELAX, Run
from orthogp.training.watch import CAUSES
from runs import contents, data, finite, model, same, settings, single_step


def spoil_bound(monkeypatch, *calls):
    """Makes the bound NaN at these calls of it, counted from one."""
    bound, count = VariationalGP.bound, iter(range(1, 10**6))

    def spoiled(self, *args, **kwargs):
        found = bound(self, *args, **kwargs)
        return replace(found, value=found.value * float("nan")) if next(count) in calls else found

    monkeypatch.setattr(VariationalGP, "bound", spoiled)


def spoil_kl(monkeypatch, *calls, by=1e6):
    """Makes the KL what cancellation in float32 can make of it, at these calls of the bound."""
    bound, count = VariationalGP.bound, iter(range(1, 10**6))

    def spoiled(self, *args, **kwargs):
        found = bound(self, *args, **kwargs)
        return replace(found, kl=found.kl - by) if next(count) in calls else found

    monkeypatch.setattr(VariationalGP, "bound", spoiled)


def spoil_precision(monkeypatch, *calls, value=-10.0):
    """Takes the precision of q(f_β) out of the cone after these natural steps."""
    step, count = NaturalGaussian.step, iter(range(1, 10**6))

    def spoiled(self, *args, **kwargs):
        step(self, *args, **kwargs)
        if next(count) in calls:
            self.precision.diagonal(dim1=-2, dim2=-1).fill_(value)

    monkeypatch.setattr(NaturalGaussian, "step", spoiled)


@pytest.mark.parametrize(
    ("dtype", "spoil", "cause"),
    [
        (torch.float32, lambda p: spoil_bound(p, 8), "bound is not"),
        (torch.float64, lambda p: spoil_bound(p, 10), "bound is not"),
        (torch.float32, lambda p: spoil_kl(p, 8), "negative"),
        (torch.float64, lambda p: spoil_precision(p, 8), "positive-definite cone"),
        # After the last step of a chunk: nothing of the chunk itself was affected.
        (torch.float32, lambda p: spoil_precision(p, 10), "positive-definite cone"),
        (torch.float32, lambda p: spoil_precision(p, 10, value=math.nan), "parameter is not"),
    ],
)
def test_one_bad_value_costs_one_chunk(monkeypatch, spoil, cause, dtype):
    rows, events = data(dtype=dtype), []
    m = model(rows)
    before, jitter = full_bound(m, rows), m.jitter
    spoil(monkeypatch)
    with pytest.warns(UserWarning, match=cause) as warned:
        result = fit(m, rows, settings(), callbacks=[events.append])
    assert len(warned) == 1
    assert result.recoveries == 1
    assert [row.step for row in result.history] == [5, 10, 15, 20]
    assert all(torch.tensor(row.bound).isfinite() for row in result.history)
    assert finite(m)
    assert full_bound(m, rows) > before
    assert m.jitter == pytest.approx(10 * jitter)
    assert m.basis.beta.dtype == dtype
    # The chunk that failed is the second: it goes on from step 5, at a quarter of τ at first.
    seen = [(event.kind, event.step) for event in events]
    assert seen == [("start", 0), ("report", 5), ("recovery", 5), ("report", 10), ("report", 15),
                    ("report", 20), ("end", 20)]  # fmt: skip
    config = settings()
    taus = [row.natural_step / config.natural_step for row in result.history]
    relaxing = [0.25 * 4 ** (k / REPORTS_TO_RELAX) for k in range(3)]
    assert taus == pytest.approx([1, *relaxing])
    rates = [row.learning_rate / config.learning_rate for row in result.history]
    assert rates == pytest.approx([1, *(caution**0.5 for caution in relaxing)])


@pytest.mark.parametrize(("calls", "lost"), [([8], False), (range(6, 100), True)])
def test_a_negative_kl_is_a_fault_where_it_stays(monkeypatch, calls, lost):
    """One estimate from a few columns is noise; all of the last steps together are not."""
    rows = data()
    spoil_kl(monkeypatch, *calls, by=8.0 * len(rows))
    run = Run(model(rows), rows, settings(), None, (), None, 30.0)
    _, fault = run.chunk(50)
    assert (fault == CAUSES[3]) if lost else fault is None


def test_a_chunk_that_failed_draws_its_rows_and_columns_again(monkeypatch):
    streams = []
    for spoiled in (False, True):
        drawn = {Sampler: [], ColumnSampler: []}
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for kind, found in drawn.items():
                draw = kind.draw
                patch.setattr(
                    kind, "draw",
                    lambda s, steps, d=draw, f=found: (f.append(d(s, steps)), f[-1])[1],
                )  # fmt: skip
            if spoiled:
                spoil_bound(patch, 8)
            rows = data()
            fit(model(rows), rows, settings())
        streams.append(drawn)
    for kind in (Sampler, ColumnSampler):
        plain, recovered = streams[0][kind], streams[1][kind]
        expected = [plain[0], plain[1], plain[1], plain[2], plain[3]]
        assert all(torch.equal(a, b) for a, b in zip(recovered, expected, strict=True))


def test_the_failed_steps_leave_no_trace(monkeypatch):
    """A recovery at the very start equals a run that started so."""
    rows, ends = data(), []
    for spoiled in (True, False):
        m = model(rows)
        config = settings()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Neither run may take longer steps again.
            patch.setattr("orthogp.training.run.REPORTS_TO_RELAX", math.inf)
            if spoiled:
                spoil_bound(patch, 3)
            else:
                m.jitter *= 10.0
                config = settings(
                    learning_rate=config.learning_rate / 2, natural_step=config.natural_step / 4
                )
            fit(m, rows, config)
        ends.append(contents(m))
    assert same(*ends)


@pytest.mark.parametrize("rule", ["adam", "diagonal", "exact"])
@pytest.mark.parametrize("optimizer", ["natural", "adam"])
def test_the_third_recovery_goes_to_float64(monkeypatch, rule, optimizer):
    rows = data()
    m = model(rows, optimizer=optimizer)
    spoil_bound(monkeypatch, 8, 9, 10)
    with pytest.warns(UserWarning, match="bound is not") as warned:
        result = fit(m, rows, settings(residual_rule=rule, residual_step=None))
    assert result.recoveries == len(warned) == 3
    assert {p.dtype for p in m.parameters()} == {torch.float64}
    assert m.jitter == pytest.approx(1e-3)
    assert [row.step for row in result.history] == [5, 10, 15, 20]
    assert finite(m)


def test_the_first_thing_to_fail_is_the_cause():
    rows = data()
    step = single_step(model(rows), Rows(rows.x, rows.y * math.nan), settings(kl_columns=None))
    step()
    assert step.fault() == "the bound is not finite"
    # A bound that is lost after a gradient was is its consequence.
    other = single_step(model(rows), Rows(rows.x, rows.y * math.nan), settings(kl_columns=None))
    other.watch.failed[CAUSES.index("a gradient is not finite")] = True
    other()
    assert other.fault() == "a gradient is not finite"


@pytest.mark.parametrize("rule", ["adam", "diagonal", "exact"])
def test_caution_shortens_every_step(rule):
    rows = data()
    run = Run(model(rows), rows, settings(residual_rule=rule), None, (), None, 0.0)
    bold = run.rates(3)
    run.progress.caution = 0.25
    torch.testing.assert_close(run.rates(3) / bold, torch.tensor([[0.5, 0.25, 0.5]]).expand(3, 3))


def test_every_recovery_is_told(monkeypatch):
    rows = data()
    spoil_bound(monkeypatch, 3, 13)
    with pytest.warns(UserWarning, match="not finite") as warned:
        result = fit(model(rows), rows, settings())
    assert result.recoveries == len(warned) == 2


def test_steps_are_back_at_their_size_after_enough_good_reports():
    rows = data()
    run = Run(model(rows), rows, settings(), None, (), None, 0.0)
    run.progress.caution = 0.25
    for _ in range(REPORTS_TO_RELAX):
        assert run.progress.caution < 1.0
        run.relax()
    assert run.progress.caution == pytest.approx(1.0)
    run.relax()
    assert run.progress.caution == 1.0


def test_the_jitter_is_never_lowered(monkeypatch):
    rows = data()
    m = model(rows)
    m.jitter = 2e-2
    spoil_bound(monkeypatch, 3)
    with pytest.warns(UserWarning, match="bound is not"):
        fit(m, rows, settings())
    assert m.jitter == 2e-2


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda p: spoil_bound(p, *range(6, 500)), "bound is not"),
        (lambda p: spoil_precision(p, *range(6, 500)), "positive-definite cone"),
    ],
)
def test_a_run_that_cannot_recover_says_why_and_leaves_the_last_good_state(
    monkeypatch, spoil, cause
):
    rows, events, reported = data(), [], []
    m = model(rows)
    spoil(monkeypatch)

    def remember(event):
        events.append(event.kind)
        if event.kind == "report":
            reported.append(contents(m))

    sentence = rf"9 times .*{re.escape(cause)}"
    with (
        pytest.warns(UserWarning, match=cause) as warned,
        pytest.raises(NumericalError, match=sentence),
    ):
        fit(m, rows, settings(), callbacks=[remember])
    assert len(warned) == 8
    assert events == ["start", "report", *["recovery"] * 8, "end"]
    left = {name: value.float() for name, value in contents(m).items()}
    assert same(left, {name: value.float() for name, value in reported[0].items()})


@pytest.mark.parametrize("part", ["x", "y", "weight"])
def test_missing_values_are_named_at_once(part):
    rows = data()
    parts = {"x": rows.x.clone(), "y": rows.y.clone(), "weight": torch.ones(len(rows))}
    parts[part][:3] = float("nan")
    count = parts[part][:3].numel()
    m = model(rows)
    start = contents(m)
    message = rf"^{part} has {count} "
    with pytest.raises(DataError, match=message):
        fit(m, Rows(**parts), settings(batch_size=len(rows)))
    assert same(contents(m), start)


def test_targets_beyond_the_range_of_float32_end_with_a_reason_and_a_finite_model():
    rows = data()
    rows = Rows(rows.x, rows.y * 1e25)
    m = model(rows)
    with pytest.warns(UserWarning, match="not finite") as warned:
        result = fit(m, rows, settings())
    # Squares of 1e25 exist in float64 only, which is the third thing tried.
    assert result.recoveries == len(warned) == 3
    assert finite(m)


def test_a_finite_divergence_is_recovered_from():
    rows = data()
    m = model(rows)
    start = full_bound(m, rows)
    config = settings(
        residual_rule="exact", residual_step=1.0, max_steps=60, train_hyperparameters=False
    )
    with pytest.warns(UserWarning, match="bound fell"):
        result = fit(m, rows, config)
    assert result.recoveries >= 1
    assert full_bound(m, rows) > start
