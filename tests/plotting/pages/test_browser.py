"""Pages in a browser: they answer, they fit, they print, and they fetch nothing."""

import re

import pytest

from browser import PHONE, launched, visit
from sample_pages import NASTY, example, nasty

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return example().write(tmp_path_factory.mktemp("pages") / "example.html")


def test_a_header_sorts_its_column_with_missing_cells_last(browser, path):
    with visit(browser, path) as view:
        figures = "figure.table >> nth=0 >> tbody td:nth-child(2)"
        header = view.page.locator("figure.table").first.get_by_role("columnheader", name="figure")
        assert view.texts(figures) == ["10", "9 ± 1", "–", "−3.5"]
        header.get_by_role("button").click()
        assert view.texts(figures) == ["−3.5", "9 ± 1", "10", "–"]
        assert header.get_attribute("aria-sort") == "ascending"
        view.page.keyboard.press("Enter")
        assert view.texts(figures) == ["10", "9 ± 1", "−3.5", "–"]
        assert header.get_attribute("aria-sort") == "descending"
        view.page.keyboard.press("Enter")
        assert view.texts(figures) == ["10", "9 ± 1", "–", "−3.5"]
        view.page.get_by_role("button", name="name").click()
        assert view.texts("figure.table >> nth=0 >> tbody th") == ["a", "a10", "b", "c"]
        view.page.get_by_role("button", name="word").click()
        words = "figure.table >> nth=0 >> tbody td:nth-child(3)"
        assert view.texts(words) == ["nine", "none", "ten", "–"]
        assert header.get_attribute("aria-sort") == "none"


def test_a_cell_tells_more_on_hover_and_by_keyboard(browser, path):
    with visit(browser, path) as view:
        view.page.hover("text='9 ± 1'")
        assert view.tip == "of nine"
        view.page.hover("h1")
        assert view.tip == ""
        view.page.focus("figure.table [tabindex='0'][data-hint]")
        assert view.tip == "of b\nsecond line"
        view.page.keyboard.press("ArrowDown")
        assert view.tip == "of c"
        view.page.keyboard.press("Escape")
        assert view.tip == ""


def test_a_chart_tells_the_nearest_point_of_each_series(browser, path):
    with visit(browser, path) as view:
        chart = view.page.locator("figure.chart > svg").first
        view.hover(chart)
        told = view.tip.split("\n")
        step = int(told[0].removeprefix("step "))
        assert abs(step - 25) <= 2
        words = " ".join(told[1:]).replace("\u202f", "").split()
        assert words == ["top", "3000", "fast", f"{step**2}", "slow", f"{step}"]
        assert view.page.locator(".crosshair circle").count() == 2
        chart.focus()
        view.page.keyboard.press("ArrowRight")
        assert view.tip.startswith("step 1\n")
        view.page.keyboard.press("ArrowRight")
        assert view.tip.startswith("step 2\n")
        view.page.hover("h1")
        chart.blur()
        assert view.tip == ""
        assert view.page.locator(".crosshair circle").count() == 0


def test_a_finger_reads_a_chart_too(browser, path):
    with visit(browser, path, **PHONE) as view:
        chart = view.page.locator("figure.chart > svg").nth(1)
        view.hover(view.page.locator("figure.chart figcaption").nth(1))
        chart.tap()
        assert "fast" in view.tip
        view.page.locator("figure.chart figcaption").nth(1).tap()
        assert view.tip == ""


def test_the_legend_switches_series_and_the_rest_spread_out(browser, path):
    with visit(browser, path) as view:
        spread = (["0", "10", "20", "30", "40", "50"], ["1", "2", "5", "10", "20", "50"])
        for i, labels in enumerate(spread):
            figure = view.page.locator("figure.chart").nth(i)
            before, ticks = drawn(figure)
            fast = figure.get_by_role("button", name="fast")
            fast.click()
            assert fast.get_attribute("aria-pressed") == "false"
            visible = [series.is_visible() for series in figure.locator(".series").all()]
            assert visible == [True, False]
            figure.get_by_role("button", name="top").click()
            assert drawn(figure)[1] == labels
            fast.click()
            figure.get_by_role("button", name="top").click()
            # The script draws what Python drew, but for a coordinate rounded the other way.
            assert drawn(figure) == (pytest.approx(before, abs=0.101), ticks)


def drawn(figure):
    """The coordinates and the labels of what depends on the y axis."""
    paths = figure.locator(".y-ticks path, .lines path").evaluate_all(
        "nodes => nodes.map((node) => node.getAttribute('d'))"
    )
    numbers = [float(text) for d in paths for text in re.findall(r"[-\d.]+", d)]
    return numbers, figure.locator(".y-ticks text").all_text_contents()


def test_a_page_reads_and_prints_without_its_script(browser, path):
    with visit(browser, path, java_script_enabled=False) as view:
        assert view.page.locator("figure.chart .series path").first.is_visible()
        assert view.texts("figure.chart >> nth=0 >> .legend li") == ["slow", "fast", "top"]
        assert view.page.get_attribute("text='9 ± 1'", "title") == "of nine"
        view.page.emulate_media(media="print")
        assert view.page.locator("text=inside").is_visible()


def test_paper_shows_all_of_a_table_and_what_was_folded(browser, path):
    with visit(browser, path) as view:
        assert not view.page.locator("text=inside").is_visible()
        view.page.emulate_media(media="print")
        assert view.page.locator("text=inside").is_visible()
        assert not view.page.locator("text=Only on screen").is_visible()
        assert not view.page.locator("nav").is_visible()
        overflow = "node => getComputedStyle(node).overflowX"
        assert view.page.locator(".scroll").first.evaluate(overflow) == "visible"


def test_a_link_unfolds_what_it_leads_to(browser, path):
    with visit(browser, path, "#folded") as view:
        assert view.page.locator("text=inside").is_visible()
        assert not view.page.locator("text=not on paper").is_visible()


def test_a_phone_scrolls_tables_but_not_the_page(browser, path):
    with visit(browser, path, **PHONE) as view:
        assert view.overflow() <= 0
        scrolls = "node => node.scrollWidth > node.clientWidth"
        assert view.page.locator(".scroll").nth(1).evaluate(scrolls)


def test_dark_and_light_are_different(browser, path):
    colour = "getComputedStyle(document.body).backgroundColor"
    seen = set()
    for scheme in ("light", "dark"):
        with visit(browser, path, color_scheme=scheme) as view:
            seen.add(view.page.evaluate(colour))
    assert len(seen) == 2


@pytest.mark.parametrize("text", NASTY)
def test_markup_in_data_does_nothing_in_a_browser(browser, tmp_path, text):
    page = nasty(text).write(tmp_path / "nasty.html")
    with visit(browser, page) as view:
        view.hover(view.page.locator("figure.chart > svg"))
        assert text in view.tip
        assert view.page.locator("main img").count() == 1
        assert view.page.locator("td").first.inner_text() == text
