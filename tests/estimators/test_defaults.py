"""What an estimator chooses when it is not told."""

import pytest

from orthogp import OrthogonalGPRegressor
from orthogp.estimators.defaults import count_held_out, point_counts, training_config


def settings(**given):
    return OrthogonalGPRegressor(**given).get_params(deep=False)


@pytest.mark.parametrize(("rows", "steps"), [(50, 200), (3000, 900), (10**6, 10_000)])
def test_steps_grow_with_the_rows(rows, steps):
    assert training_config(settings(), rows, True, 0).max_steps == steps


@pytest.mark.parametrize(
    ("rows", "steps", "batch"),
    [(50, 200, 50), (1024, 200, 1024), (6000, 450, 512), (12_000, 950, 1000), (10**6, 3000, 4096)],
)
def test_noise_that_is_not_gaussian_takes_fewer_steps_and_larger_batches(rows, steps, batch):
    config = training_config(settings(), rows, False, 0)
    assert (config.max_steps, config.batch_size) == (steps, batch)


def test_a_gpu_takes_more_steps_for_a_small_table():
    steps = [training_config(settings(), n, False, 0, device="cuda").max_steps for n in (50, 10**6)]
    assert steps == [1000, 3000]


def test_a_whole_data_set_in_a_batch_takes_exact_steps():
    small, large = (training_config(settings(), n, True, 0) for n in (1024, 1025))
    assert (small.batch_size, small.natural_step) == (1024, 1.0)
    assert (large.batch_size, large.natural_step) == (1024, 0.1)
    # One exact step would overshoot where the likelihood is not Gaussian.
    assert training_config(settings(), 500, False, 0).natural_step == 0.1


def test_a_short_run_takes_longer_steps():
    rates = [training_config(settings(), n, True, 0).learning_rate for n in (50, 3000, 10**6)]
    assert rates == pytest.approx([0.15, 0.03 * (5000 / 900) ** 0.5, 0.03])
    assert training_config(settings(max_steps=1), 50, True, 0).learning_rate == 0.2
    assert training_config(settings(max_steps=10**5), 50, True, 0).learning_rate == 0.03


def test_a_small_table_that_starts_close_takes_fewer_and_shorter_steps():
    found = [training_config(settings(), n, True, 0, started=True) for n in (50, 900, 2900)]
    assert [config.max_steps for config in found] == [100, 100, 600]
    rates = [config.learning_rate for config in found]
    assert rates == pytest.approx([0.03 * 3**0.5, 0.03 * 3**0.5, 0.03])
    assert training_config(settings(max_steps=1), 50, True, 0, started=True).learning_rate == 0.2


def test_a_short_run_forgets_sooner():
    betas = [training_config(settings(), n, True, 0).adam_beta2 for n in (50, 3000, 10**6)]
    assert betas == pytest.approx([0.95, 1 - 1 / 90, 0.99])
    others = [training_config(settings(), n, False, 0).adam_beta2 for n in (50, 6000, 10**6)]
    assert others == pytest.approx([0.95, 1 - 1 / 45, 1 - 1 / 300])
    assert training_config(settings(max_steps=1), 50, True, 0).adam_beta2 == 0.5


def test_what_is_given_is_taken():
    given = {"max_steps": 7, "batch_size": 5, "learning_rate": 0.5, "natural_step": 0.25,
             "adam_beta2": 0.9,
             "schedule": "constant", "kl_columns": 3, "clip_norm": 2.0, "max_time": 9.0,
             "residual_rule": "diagonal", "train_points": False}  # fmt: skip
    config = training_config(settings(**given), 100, True, 11).as_dict()
    assert {name: config[name] for name in given} == given
    assert config["seed"] == 11
    assert config["patience"] is None
    assert training_config(settings(early_stopping=True), 100, True, 0).patience == 10


def test_warm_up_is_a_tenth_of_a_short_run():
    assert training_config(settings(max_steps=40), 100, True, 0).schedule_warmup == 4
    assert training_config(settings(max_steps=9000), 100, True, 0).schedule_warmup == 100


def test_no_more_points_than_rows():
    assert point_counts(settings(), 10**6) == (300, 700)
    assert point_counts(settings(), 400) == (300, 400)
    assert point_counts(settings(basis="coupled"), 10**6) == (300, 0)


@pytest.mark.parametrize(
    ("rows", "fraction", "stopping", "held_out"),
    [
        (999, 0.1, False, 100),
        (990, 0.1, False, 0),
        (10**6, 0.1, False, 5000),
        (10**6, None, False, 0),
        (10**6, 0.0, False, 0),
        (50, 0.1, True, 5),
        (3, 0.1, True, 1),
        (2, 0.9, True, 1),
    ],
)
def test_rows_held_out(rows, fraction, stopping, held_out):
    assert count_held_out(rows, fraction, stopping) == held_out
