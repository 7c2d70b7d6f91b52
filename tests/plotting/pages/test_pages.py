"""Pages: what comes from data stays text, and charts show what they should."""

import base64
import hashlib
import math
import re
from collections import Counter
from html.parser import HTMLParser

import matplotlib as mpl
import pytest

from orthogp.errors import DataError
from orthogp.plotting.pages import Chart, Level, Page, Series, Table
from orthogp.plotting.pages.charts import chart_markup
from orthogp.plotting.pages.markup import element
from orthogp.plotting.pages.tables import number
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


def test_markup_is_escaped_once():
    inner = element("b", "a < b")
    assert element("p", inner, " & c", title='"') == (
        '<p title="&quot;"><b>a &lt; b</b> &amp; c</p>'
    )
    assert element("td", class_="n", data_value=None, hidden=True) == '<td class="n" hidden></td>'


def test_a_page_names_nothing_to_fetch_and_allows_no_other_script():
    html = example().render()
    assert not re.search("https?://", html)
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
    with pytest.raises(DataError, match="1 cells"):
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


def series(points, colour="red", **options) -> Chart:
    return Chart("t", "x", "y", [Series("a", points, colour)], **options)


def drawn(chart: Chart, kind: str) -> list[str]:
    """The lines of a kind, `series` or `level`, each as the data of its path."""
    found = chart_markup(chart, "c")
    return re.findall(rf'<g class="{kind}"[^>]*>\s*<path d="([^"]*)"', found)


def labels(chart: Chart) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", chart_markup(chart, "c"))


def test_the_same_charts_give_the_same_page_whatever_the_settings_of_matplotlib():
    one = example().render()
    with mpl.rc_context({"axes.ymargin": 0.3, "svg.fonttype": "path", "ytick.minor.visible": True}):
        assert example().render() == one


def test_a_chart_says_what_it_shows():
    chart = Chart("Loss", "step", "nats", [Series("slow", curve(3), "red")])
    attributes = dict(Reader(chart_markup(chart, "c")).attributes)
    assert attributes["role"] == "img"
    assert attributes["aria-label"] == "Loss: nats against step, of slow"


def test_charts_of_one_page_share_no_ids_and_find_their_own():
    page = Page("t")
    page.charts(series(curve(3)), series(curve(3)))
    found = page.render()
    ids = Counter(re.findall(r'\bid="([^"]*)"', found))
    assert set(ids.values()) == {1}
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', found)) <= set(ids)


def test_colours_of_a_chart_are_those_of_its_page():
    chart = Chart("t", "x", "y", [Series("a", curve(3), "#D55E00")], [Level("b", 1.0, "blue")])
    found = chart_markup(chart, "c")
    assert re.findall(r'<g class="(\w+)" style="--colour:([^"]*)"', found) == [
        ("level", "blue"),
        ("series", "#D55E00"),
    ]
    painted = set(re.findall(r"(?:fill|stroke): ([^;\"]*)", found))
    assert painted == {"none", *(f"var(--{name})" for name in ("ink", "quiet", "faint", "shade"))}
    assert "<style" not in found


def test_a_dollar_in_a_label_is_no_mathematics():
    found = labels(Chart("t", "$a_1$", "cost, $", [Series("a", curve(3), "red")]))
    assert {"$a_1$", "cost, $"} <= set(found)


def test_a_chart_leaves_out_what_cannot_be_drawn():
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, -1.0), (3.0, 4.0), (math.inf, 1.0)]
    levels = [Level("b", math.nan, "red")]
    assert len(re.findall("[ML]", drawn(series(points, levels=levels), "series")[0])) == 3
    assert drawn(series(points, levels=levels), "level") == []
    assert "Nothing to draw" in chart_markup(series([(0.0, math.nan)]), "c")


def test_a_single_value_is_drawn():
    assert len(drawn(series([(2.0, 3.0)]), "series")) == 1


def test_a_long_series_does_not_make_a_long_page():
    wave = [(float(i), math.sin(i / 1000)) for i in range(100_000)]
    assert len(chart_markup(series(wave), "c")) < 50_000


def test_the_first_moments_of_a_curve_do_not_squash_the_rest():
    points = [(0.0, -1e6), *((float(i), 0.1 * i) for i in range(1, 100))]
    assert rise(series(points)) < 2
    assert rise(series(points, skip=5.0)) > 200


def rise(chart: Chart) -> float:
    """By how much a line climbs once its first point is past."""
    heights = [float(y) for y in re.findall(r"L \S+ (\S+)", drawn(chart, "series")[0])]
    return heights[0] - heights[-1]
