"""The settings of a run: what is refused, and the rates that follow from them."""

import math
from dataclasses import asdict

import pytest

from orthogp.errors import ConfigurationError
from orthogp.training import TrainingConfig
from orthogp.training.config import EXACT_KL_UP_TO, FIRST_NATURAL_STEP
from runs import unchecked

COUNTS = ("max_steps", "batch_size", "refresh_every", "report_every")
BAD = [
    *((name, bad) for name in COUNTS for bad in (0, -1, 2.5, True, "10", None)),
    *((name, bad) for name in ("natural_warmup", "schedule_warmup", "seed")
      for bad in (-1, 0.5, 0.0, False, None)),
    *((name, bad) for name in ("learning_rate", "residual_floor")
      for bad in (0.0, -1e-3, math.nan, math.inf, None, "fast", True)),
    *((name, bad) for name in ("max_time", "clip_norm", "residual_step")
      for bad in (0, -1.0, math.nan, math.inf, "1")),
    *(("natural_step", bad) for bad in (0.0, 1.5, -0.1, math.nan, None)),
    *(("adam_beta2", bad) for bad in (0.0, 1.0, -0.1, math.nan, None)),
    *(("patience", bad) for bad in (0, -3, 1.5, True)),
    *(("schedule", bad) for bad in ("linear", None, ["cosine"])),
    *(("residual_rule", bad) for bad in ("newton", None)),
    *(("kl_columns", bad) for bad in (0, -2, 1.5, "all", True)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bad"), BAD)
def test_a_bad_value_is_refused_in_one_sentence(name, bad):
    config = unchecked(TrainingConfig, **asdict(TrainingConfig()) | {name: bad})
    with pytest.raises(ConfigurationError) as refusal:
        config.__post_init__()
    sentence = str(refusal.value)
    assert sentence.startswith(f"{name} is {bad!r}; expected ")
    assert "\n" not in sentence


def test_every_limit_of_what_is_allowed_is_allowed():
    TrainingConfig(
        max_steps=1, max_time=1e-3, batch_size=1, natural_step=1.0, natural_warmup=0,
        schedule_warmup=0, clip_norm=1.0, kl_columns=1, refresh_every=1, report_every=1, patience=1,
    )  # fmt: skip


def test_the_constant_learning_rate_is_constant():
    config = TrainingConfig(schedule="constant", learning_rate=3e-3)
    assert {config.learning_rate_at(k, k / 100) for k in range(100)} == {3e-3}


def test_the_cosine_rises_over_the_warmup_and_falls_to_nothing():
    config = TrainingConfig(schedule="cosine", learning_rate=0.4, schedule_warmup=10)
    assert config.learning_rate_at(0, 0.0) == pytest.approx(0.04)
    assert config.learning_rate_at(9, 0.0) == pytest.approx(0.4)
    assert config.learning_rate_at(500, 0.5) == pytest.approx(0.2)
    assert config.learning_rate_at(1000, 1.0) == pytest.approx(0.0, abs=1e-12)
    # A time budget that is overrun must not bring the rate up again.
    assert config.learning_rate_at(1000, 1.7) == pytest.approx(0.0, abs=1e-12)


def test_the_natural_step_warms_up_unless_the_likelihood_is_gaussian():
    config = TrainingConfig(schedule="constant", natural_step=0.1, natural_warmup=100)
    warm = [config.natural_step_at(k, 0.0, False) for k in range(200)]
    assert warm[:100] == pytest.approx([0.1 * (k + 1) / 100 for k in range(100)])
    assert warm[100:] == [0.1] * 100
    assert {config.natural_step_at(k, 0.0, True) for k in range(200)} == {0.1}


def test_the_natural_step_starts_no_lower_than_the_papers():
    config = TrainingConfig(natural_step=1e-4, natural_warmup=1000)
    assert config.natural_step_at(0, 0.0, False) == FIRST_NATURAL_STEP == 1e-5


def test_under_the_cosine_the_natural_step_falls_to_a_tenth():
    config = TrainingConfig(schedule="cosine", natural_step=0.1)
    assert config.natural_step_at(0, 0.0, True) == pytest.approx(0.1)
    assert config.natural_step_at(500, 0.5, True) == pytest.approx(0.05)
    assert config.natural_step_at(999, 1.0, True) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("asked", "residual", "columns"),
    [
        ("auto", EXACT_KL_UP_TO, None),
        ("auto", EXACT_KL_UP_TO + 1, 64),
        ("auto", 700, 64),
        ("auto", 7000, 640),
        ("auto", 10**6, 1024),
        (None, 10**6, None),
        (10, 10, None),
        (10, 11, 10),
    ],
)
def test_the_kl_is_exact_where_that_is_cheap_or_asked_for(asked, residual, columns):
    assert TrainingConfig(kl_columns=asked).columns(residual) == columns


def test_the_steps_of_many_residual_points_add_up_to_no_more_than_those_of_few():
    config = TrainingConfig(schedule="constant")
    few, more, most = (config.residual_step_at(0, 0.0, 1000, g) for g in (100, 700, 30_000))
    assert few == more == config.learning_rate
    assert 30_000 * most == pytest.approx(700 * more)
    given = TrainingConfig(schedule="constant", residual_step=0.01)
    assert given.residual_step_at(0, 0.0, 1000, 30_000) == pytest.approx(0.01)
