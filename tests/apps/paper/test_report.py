"""The report: whatever records there are, it says what they show and what they lack."""

import re
from dataclasses import replace
from html import unescape

import pytest

from browser import PHONE, visit
from orthogp.apps.paper import published
from orthogp.apps.paper.experiments import CLASSIFICATION_COLUMNS
from orthogp.apps.paper.records import Job, Record
from orthogp.apps.paper.report import write_report

ORIGIN = {
    "machine": {"device": "cuda", "gpu": "Some GPU", "processor": "Some CPU"},
    "versions": {"torch": "2.0"},
    "commit": "abc1234",
    "finished": "2024-05-06T07:08:09+00:00",
}
SECOND = {"regression": "rmse", "classification": "accuracy"}


def record(task, dataset, method, off=0.0, split=0, **changes) -> Record:
    """The paper's own figures, the log-likelihood off by some."""
    figures = {m: published.figures(task, m)[dataset] for m in ("log_likelihood", SECOND[task])}
    metrics = {m: row.get(method, 0.5) for m, row in figures.items()}
    metrics["log_likelihood"] += off
    whole = Record(
        Job(task, dataset, method, split),
        "done",
        settings={"basis": method.lower(), "training": {"max_steps": 20_000, "seed": split}},
        data={"task": task, "test_rows": 1500},
        metrics=metrics,
        steps=20_000,
        seconds=12.5,
        history=history(),
        **ORIGIN,
    )
    return replace(whole, **changes)


def history(*metrics):
    values = [-1.0, 0.1, 0.5, 0.7]
    return [
        {"step": 100.0 * i, "seconds": 1.5 * i, "bound": v} | dict.fromkeys(metrics, v)
        for i, v in enumerate(values, 1)
    ]


def every_method(task, dataset):
    columns = {
        "regression": published.REGRESSION_COLUMNS,
        "classification": published.CLASSIFICATION_COLUMNS,
    }[task]
    return [record(task, dataset, method) for method in (*columns, "Default")]


def curves(experiment, dataset):
    shared = {"history": history("rmse", "log_likelihood"), "steps": 400, **ORIGIN}
    found = [
        Record(Job(experiment, dataset, method, 0), "done", **shared)
        for method in CLASSIFICATION_COLUMNS
    ]
    level = {"rmse": 0.2, "log_likelihood": 0.9, "bound": 1.0}
    return [*found, Record(Job(experiment, dataset, "Optimum", 0), "done", metrics=level, **ORIGIN)]


RECORDS = {
    "illustration": curves("illustration", "kin40k"),
    "wall-clock": curves("wall-clock", "terrain"),
    "regression": every_method("regression", "pol"),
    "classification": every_method("classification", "ringnorm"),
}
COMMON = ["Summary", "Jobs and settings", "Failed and missing"]
TABLES = [
    "What the results must show", "Where it falls short", "Summary tables",
    "Tables of every data set", "Training curves",
]  # fmt: skip
OWN_SECTIONS = {
    "illustration": ["Illustration curves"],
    "wall-clock": ["Wall-clock curves"],
    "regression": TABLES,
    "classification": TABLES,
}


def report(records, tmp_path) -> str:
    return write_report(records, tmp_path / "report.html").read_text()


def sections(page: str) -> list[str]:
    return [unescape(text) for text in re.findall(r"<h2[^>]*>(.*?)</h2>", page)]


def part(page: str, heading: str) -> str:
    """The text of one section, a space between elements."""
    body = page.split(f">{heading}</h2>")[1].split("<h2")[0].split("<script>")[0]
    return unescape(re.sub(r"(\s*<[^>]*>\s*)+", " ", body))


def test_without_records_it_says_so_in_one_sentence(tmp_path):
    page = report([], tmp_path)
    assert "There are no records yet" in page
    assert page.count("<p>") == 1
    assert sections(page) == []


@pytest.mark.parametrize("experiment", RECORDS)
def test_each_experiment_alone_makes_a_report(experiment, tmp_path):
    page = report(RECORDS[experiment], tmp_path)
    assert set(sections(page)) == {*COMMON, *OWN_SECTIONS[experiment]}
    assert sections(page)[0] == "Summary"


def test_all_of_them_together_and_one_that_is_not_known(tmp_path):
    unknown = Record(Job("my own", "my table", "MyMethod", 0), "done", history=history())
    page = report([*(r for group in RECORDS.values() for r in group), unknown], tmp_path)
    assert set(sections(page)) == {*COMMON, *TABLES, "Illustration curves", "Wall-clock curves"}
    assert "MyMethod" in part(page, "Training curves")


def test_the_summary_says_what_was_run(tmp_path):
    failed = record("regression", "kin40k", "Orth", status="failed", reason="no memory")
    summary = part(report([*RECORDS["regression"], failed], tmp_path), "Summary")
    assert "jobs done 9" in summary
    assert "jobs failed 1" in summary
    assert "run on Some GPU" in summary
    assert "commit abc1234" in summary
    assert "last finished 2024-05-06 07:08" in summary
    # Of 12 data sets of the paper and 9 methods, those of pol count.
    assert re.search(r"pol, kin40k Coupled300, .*, Default 1 9 99 ", summary)


def test_claims_that_fail_are_where_it_falls_short(tmp_path):
    records = [r for r in every_method("regression", "pol") if r.job.method != "OrthNat"]
    good = report([*records, record("regression", "pol", "OrthNat")], tmp_path)
    short = report([*records, record("regression", "pol", "OrthNat", off=-0.2)], tmp_path)
    claim = "OrthNat is within 0.03 of the paper's log-likelihood on pol"
    assert f"{claim} ✓ pass" in part(good, "What the results must show")
    assert claim not in part(good, "Where it falls short")
    assert f"{claim} ✗ fail" in part(short, "Where it falls short")
    assert "difference -0.2000" in part(short, "Where it falls short")


def test_where_nothing_can_be_checked_it_does_not_claim_success(tmp_path):
    page = report([record("classification", "ringnorm", "Coupled")], tmp_path)
    assert "No check can be made" in part(page, "Where it falls short")


def test_a_cell_tells_ours_the_papers_and_the_difference(tmp_path):
    two = [record("regression", "pol", "OrthNat", off, i) for i, off in enumerate((0.01, 0.03))]
    page = report(two, tmp_path)
    paper = published.figures("regression", "log_likelihood")["pol"]["OrthNat"]
    hint = (
        f"OrthNat, pol\nours {paper + 0.02:.4f} ± 0.0100, mean of 2 splits\n"
        f"paper {paper:.4f}\ndifference +0.0200"
    )
    assert f'title="{hint}"' in page
    assert "Coupled, pol\nours missing: not run\npaper " in page


def test_failed_and_missing_come_with_their_reasons(tmp_path):
    reason = "NumericalError: <b>not</b> finite & lost"
    records = [
        record("regression", "pol", "Orth", status="failed", reason=reason),
        record("regression", "pol", "OrthNat", steps=500),
    ]
    gaps = part(report(records, tmp_path), "Failed and missing")
    assert f"pol regression Orth 0 {reason}" in gaps
    assert "pol regression OrthNat only 500 of 20 000 steps" in gaps
    assert "pol regression Coupled300, CoupledNat300, Coupled, " in gaps
    assert "slice regression all no data set here" in gaps


def test_settings_that_jobs_share_are_said_once(tmp_path):
    records = [record("regression", "pol", m) for m in ("Orth", "OrthNat")]
    jobs = part(report(records, tmp_path), "Jobs and settings")
    assert "regression: pol, 2 jobs" in jobs
    assert "max_steps 20\u202f000, seed 0." in jobs
    assert jobs.count("max_steps") == 1
    assert re.search(r"Orth 0 done 20\u202f000 12.5 0 abc1234 Some GPU basis orth ", jobs)


def test_records_without_histories_have_no_curves(tmp_path):
    page = report([r.without_history() for r in RECORDS["regression"]], tmp_path)
    assert "Training curves" not in sections(page)


def test_a_method_without_a_history_is_a_level(tmp_path):
    page = report(RECORDS["illustration"], tmp_path)
    charts = re.findall(r'<figure class="chart">.*?</figure>', page, re.DOTALL)
    assert [chart.count('class="level"') for chart in charts] == [1, 1, 1]
    assert [chart.count('class="series"') for chart in charts] == [6, 6, 6]


@pytest.mark.browser
def test_the_whole_report_in_a_browser(browser, tmp_path):
    nasty = "<img src=x onerror=alert(1)>"
    records = [r for group in RECORDS.values() for r in group]
    records.append(Record(Job("regression", nasty, "</script>", 0), "failed", nasty))
    path = write_report(records, tmp_path / "report.html")
    with visit(browser, path) as view:
        view.hover(view.page.locator("td[data-hint^='OrthNat, pol']").first)
        assert re.search(r"ours .*\npaper .*\ndifference ", view.tip)
        view.page.get_by_role("link", name="pol").first.click()
        jobs = view.page.locator("details", has_text="regression: pol")
        assert jobs.locator("text=max_steps").is_visible()
        assert "OrthNat" in view.texts("figure.chart .legend li")
        assert view.page.locator("main img").count() == 0


@pytest.mark.browser
def test_the_report_fits_a_phone(browser, tmp_path):
    path = write_report([r for group in RECORDS.values() for r in group], tmp_path / "r.html")
    with visit(browser, path, **PHONE) as view:
        assert view.overflow() <= 0
        view.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = 1")
        assert view.overflow() <= 0
