"""A page, built from top to bottom, as one HTML file with its style and script inside."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from orthogp.errors import DataError
from orthogp.execution.files import write_atomically
from orthogp.plotting.pages.bars import Bars, Dots, bars_markup, dots_markup
from orthogp.plotting.pages.charts import Chart, chart_markup
from orthogp.plotting.pages.markup import Markup, element, joined
from orthogp.plotting.pages.tables import Content, Table, as_cell, table_markup

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class _Heading:
    level: int
    text: str
    anchor: str


class Page:
    """Collects sections in the order they are added. Every text is escaped."""

    def __init__(self, title: str, lead: str = ""):
        self.title, self.lead = title, lead
        self._headings: list[_Heading] = []
        self._parts: list[Markup] = []
        self._charts = 0

    def section(self, heading: str) -> None:
        self._head(2, heading)

    def subsection(self, heading: str) -> None:
        self._head(3, heading)

    def text(self, *paragraphs: str) -> None:
        self._parts += [element("p", paragraph) for paragraph in paragraphs]

    def items(self, items: Sequence[str]) -> None:
        self._parts.append(element("ul", *(element("li", item) for item in items)))

    def facts(self, facts: Mapping[str, Content]) -> None:
        """Names and values, side by side where there is room."""
        pairs = [
            element("div", element("dt", name), element("dd", as_cell(value).text))
            for name, value in facts.items()
        ]
        self._parts.append(element("dl", *pairs, class_="facts"))

    def table(self, table: Table) -> None:
        self._parts.append(table_markup(table))

    def charts(self, *charts: Chart | Bars | Dots) -> None:
        """Side by side where there is room."""
        first, self._charts = self._charts, self._charts + len(charts)
        drawn = [_chart(chart, f"chart-{i}") for i, chart in enumerate(charts, first)]
        self._parts.append(element("div", *drawn, class_="charts"))

    def picture(self, content: bytes, alternative: str, caption: str = "") -> None:
        """The bytes of a PNG or SVG file, and a text alternative."""
        if content.startswith(PNG):
            kind = "image/png"
        elif b"<svg" in content[:4096]:
            kind = "image/svg+xml"
        else:
            raise DataError("a picture of a page must be a PNG or an SVG; draw it as one of those")
        source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        parts = [element("img", src=source, alt=alternative)]
        parts += [element("figcaption", caption)] if caption else []
        self._parts.append(element("figure", *parts, class_="picture"))

    @contextmanager
    def details(self, summary: str, anchor: str = "", printed: bool = True) -> Iterator[None]:
        """What is added inside is folded under the summary; a link to the anchor unfolds it.

        On paper it is unfolded, or left out where it is not `printed`.
        """
        outside, self._parts = self._parts, []
        try:
            yield
        finally:
            inside, self._parts = self._parts, outside
        self._parts.append(
            element(
                "details",
                element("summary", summary),
                *inside,
                id=anchor or None,
                class_=None if printed else "unprinted",
            )
        )

    def render(self) -> str:
        style = _resource("page.css")
        script = _resource("page.js")
        lead = element("p", self.lead, class_="lead") if self.lead else ""
        header = element("header", element("h1", self.title), lead)
        main = element("main", header, *self._parts)
        head = joined(
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", self.title),
            # Without it a browser asks the server for an icon.
            element("link", rel="icon", href="data:,"),
            element("style", style),
        )
        body = element("body", self._contents(), main, element("script", script))
        return f"<!DOCTYPE html>\n{element('html', element('head', head), body, lang='en')}\n"

    def write(self, path: Path) -> Path:
        # A name read from a disk may hold what UTF-8 cannot write.
        write_atomically(path, [self.render().encode("utf-8", "replace")])
        return path

    def _head(self, level: int, text: str) -> None:
        words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        anchor = f"{len(self._headings) + 1}-{words}"
        self._headings.append(_Heading(level, text, anchor))
        self._parts.append(element(f"h{level}", text, id=anchor))

    def _contents(self) -> Markup:
        if not self._headings:
            return Markup("")
        links = [
            element("li", element("a", h.text, href=f"#{h.anchor}"), class_=f"level-{h.level}")
            for h in self._headings
        ]
        return element("nav", element("ul", *links), aria_label="Contents")


def _chart(chart: Chart | Bars | Dots, identity: str) -> Markup:
    if isinstance(chart, Chart):
        return chart_markup(chart, identity)
    if isinstance(chart, Bars):
        return bars_markup(chart, identity)
    return dots_markup(chart, identity)


def _policy(script: str) -> str:
    """Allows no request, and no script but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fetched = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return f"{fetched}; script-src 'sha256-{digest}'"


def _resource(name: str) -> Markup:
    return Markup((files("orthogp.plotting.pages") / name).read_text(encoding="utf-8"))
