"""Transforms of skewed numbers: what they are, and which columns they are tried for."""

import json

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from orthogp.errors import FileError
from orthogp.tables import Learning, Plan, with_transforms
from orthogp.tables.monotone import Monotone, normal_scores, suitable_transform

RNG = np.random.default_rng(0)
WIDE = np.exp(2 * RNG.normal(size=500))


def test_positive_numbers_become_their_logarithm():
    found = suitable_transform(np.append(WIDE, np.nan))
    assert str(found) == "log"
    np.testing.assert_allclose(found(WIDE), np.log(WIDE))
    # New values below those of training have no logarithm of their own.
    np.testing.assert_allclose(found(np.array([-1.0, 0.0])), np.log(WIDE.min()))


def test_zeros_move_by_the_median_of_the_others():
    values = np.where(RNG.random(500) < 0.5, 0.0, WIDE)
    found = suitable_transform(values)
    shift = np.median(values[values > 0])
    np.testing.assert_allclose(found(values), np.log(values + shift))
    assert str(found) == f"log(x + {shift:.4g})"


@pytest.mark.parametrize("values", [RNG.standard_t(2, size=500), -WIDE, 1e300 * (WIDE - 1)])
def test_other_skewed_numbers_become_normal_scores(values):
    found = suitable_transform(values)
    assert found.kind == "quantile"
    z = found(values)
    expected = stats.norm.ppf((stats.rankdata(values) - 0.5) / len(values))
    # Between two of 64 knots the line is not the curve.
    np.testing.assert_allclose(z, expected, atol=0.1)
    beyond = found(np.sort(np.append(values, [2 * values.min(), 2 * values.max()])))
    assert (np.diff(beyond) > 0).all()


def test_equal_values_have_their_middle_rank():
    values = np.repeat([0.0, 1.0, 5.0], [6, 2, 2])
    found = normal_scores(values)
    expected = stats.norm.ppf([0.3, 0.7, 0.9])
    np.testing.assert_allclose(found(np.array([0.0, 1.0, 5.0])), expected)
    # Halfway between two knots, and as far beyond the last as the last is from the one before.
    half = found(np.array([0.5, 9.0]))
    np.testing.assert_allclose(half, [expected[:2].mean(), 2 * expected[2] - expected[1]])


def test_numbers_that_are_not_skewed_stay_as_they_are():
    assert suitable_transform(RNG.normal(size=500)) is None
    assert suitable_transform(RNG.uniform(size=500)) is None
    # Codes, and numbers of too few values to tell.
    assert suitable_transform(np.array([0.0] * 400 + [100.0])) is None


def test_a_plan_with_transforms_survives_its_file_and_refuses_another():
    table = pa.table({"wide": WIDE, "even": RNG.normal(size=500), "tails": -WIDE})
    plan = with_transforms(Learning().plan(table), table)
    assert [c.transform is not None for c in plan.numbers] == [True, False, True]
    assert not plan.plain
    stored = json.dumps(plan.as_json())
    assert Plan.from_json(json.loads(stored)) == plan
    for wrong in ({"kind": "log", "x": [0.0], "z": [0.0]}, {"kind": "quantile", "x": [1.0, 0.0],
                  "z": [0.0, 1.0]}, {"kind": "exp", "x": [1.0], "z": [1.0]}, "log",
                  {"kind": "quantile", "x": [1.0], "z": [0.0]}):  # fmt: skip
        broken = json.loads(stored)
        broken["numbers"][0]["transform"] = wrong
        with pytest.raises(FileError):
            Plan.from_json(broken)


def test_a_transform_must_rise():
    with pytest.raises(ValueError, match="monotone"):
        Monotone("quantile", (0.0, 1.0), (0.0, 0.0))


@pytest.mark.parametrize(
    "values", [WIDE, np.append(WIDE, np.zeros(100)), RNG.normal(size=500) ** 3]
)
def test_the_inverse_gives_the_numbers_back(values):
    found = suitable_transform(values)
    inside = np.sort(values)[1:-1]
    np.testing.assert_allclose(found.inverse(found(inside)), inside, rtol=1e-9, atol=1e-9)
    if found.kind == "quantile":
        assert (found.inverse(np.array([-50.0, 50.0])) == [values.min(), values.max()]).all()
