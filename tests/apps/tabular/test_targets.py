"""What the target is taken for, why, and what cannot be one."""

import numpy as np
import pyarrow as pa
import pytest

from orthogp.apps.tabular.targets import read_target
from orthogp.errors import ConfigurationError, DataError


@pytest.mark.parametrize(
    ("values", "task", "reason"),
    [
        ([1.5, 2.0, 3.0], "regression", "not whole"),
        (list(range(11)), "regression", "11 distinct values, and more than 10"),
        (list(range(10)), "classification", "10 distinct values, and no more than 10"),
        ([0.0, 1.0, None, 1.0], "classification", "2 distinct"),
        (["x", "y"], "classification", "text"),
        ([True, False], "classification", "truth values"),
    ],
)
def test_the_task_follows_from_the_values(values, task, reason):
    found = read_target(pa.array(values), "t", None)
    assert found.task == task
    assert reason in found.reason
    assert "'t'" in found.reason


def test_labels_keep_their_type():
    assert read_target(pa.array([1.0, 2.0]), "t", None).values.tolist() == [1, 2]
    assert read_target(pa.array([1.0, 2.0]), "t", None).values.dtype == np.int64
    assert read_target(pa.array([True, None, False]), "t", None).values.tolist() == [True, False]
    words = read_target(pa.array(["x", "", None, "NA"]).dictionary_encode(), "t", None)
    assert words.values.tolist() == ["x", "NA"]
    assert words.present.tolist() == [True, False, False, True]


def test_a_task_that_is_asked_for():
    found = read_target(pa.array([1, 2, 1]), "t", "regression")
    assert (found.task, found.values.tolist()) == ("regression", [1.0, 2.0, 1.0])
    assert "--task" in found.reason
    assert read_target(pa.array(range(50)), "t", "classification").task == "classification"


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (["x", "y"], "regression", "regression needs numbers"),
        ([0.5, 1.0], "classification", "not whole"),
        (["x", "x"], None, "one class"),
        ([7, 7], None, "one class"),
        ([7.5, 7.5], None, "nothing to learn"),
        ([None, None], None, "missing"),
        ([1.5, float("inf")], None, "1 infinite"),
        ([f"row {i}" for i in range(300)], None, "300 classes"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), None, "date32"),
    ],
)
def test_what_cannot_be_a_target(values, task, message):
    with pytest.raises(DataError, match=message):
        read_target(pa.array(values), "t", task)


def test_an_unknown_task():
    with pytest.raises(ConfigurationError, match="--task"):
        read_target(pa.array([1, 2]), "t", "ranking")
