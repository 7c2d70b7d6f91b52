"""Self-contained HTML pages: one file, no request to any network, readable on paper too."""

from orthogp.plotting.pages.bars import Bars, Dots
from orthogp.plotting.pages.charts import Chart, Level, Series
from orthogp.plotting.pages.page import Page
from orthogp.plotting.pages.tables import Cell, Table

__all__ = ["Bars", "Cell", "Chart", "Dots", "Level", "Page", "Series", "Table"]
