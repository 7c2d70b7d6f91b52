"""Line charts as SVG that needs no script; `page.js` adds the crosshair and the legend's switches.

The script draws again with the same rules when a series is switched off.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orthogp.plotting.pages.axes import PADDING, Axis, Kind, axis
from orthogp.plotting.pages.markup import Markup, element, joined, json_script
from orthogp.plotting.pages.numbers import number

WIDTH, HEIGHT = 640, 400
LEFT, TOP, RIGHT, BOTTOM = 76, 34, 606, 346
MOST_POINTS = 400
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


@dataclass(frozen=True)
class Level:
    """A horizontal line from side to side."""

    name: str
    y: float
    colour: str


@dataclass(frozen=True)
class Chart:
    """Points that are not finite, or not positive on a logarithmic axis, are left out; of a long
    series every so-maniest point is drawn.

    The y axis holds the whole of each series but its first `skip` points in a hundred: a curve's
    first moments would squash the rest.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    x_axis: Kind = "linear"
    y_axis: Kind = "linear"
    skip: float = 0.0


@dataclass(frozen=True)
class _Line:
    """A series as it is drawn; `span` is what of y the axis must hold."""

    series: Series
    points: list[Point]
    span: tuple[float, float]


def chart_markup(chart: Chart, identity: str) -> Markup:
    """A figure whose caption is the title; `identity` must differ from chart to chart."""
    caption = element("figcaption", chart.title)
    lines = [line for series in chart.series if (line := _line(chart, series))]
    levels = [level for level in chart.levels if _drawable(level.y, chart.y_axis)]
    if not lines:
        nothing = element("p", "Nothing to draw: no finite points.", class_="nothing")
        return element("figure", caption, nothing, class_="chart")
    every_x = (x for line in lines for x, _ in line.points)
    x = axis(every_x, float(LEFT), float(RIGHT), chart.x_axis, 0.0)
    ends = [y for line in lines for y in line.span] + [level.y for level in levels]
    y = axis(ends, float(BOTTOM), float(TOP), chart.y_axis, PADDING)
    legend = [_legend(line.series.name, line.series.colour, line.series.dashed) for line in lines]
    legend += [_legend(level.name, level.colour, True) for level in levels]
    return element(
        "figure",
        caption,
        element("ul", *legend, class_="legend"),
        _svg(chart, lines, levels, x, y, identity),
        json_script(_data(chart, lines, levels, x), class_="data"),
        class_="chart",
    )


def _line(chart: Chart, series: Series) -> _Line | None:
    points = [
        (x, y)
        for x, y in series.points
        if _drawable(x, chart.x_axis) and _drawable(y, chart.y_axis)
    ]
    if not points:
        return None
    settled = [y for _, y in points[int(len(points) * chart.skip / 100) :]]
    return _Line(series, _thinned(points), (min(settled), max(settled)))


def _drawable(value: float, kind: Kind) -> bool:
    return math.isfinite(value) and (kind == "linear" or value > 0)


def _thinned(points: list[Point]) -> list[Point]:
    stride = math.ceil(len(points) / MOST_POINTS)
    kept = points[::stride]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _svg(
    chart: Chart, lines: list[_Line], levels: list[Level], x: Axis, y: Axis, identity: str
) -> Markup:
    clip = element(
        "clipPath",
        element("rect", x=LEFT, y=TOP - 4, width=RIGHT - LEFT + 8, height=BOTTOM - TOP + 8),
        id=f"{identity}-area",
    )
    drawn = [_level(level, y) for level in levels] + [_curve(line, x, y) for line in lines]
    names = ", ".join(line.series.name for line in lines)
    return element(
        "svg",
        clip,
        element("g", *_y_ticks(y), class_="y-ticks"),
        element("g", *_x_ticks(x), class_="x-ticks"),
        element("path", d=f"M{LEFT} {BOTTOM}H{RIGHT}", class_="base"),
        element("text", chart.y_label, x=4, y=16, class_="label"),
        element("text", chart.x_label, x=RIGHT, y=HEIGHT - 6, class_="label", text_anchor="end"),
        element("g", *drawn, clip_path=f"url(#{identity}-area)", class_="lines"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{chart.title}: {chart.y_label} against {chart.x_label}, of {names}",
    )


def _y_ticks(y: Axis) -> Iterable[Markup]:
    for tick in y.ticks():
        place = _place(y.place(tick))
        yield element("path", d=f"M{LEFT} {place}H{RIGHT}")
        yield element("text", number(tick), x=LEFT - 8, y=place, dy="0.35em", text_anchor="end")


def _x_ticks(x: Axis) -> Iterable[Markup]:
    for tick in x.ticks():
        place = _place(x.place(tick))
        yield element("path", d=f"M{place} {BOTTOM}v5")
        yield element("text", number(tick), x=place, y=BOTTOM + 22, text_anchor="middle")


def _level(level: Level, y: Axis) -> Markup:
    path = element("path", d=f"M{LEFT} {_place(y.place(level.y))}H{RIGHT}", class_="dashed")
    return element("g", path, style=f"--colour:{level.colour}", class_="level")


def _curve(line: _Line, x: Axis, y: Axis) -> Markup:
    places = [(_place(x.place(u)), _place(y.place(v))) for u, v in line.points]
    path = element(
        "path",
        d="M" + "L".join(f"{u} {v}" for u, v in places),
        class_="dashed" if line.series.dashed else None,
    )
    few = places if len(places) <= FEW_POINTS else []
    dots = [element("circle", cx=u, cy=v, r=3.5) for u, v in few]
    return element("g", path, *dots, style=f"--colour:{line.series.colour}", class_="series")


def _legend(name: str, colour: str, dashed: bool) -> Markup:
    stroke = element("path", d="M0 5H22", class_="dashed" if dashed else None)
    swatch = element("svg", stroke, viewBox="0 0 22 10", class_="swatch", aria_hidden="true")
    return element("li", joined(swatch, name), style=f"--colour:{colour}")


def _data(chart: Chart, lines: list[_Line], levels: list[Level], x: Axis) -> dict[str, Any]:
    """What the script needs to find the nearest points and to draw the y axis again."""
    series = [
        {
            "name": line.series.name,
            "x": [point[0] for point in line.points],
            "y": [point[1] for point in line.points],
            "span": line.span,
        }
        for line in lines
    ]
    return {
        "xLabel": chart.x_label,
        "x": {"low": x.low, "high": x.high, "log": x.kind == "log"},
        "yLog": chart.y_axis == "log",
        "area": [LEFT, TOP, RIGHT, BOTTOM],
        "padding": PADDING,
        "series": series,
        "levels": [{"name": level.name, "y": level.y} for level in levels],
    }


def _place(value: float) -> str:
    """A coordinate to a tenth of a unit; far outside what is drawn it is cut off."""
    return f"{min(max(value, -1e4), 1e4):.1f}".removesuffix(".0")
