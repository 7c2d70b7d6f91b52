"""Pages for tests: one of everything, and one that has a text wherever data can stand."""

import math

from orthogp.plotting.pages import Bars, Cell, Chart, Dots, Level, Page, Series, Table

NASTY = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "<!-- <script> & \"quotes' -->",
)
PNG = b"\x89PNG\r\n\x1a\n rest"


def curve(count, power=1.0, scale=1.0):
    return [(float(i), scale * i**power) for i in range(1, count + 1)]


def example() -> Page:
    page = Page("An example", "of everything")
    page.section("Tables")
    rows = [
        [Cell("b", hint="of b\nsecond line"), 10.0, "ten"],
        ["a", Cell("9 ± 1", 9.0, hint="of nine"), "nine"],
        [Cell("c", hint="of c"), None, "none"],
        ["a10", -3.5, None],
    ]
    page.table(Table(["name", "figure", "word"], rows, "Letters"))
    many = [f"MethodNumber{i}" for i in range(20)]
    page.table(Table(["set", *many], [["pol", *map(float, range(20))]], "Wide"))
    page.section("Charts")
    slow, fast = Series("slow", curve(50), "#0072B2"), Series("fast", curve(50, 2.0), "#000", True)
    top = Level("top", 3000.0, "#808080")
    page.charts(
        Chart("Whole", "step", "y", [slow, fast], [top]),
        Chart("Settled", "step", "y", [slow], skip=50.0),
    )
    page.charts(
        Bars("Lengths", "metres", [("long", 3.0), ("short", 1.0), ("none", math.nan)], "#0072B2"),
        Dots("Heights", "metres", [("trees", [1.0, 2.0, math.inf]), ("holes", [-1.0])], "#D55E00"),
    )
    with page.details("Folded", "folded"):
        page.text("inside")
    with page.details("Only on screen", printed=False):
        page.text("not on paper")
    return page


def nasty(text: str) -> Page:
    """A page that has the text wherever data can stand."""
    page = Page(text, text)
    page.section(text)
    page.subsection(text)
    page.text(text)
    page.items([text])
    page.facts({text: text})
    row = [Cell(text, below=text, hint=text, anchor="there"), text]
    page.table(Table([text, text], [row], text, [text]))
    series, level = Series(text, curve(3), "red"), Level(text, 1.0, "red")
    page.charts(
        Chart(text, text, text, [series], [level]),
        Bars(text, text, [(text, 1.0)], "red"),
        Dots(text, text, [(text, [1.0, 2.0])], "red"),
    )
    page.picture(PNG, text, text)
    with page.details(text, text):
        page.text(text)
    return page
