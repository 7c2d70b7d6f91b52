"""The main job on built-in data: fit, compare, draw. `orthogp demo`."""

from orthogp.apps.demo.run import main

__all__ = ["main"]
