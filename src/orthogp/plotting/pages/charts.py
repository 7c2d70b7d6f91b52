"""Line charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orthogp.plotting.pages.drawing import SHADE, drawn
from orthogp.plotting.pages.markup import Markup, element, joined

WIDTH, HEIGHT = 440, 290
# A line of so few points shows each of them.
FEW_POINTS = 12

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line through points in the order of x. `colour` is any of CSS."""

    name: str
    points: Sequence[Point]
    colour: str
    dashed: bool = False


Line = tuple[Series, list[Point]]


@dataclass(frozen=True)
class Level:
    """A horizontal line from side to side."""

    name: str
    y: float
    colour: str


@dataclass(frozen=True)
class Chart:
    """Points that are not finite are left out.

    The y axis holds the whole of each series but its first `skip` points in a hundred: a curve's
    first moments would squash the rest.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    skip: float = 0.0


def chart_markup(chart: Chart, identity: str) -> Markup:
    """A figure whose caption is the title; `identity` must differ from chart to chart."""
    caption = element("figcaption", chart.title)
    lines = [(series, points) for series in chart.series if (points := _finite(series.points))]
    levels = [level for level in chart.levels if math.isfinite(level.y)]
    if not lines:
        nothing = element("p", "Nothing to draw: no finite points.", class_="nothing")
        return element("figure", caption, nothing, class_="chart")
    names = ", ".join(series.name for series, _ in lines)
    label = f"{chart.title}: {chart.y_label} against {chart.x_label}, of {names}"

    def draw(ax: Any) -> None:
        _draw(ax, chart, lines, levels)

    svg = drawn(draw, (WIDTH, HEIGHT), label, identity)
    legend = [_legend(series.name, series.colour, series.dashed) for series, _ in lines]
    legend += [_legend(level.name, level.colour, True) for level in levels]
    return element("figure", caption, element("ul", *legend, class_="legend"), svg, class_="chart")


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _draw(ax: Any, chart: Chart, lines: Sequence[Line], levels: Sequence[Level]) -> None:
    ax.locator_params(nbins=6)
    for level in levels:
        ax.axhline(level.y, ls="--", color=SHADE, gid=f"level {level.colour}")
    for series, points in lines:
        ax.plot(
            *zip(*points, strict=True), ls="--" if series.dashed else "-",
            marker="o" if len(points) <= FEW_POINTS else "", color=SHADE,
            gid=f"series {series.colour}",
        )  # fmt: skip
    ax.dataLim.intervaly = _y_range(chart, lines, levels)
    ax.autoscale_view()
    # A dollar in a label is no mathematics.
    ax.set_xlabel(chart.x_label, parse_math=False)
    ax.set_ylabel(chart.y_label, parse_math=False)


def _y_range(chart: Chart, lines: Sequence[Line], levels: Sequence[Level]) -> Point:
    """The lowest and the highest y that must be seen."""
    values = [level.y for level in levels]
    for _, points in lines:
        values += [y for _, y in points[int(len(points) * chart.skip / 100) :]]
    return min(values), max(values)


def _legend(name: str, colour: str, dashed: bool) -> Markup:
    stroke = element("path", d="M0 5H22", class_="dashed" if dashed else None)
    swatch = element("svg", stroke, viewBox="0 0 22 10", class_="swatch", aria_hidden="true")
    return element("li", joined(swatch, name), style=f"--colour:{colour}")
