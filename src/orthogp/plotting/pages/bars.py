"""Charts with a line for every name: bars of one value each, or dots of several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orthogp.plotting.pages.drawing import INK, SHADE, drawn
from orthogp.plotting.pages.markup import Markup, element

WIDTH, LINE, AROUND = 440, 24, 56
LONGEST_NAME = 36
# Dots of a line are spread over so much of its height, by an irrational step, so that few overlap.
SPREAD, GOLDEN = 0.5, 0.6180339887


@dataclass(frozen=True)
class Bars:
    """A bar from zero for every name, the first on top; values that are not finite have none."""

    title: str
    x_label: str
    rows: Sequence[tuple[str, float]]
    colour: str


@dataclass(frozen=True)
class Dots:
    """A dot for every finite value of every name, the first name on top."""

    title: str
    x_label: str
    rows: Sequence[tuple[str, Sequence[float]]]
    colour: str


def bars_markup(chart: Bars, identity: str) -> Markup:
    rows = [(name, value) for name, value in chart.rows if math.isfinite(value)]

    def draw(ax: Any) -> None:
        bars = ax.barh(range(len(rows)), [value for _, value in rows], height=0.6, color=SHADE)
        for bar in bars:
            bar.set_gid(f"series {chart.colour}")

    return _figure(chart, [name for name, _ in rows], draw, identity)


def dots_markup(chart: Dots, identity: str) -> Markup:
    rows = [(name, [v for v in values if math.isfinite(v)]) for name, values in chart.rows]
    rows = [(name, values) for name, values in rows if values]

    def draw(ax: Any) -> None:
        ax.axvline(0, color=SHADE, lw=1, gid="level var(--quiet)")
        for line, (_, values) in enumerate(rows):
            places = [line + SPREAD * ((i * GOLDEN) % 1 - 0.5) for i in range(len(values))]
            ax.plot(
                values, places, ls="", marker="o", ms=4, alpha=0.55, mew=0, color=SHADE,
                gid=f"series {chart.colour}",
            )  # fmt: skip

    return _figure(chart, [name for name, _ in rows], draw, identity)


def _figure(chart: Bars | Dots, names: Sequence[str], draw: Any, identity: str) -> Markup:
    caption = element("figcaption", chart.title)
    if not names:
        nothing = element("p", "Nothing to draw: no finite values.", class_="nothing")
        return element("figure", caption, nothing, class_="chart")

    def draw_named(ax: Any) -> None:
        ax.locator_params(axis="x", nbins=6)
        draw(ax)
        # A dollar in a name is no mathematics.
        ax.set_yticks(range(len(names)), [_shown(name) for name in names], parse_math=False)
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set_xlabel(chart.x_label, parse_math=False)

    label = f"{chart.title}: {chart.x_label} of {', '.join(map(_shown, names))}"
    size = WIDTH, AROUND + LINE * len(names)
    style = {"axes.grid.axis": "x", "ytick.color": INK}
    return element("figure", caption, drawn(draw_named, size, label, identity, **style),
                   class_="chart")  # fmt: skip


def _shown(name: str) -> str:
    """A name on one line, without control characters."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return plain if len(plain) <= LONGEST_NAME else f"{plain[: LONGEST_NAME - 1]}…"
