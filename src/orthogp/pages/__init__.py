"""Self-contained HTML pages: one file, no request to any network, readable on paper too."""

from orthogp.pages.charts import Chart, Level, Series
from orthogp.pages.page import Page
from orthogp.pages.tables import Cell, Table

__all__ = ["Cell", "Chart", "Level", "Page", "Series", "Table"]
