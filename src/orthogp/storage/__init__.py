"""Models in files: `modules` and `basis` describe the parts that `recipes` lists."""

from orthogp.storage.model import Saved, load_model, save_model

__all__ = ["Saved", "load_model", "save_model"]
