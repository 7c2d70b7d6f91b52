"""Where a value lies on an axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from orthogp.plotting.pages.numbers import linear_ticks, log_ticks

Kind = Literal["linear", "log"]
PADDING = 0.05


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    kind: Kind

    def place(self, value: float) -> float:
        low, high = _straight(self.low, self.kind), _straight(self.high, self.kind)
        share = (_straight(value, self.kind) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        ticks = log_ticks if self.kind == "log" else linear_ticks
        return ticks(self.low, self.high)


def axis(values: Iterable[float], start: float, end: float, kind: Kind, padding: float) -> Axis:
    """An axis that holds the values, of which there must be some, and that share more each side.

    A single value lies in the middle of a range of its own size.
    """
    values = list(values)
    low, high = _straight(min(values), kind), _straight(max(values), kind)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        margin = 0.5 * (abs(low) or 1.0)
    else:
        margin = padding * (high - low)
    return Axis(_bent(low - margin, kind), _bent(high + margin, kind), start, end, kind)


def _straight(value: float, kind: Kind) -> float:
    return math.log10(value) if kind == "log" else value


def _bent(value: float, kind: Kind) -> float:
    return 10.0**value if kind == "log" else value
