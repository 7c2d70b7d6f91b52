"""The main job on built-in data: fit, compare, draw. `orthogp demo`, `python -m orthogp.demo`."""

from orthogp.demo.run import main

__all__ = ["main"]
