"""Pages: what comes from data stays text, and charts lie where they should."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthogp.errors import DataError
from orthogp.plotting.pages import Chart, Page, Series, Table
from orthogp.plotting.pages.axes import axis
from orthogp.plotting.pages.charts import MOST_POINTS, chart_markup
from orthogp.plotting.pages.markup import element, json_script
from orthogp.plotting.pages.numbers import linear_ticks, log_ticks, number
from sample_pages import NASTY, PNG, curve, example, nasty


class Reader(HTMLParser):
    """Elements, their attributes and the text a reader sees, as a browser would find them."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.cdata_elem is None:
            self.text += data


@pytest.mark.parametrize("text", NASTY)
def test_what_comes_from_data_stays_text(text):
    plain, found = Reader(nasty("plain").render()), Reader(nasty(text).render())
    assert found.tags == plain.tags
    assert [name for name, _ in found.attributes] == [name for name, _ in plain.attributes]
    assert found.text == plain.text.replace("plain", text)


@pytest.mark.parametrize("text", NASTY)
def test_data_for_the_script_come_back_as_they_were(text):
    script = json_script({text: [1.5, text]})
    inside = script.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == {text: [1.5, text]}


def test_data_for_the_script_must_be_finite():
    with pytest.raises(ValueError, match="Out of range"):
        json_script([math.nan])


def test_markup_is_escaped_once():
    inner = element("b", "a < b")
    assert element("p", inner, " & c", title='"') == (
        '<p title="&quot;"><b>a &lt; b</b> &amp; c</p>'
    )
    assert element("td", class_="n", data_value=None, hidden=True) == '<td class="n" hidden></td>'


def test_a_page_names_nothing_to_fetch_and_allows_no_other_script():
    html = example().render()
    assert set(re.findall(r"https?://[^\"]*", html)) == {"http://www.w3.org/2000/svg"}
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in html
    assert "default-src &#x27;none&#x27;" in html


def test_contents_lead_to_every_heading():
    page = Page("t")
    page.section("Same name")
    page.subsection("Same name")
    page.section("<é>")
    found = Reader(page.render()).attributes
    targets = [str(value)[1:] for name, value in found if name == "href" and value != "data:,"]
    assert len(set(targets)) == 3
    assert targets == [value for name, value in found if name == "id"]


def test_details_hold_what_is_added_inside():
    page = Page("t")
    with page.details("outer"):
        page.text("in")
        with page.details("inner"):
            page.text("deeper")
    page.text("out")
    assert (
        "<details><summary>outer</summary><p>in</p>"
        "<details><summary>inner</summary><p>deeper</p></details></details><p>out</p>"
    ) in page.render()


def test_a_name_that_utf8_cannot_write_does_no_harm(tmp_path):
    page = Page("name\udc80")
    assert "name?" in page.write(tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_table_is_refused_when_a_row_does_not_fit():
    with pytest.raises(DataError, match="a row has 1 cells and the table 2 columns"):
        Table(["a", "b"], [["only"]])


def test_a_picture_is_part_of_the_page():
    page = Page("t")
    page.picture(PNG, "a picture")
    page.picture(b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "another")
    assert f"data:image/png;base64,{base64.b64encode(PNG).decode()}" in page.render()
    assert "data:image/svg+xml;base64," in page.render()
    with pytest.raises(DataError, match="PNG or an SVG"):
        page.picture(b"GIF89a", "no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.25, "−0.25"), (0.1 + 0.2, "0.3"), (20000.0, "20\u202f000"),
        (1234567.0, "1\u202f234\u202f567"), (1e9, "1e9"), (-2.5e-5, "−2.5e−5"), (1e-4, "0.0001"),
        (100.0, "100"), (math.nan, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_numbers_as_a_reader_wants_them(value, text):
    assert number(value) == text


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_ticks_are_few_and_inside(low, width):
    ticks = linear_ticks(low, low + width)
    slack = 1e-8 * (abs(low) + width)
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))
    assert low - slack <= ticks[0]
    assert ticks[-1] <= low + width + slack


@given(st.floats(-8, 8), st.floats(0.01, 12))
def test_log_ticks_are_few_and_inside(exponent, decades):
    low, high = 10.0**exponent, 10.0 ** (exponent + decades)
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))
    assert low * (1 - 1e-8) <= ticks[0]
    assert ticks[-1] <= high * (1 + 1e-8)


def test_an_axis_places_values_between_its_ends():
    linear = axis([0.0, 10.0], 100.0, 200.0, "linear", 0.0)
    assert [linear.place(v) for v in (0.0, 2.5, 10.0)] == [100.0, 125.0, 200.0]
    log = axis([1.0, 100.0], 0.0, 100.0, "log", 0.0)
    assert [log.place(v) for v in (1.0, 10.0, 100.0)] == [0.0, 50.0, 100.0]
    alone = axis([3.0], 0.0, 100.0, "linear", 0.05)
    assert alone.place(3.0) == 50.0


def chart_data(chart: Chart) -> dict:
    found = re.search(r"<script[^>]*>(.*)</script>", chart_markup(chart, "c"))
    assert found is not None
    return json.loads(found[1])


def test_a_chart_leaves_out_what_cannot_be_drawn():
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, -1.0), (3.0, 4.0), (math.inf, 1.0)]
    linear = Chart("t", "x", "y", [Series("a", points, "red")])
    assert chart_data(linear)["series"][0]["x"] == [0.0, 2.0, 3.0]
    log = Chart("t", "x", "y", [Series("a", points, "red")], x_axis="log", y_axis="log")
    assert chart_data(log)["series"][0]["x"] == [3.0]
    nothing = Chart("t", "x", "y", [Series("a", [(0.0, math.nan)], "red")])
    assert "Nothing to draw" in chart_markup(nothing, "c")


def test_a_long_series_keeps_its_ends():
    drawn = chart_data(Chart("t", "x", "y", [Series("a", curve(10 * MOST_POINTS + 7), "red")]))
    assert len(drawn["series"][0]["x"]) <= MOST_POINTS + 1
    assert drawn["series"][0]["x"][0] == 1.0
    assert drawn["series"][0]["x"][-1] == 10 * MOST_POINTS + 7


def test_the_first_moments_of_a_curve_do_not_squash_the_rest():
    points = [(0.0, -1e6), *((float(i), 0.1 * i) for i in range(1, 100))]
    whole = Chart("t", "x", "y", [Series("a", points, "red")])
    settled = Chart("t", "x", "y", [Series("a", points, "red")], skip=5.0)
    assert chart_data(whole)["series"][0]["span"] == [-1e6, 9.9]
    assert chart_data(settled)["series"][0]["span"] == [0.5, 9.9]
