"""Models in files: `modules` and `basis` turn parts into JSON and tensors, `recipes` says which."""

from orthogp.storage.model import Saved, load_model, save_model

__all__ = ["Saved", "load_model", "save_model"]
