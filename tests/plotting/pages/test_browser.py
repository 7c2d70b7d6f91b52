"""Pages in a browser: they answer, they fit, they print, and they fetch nothing."""

import pytest

from browser import PHONE, visit
from sample_pages import NASTY, example, nasty

pytestmark = pytest.mark.browser


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


def test_bars_and_dots_are_of_the_values_that_are_finite(browser, path):
    with visit(browser, path) as view:
        bars, dots = (view.page.locator("figure.chart").nth(i) for i in (2, 3))
        assert bars.locator(".series path").count() == 2
        widths = [bars.locator(".series").nth(i).bounding_box()["width"] for i in (0, 1)]
        assert widths[0] == pytest.approx(3 * widths[1], rel=0.02)
        assert dots.locator(".series use").count() == 3
        assert dots.locator("svg").get_attribute("aria-label").endswith("of trees, holes")
        assert view.page.locator("text=short").is_visible()


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
    light, dark = (colours(browser, path, scheme) for scheme in ("light", "dark"))
    assert all(one != other for one, other in zip(light, dark, strict=True))


def colours(browser, path, scheme):
    """Of the page, of a chart's words and of its lines."""
    with visit(browser, path, color_scheme=scheme) as view:
        return [
            view.page.locator(node).first.evaluate(f"node => getComputedStyle(node).{name}")
            for node, name in (
                ("body", "backgroundColor"),
                ("figure.chart text", "fill"),
                ("figure.chart .series path", "stroke"),
            )
        ]


def test_charts_take_the_width_of_the_page(browser, path):
    for width in (375, 700):
        with visit(browser, path, viewport={"width": width, "height": 740}) as view:
            chart, main = (
                view.page.locator(node).first.bounding_box() for node in (".chart > svg", ".charts")
            )
            columns = 1 if width < 640 else 2
            assert chart["width"] > 0.9 * main["width"] / columns
            assert 0.5 < chart["height"] / chart["width"] < 0.8


@pytest.mark.parametrize("text", NASTY)
def test_markup_in_data_does_nothing_in_a_browser(browser, tmp_path, text):
    page = nasty(text).write(tmp_path / "nasty.html")
    with visit(browser, page) as view:
        view.hover(view.page.locator("tbody th"))
        assert view.tip == text
        assert view.texts("figure.chart .legend li") == [text, text]
        assert view.page.locator("figure.chart text", has_text=text).count() == 6
        assert view.page.locator("main img").count() == 1
        assert view.page.locator("td").first.inner_text() == text
