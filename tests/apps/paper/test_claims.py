"""What the results must show: passed by the paper's own figures, failed where one is moved."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from orthogp.apps.paper import published
from orthogp.apps.paper.tables import ResultCell, claims, print_claims
from orthogp.apps.paper.tables.claims import accuracy_error
from paper_records import changed, papers, record

CLASSES = ("adult", "nursery")


def statuses(records, text, **options):
    return [c.status for c in claims(records, **options) if text in c.statement]


def test_without_records_nothing_can_be_said():
    found = claims([])
    assert {c.status for c in found} == {"cannot say"}
    assert all(c.figures for c in found)
    assert len({c.statement for c in found}) == len(found)


def test_the_papers_own_figures_pass():
    found = claims([*papers(), *papers("classification", CLASSES)])
    assert "fail" not in {c.status for c in found}
    passed = {c.group for c in found if c.status == "pass"}
    assert passed == {
        "OrthNat reproduces the paper",
        "OrthNat is ahead of the coupled basis of the same covariance",
        "Decoupled is last in log-likelihood",
        "Orth's accuracy is the paper's",
        "OrthNat's accuracy is the paper's",
    }
    assert [c.status for c in found if "reproduces" in c.group] == ["pass"] * 10


@pytest.mark.parametrize(
    ("metric", "value", "status"),
    [
        ("log_likelihood", 0.1586 + 0.029, "pass"),
        ("log_likelihood", 0.1586 - 0.031, "fail"),
        ("log_likelihood", 0.1586 + 0.031, "fail"),
        ("rmse", 0.1906 * 1.029, "pass"),
        ("rmse", 0.1906 * 1.031, "fail"),
    ],
)
def test_orthnat_is_held_to_the_papers_figures(metric, value, status):
    name = "RMSE" if metric == "rmse" else "log-likelihood"
    records = changed(papers(), "pol", "OrthNat", **{metric: value})
    assert statuses(records, f"of the paper's {name} on pol") == [status]


@pytest.mark.parametrize(
    ("dataset", "behind", "status"),
    [
        ("kin40k", -0.001, "pass"),
        ("kin40k", 0.001, "fail"),
        ("elevators", 0.004, "pass"),
        ("elevators", 0.006, "fail"),
    ],
)
def test_orthnat_may_be_behind_only_where_the_paper_has_a_tie(dataset, behind, status):
    coupled = published.figures("regression", "log_likelihood")[dataset]["CoupledNat300"]
    records = changed(papers(), dataset, "OrthNat", log_likelihood=coupled - behind)
    text = f"OrthNat is ahead of CoupledNat300 in log-likelihood on {dataset}"
    assert statuses(records, text) == [status]


def test_decoupled_is_known_to_be_last_only_against_all():
    text = "Decoupled is last in log-likelihood on pol"
    records = papers(datasets=["pol"])
    without = [r for r in records if r.job.method != "Hybrid"]
    assert statuses(records, text) == ["pass"]
    assert statuses(without, text) == ["cannot say"]
    assert statuses(changed(without, "pol", "Decoupled", log_likelihood=0.08), text) == ["fail"]
    short = [replace(r, steps=100) for r in records]
    assert statuses(short, text) == ["cannot say"]
    assert statuses(short, text, full_steps=100) == ["pass"]


@pytest.mark.parametrize(
    ("dataset", "shift", "status"),
    [
        # Two standard errors of 1000 rows are 3.05 points on adult, 1.45 on nursery.
        ("adult", -3.0, "pass"),
        ("adult", -3.4, "fail"),
        ("nursery", 0.9, "pass"),
        ("nursery", -1.9, "fail"),
    ],
)
def test_accuracy_is_held_to_a_point_or_two_standard_errors(dataset, shift, status):
    paper = published.figures("classification", "accuracy")[dataset]["OrthNat"]
    records = papers("classification", CLASSES)
    records = changed(records, dataset, "OrthNat", accuracy=paper + shift)
    text = f"OrthNat is within 1 point or 2 standard errors of the paper's accuracy on {dataset}"
    assert statuses(records, text) == [status]


@pytest.mark.parametrize(("method", "column"), [("OrthARDUnit", "Orth"), ("OrthNatARD", "OrthNat")])
@pytest.mark.parametrize(("shift", "steps", "status"), [
    (-1.0, 20_000, "pass"), (-1.9, 20_000, "fail"), (0.0, 100, "cannot say"),
])  # fmt: skip
def test_a_lengthscale_for_every_input_is_held_to_the_column_it_explains(
    method, column, shift, steps, status
):
    paper = published.figures("classification", "accuracy")["nursery"][column]
    one = record("nursery", method, "classification", accuracy=paper + shift)
    text = f"{method} is within 1 point or 2 standard errors of the paper's {column} in accuracy"
    assert statuses([replace(one, steps=steps)], f"{text} on nursery") == [status]


def test_the_error_of_an_accuracy_is_both_papers_and_ours():
    one = record("adult", "Orth", "classification", accuracy=80.0)
    both = math.sqrt(0.8 * 0.2 / 1000 + 0.9 * 0.1 / 1000)
    assert accuracy_error(ResultCell(80.0, original=90.0, records=(one,))) == pytest.approx(
        100 * both
    )
    splits = math.sqrt(0.8 * 0.2 / 2000 + 0.9 * 0.1 / 1000)
    found = accuracy_error(ResultCell(80.0, original=90.0, records=(one, one)))
    assert found == pytest.approx(100 * splits)
    assert accuracy_error(ResultCell(80.0, original=90.0, records=(replace(one, data={}),))) == 0.0


def test_default_is_held_against_orthnat_on_each_set_it_ran_on():
    records = [*papers(), record("pol", "Default", log_likelihood=0.9)]
    records += [record("kin40k", "Default", log_likelihood=0.1)]
    records += [record("terrain", "Default", log_likelihood=0.1)]
    text = "Default is ahead of OrthNat in log-likelihood"
    assert statuses(records, f"{text} on pol") == ["pass"]
    assert statuses(records, f"{text} on kin40k") == ["fail"]
    assert statuses(records, f"{text} on terrain") == ["cannot say"]
    assert statuses(records, f"{text} on protein") == []
    assert statuses(records, f"{text}, regression: 3droad") == ["cannot say"]


@pytest.mark.parametrize(
    ("default", "boosting", "status"),
    [
        ([1.0, 1.0, 0.0], [0.0, 0.0, 1.0], "pass"),
        ([1.0, 0.0, 0.0], [0.0, 1.0, 1.0], "fail"),
        ([1.0, 0.0], [0.0, 1.0], "fail"),
        ([1.0, 1.0, 1.0], [0.0], "cannot say"),
        ([1.0, 1.0, 1.0], [0.0, 0.0], "pass"),
    ],
)
def test_most_sets_are_more_than_half_of_all_that_either_ran_on(default, boosting, status):
    sets = ("pol", "kin40k", "protein")
    columns = (("Default", default), ("Boosting", boosting))
    records = [
        record(dataset, method, log_likelihood=value)
        for method, values in columns
        for dataset, value in zip(sets, values, strict=False)
    ]
    assert statuses(records, "on most regression sets") == [status]


def test_claims_are_printed_with_their_marks():
    console = Console(file=io.StringIO(), width=160, record=True)
    records = changed(papers(), "pol", "OrthNat", rmse=0.3)
    print_claims(claims(records), console)
    shown = console.export_text().split("\n")
    (line,) = (line for line in shown if "paper's RMSE on pol" in line)
    assert "✗" in line
    assert "0.3000, paper 0.1906, difference +0.1094" in line


def test_methods_are_compared_on_the_splits_that_both_have():
    # Over all of its splits OrthNat would be ahead; on the one they share it is not.
    records = [
        record("pol", "OrthNat", split=0, log_likelihood=0.1, rmse=1.0),
        record("pol", "OrthNat", split=1, log_likelihood=0.9, rmse=1.0),
        record("pol", "CoupledNat300", split=0, log_likelihood=0.2, rmse=1.0),
    ]
    text = "OrthNat is ahead of CoupledNat300 in log-likelihood on pol"
    assert statuses(records, text) == ["fail"]
    apart = [*records[1:2], records[2]]
    assert statuses(apart, text) == ["cannot say"]
