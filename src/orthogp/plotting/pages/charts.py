"""Line charts: Matplotlib draws them, as SVG within the page and in the colours of its style."""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orthogp.plotting.pages.markup import Markup, element, joined

WIDTH, HEIGHT = 440, 290
# A line of so few points shows each of them.
FEW_POINTS = 12

# Matplotlib cannot draw in the variables of a style sheet: it draws with the values on the left,
# which are then replaced by those on the right, so that a chart is as dark or light as its page.
FONT, INK, QUIET, FAINT, SHADE = "DejaVu Sans", "#010101", "#020202", "#030303", "#040404"
REPLACED = {
    f"'{FONT}'": "system-ui",
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    FAINT: "var(--faint)",
    SHADE: "var(--shade)",
}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.sans-serif": [FONT, "sans-serif"],
    "font.size": 13,
    "axes.labelsize": 13,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.edgecolor": QUIET,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": FAINT,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "ytick.major.size": 0,
    "lines.linewidth": 1.75,
    "lines.markersize": 5.5,
}
# No metadata: a chart is part of another file.
METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}

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
    svg = element(
        "svg",
        _draw(chart, lines, levels, identity),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{chart.title}: {chart.y_label} against {chart.x_label}, of {names}",
    )
    legend = [_legend(series.name, series.colour, series.dashed) for series, _ in lines]
    legend += [_legend(level.name, level.colour, True) for level in levels]
    return element("figure", caption, element("ul", *legend, class_="legend"), svg, class_="chart")


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _draw(chart: Chart, lines: Sequence[Line], levels: Sequence[Level], identity: str) -> Markup:
    """What the chart's svg element holds: the same for the same chart, whatever the settings of
    the user's Matplotlib."""
    from matplotlib import style
    from matplotlib.figure import Figure

    content = io.StringIO()
    with style.context(["default", STYLE, {"svg.hashsalt": identity}]):
        figure = Figure((WIDTH / 72, HEIGHT / 72), layout="constrained", frameon=False)
        ax = figure.add_subplot()
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
        figure.savefig(content, format="svg", metadata=METADATA)
    return _part_of_page(content.getvalue())


def _y_range(chart: Chart, lines: Sequence[Line], levels: Sequence[Level]) -> Point:
    """The lowest and the highest y that must be seen."""
    values = [level.y for level in levels]
    for _, points in lines:
        values += [y for _, y in points[int(len(points) * chart.skip / 100) :]]
    return min(values), max(values)


def _part_of_page(svg: str) -> Markup:
    """The inside of an SVG file, without styles and ids that would affect the rest of the page."""
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="(series|level) ([^"]*)"', r'<g class="\1" style="--colour:\2"', svg)
    # Groups are numbered alike in every chart; ids of markers and clips depend on the salt.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for drawn, shown in REPLACED.items():
        svg = svg.replace(drawn, shown)
    return Markup(svg)


def _legend(name: str, colour: str, dashed: bool) -> Markup:
    stroke = element("path", d="M0 5H22", class_="dashed" if dashed else None)
    swatch = element("svg", stroke, viewBox="0 0 22 10", class_="swatch", aria_hidden="true")
    return element("li", joined(swatch, name), style=f"--colour:{colour}")
