"""Names, labels and cells from strangers: shown in pages and tables, and never run."""

from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

from orthogp.apps.paper.records import Job, Record
from orthogp.apps.paper.report import write_report
from orthogp.apps.tabular.writing import harmless
from sample_pages import NASTY


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.active, self.text = Counter(), ""

    def handle_starttag(self, tag, attrs):
        if (
            tag in ("script", "img", "iframe", "object")
            and ("type", "application/json") not in attrs
        ):
            self.active[tag] += 1
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("text", NASTY)
def test_the_papers_report_shows_markup_and_does_not_run_it(text, tmp_path):
    plain = Record(
        Job("regression", "plain", "OrthNat", 0), "done",
        data={"task": "regression", "test_rows": 9},
        metrics={"log_likelihood": 0.1, "rmse": 0.5}, steps=20_000, machine={"device": "cuda"},
        commit="abc1234", history=[{"step": 1.0, "seconds": 1.0, "bound": 0.5}] * 2,
    )  # fmt: skip
    nasty = replace(
        plain, job=Job("regression", text, "OrthNat", 0), machine={"device": text, "gpu": text},
        versions={text: text}, commit=text,
    )  # fmt: skip
    failed = replace(nasty, job=Job("regression", text, text, 1), status="failed", reason=text)
    pages = []
    for number, records in enumerate(([plain], [plain, nasty, failed])):
        reader = Reader()
        page = write_report(records, tmp_path / str(number)).read_text(encoding="utf-8")
        reader.feed(page)
        pages.append((page, reader))
    (_, before), (page, after) = pages
    assert text not in page
    assert text in after.text
    # No other script, picture or frame than without the nasty names.
    assert after.active == before.active


def test_every_start_of_a_formula_is_quoted_and_no_number_is():
    starts = ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"]
    cells = [f"{start}1" for start in starts] + ["1", "a=1", "", None, "'=1"]
    batch = pa.RecordBatch.from_pydict(
        {"=text": pa.array(cells), "numbers": pa.array(np.linspace(-3.0, 3.0, len(cells)))}
    )
    safe = harmless(batch)
    expected = [f"'{start}1" for start in starts] + ["1", "a=1", "", None, "'=1"]
    assert safe.schema.names == ["'=text", "numbers"]
    assert safe.column(0).to_pylist() == expected
    assert safe.column(1).equals(batch.column(1))
