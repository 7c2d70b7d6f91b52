"""A fitted estimator as a file, as an ONNX graph, and as a pickle."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood as GpytorchLikelihood
from numpy.typing import NDArray
from torch import Tensor

from orthogp.bases import Predictor
from orthogp.errors import FileError, OrthogpError
from orthogp.estimators.checks import require_fitted
from orthogp.estimators.scaling import Scaling
from orthogp.estimators.settings import Settings, no_type_check, torch_device
from orthogp.estimators.state import (
    ARRAYS,
    finite,
    pack_scaling,
    pack_settings,
    unpack_names,
    unpack_scaling,
)
from orthogp.export import export_onnx
from orthogp.likelihoods import Likelihood
from orthogp.model import VariationalGP
from orthogp.saving import Saved, load_model, save_model
from orthogp.training import Report

# Points at which an estimator from a file is asked for predictions before anyone else asks.
PROBED = 4


@no_type_check
class Persistent(Settings):
    """What a fit leaves behind, and how it is written and read."""

    model_: VariationalGP
    elbo_: float
    history_: list[dict[str, Any]]
    n_iter_: int
    n_features_in_: int
    feature_names_in_: NDArray
    _predictor: Predictor
    _x_scaling: Scaling

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Writes the fitted estimator to one file, which holds data and nothing that runs.

        Callbacks and the places of this machine (`device`, `checkpoint_dir`) are not kept. `extra`
        is JSON of the caller's own beside it, which `load` does not look at. In a process group one
        process is enough; where all write the same file it is whole all the same.
        """
        require_fitted(self)
        meta, tensors = self._state()
        beside = {} if extra is None else {"extra": dict(extra)}
        save_model(path, self.model_, meta | beside, tensors)

    @classmethod
    def load(
        cls,
        path: str | Path,
        kernel: Kernel | None = None,
        likelihood: GpytorchLikelihood | Likelihood | None = None,
        device: str | torch.device | None = None,
    ) -> Self:
        """Reads what `save` wrote; a kernel or likelihood of your own must be passed in."""
        return cls.from_saved(load_model(path, kernel=kernel, likelihood=likelihood), path, device)

    @classmethod
    def from_saved(
        cls, saved: Saved, path: str | Path, device: str | torch.device | None = None
    ) -> Self:
        """The estimator in a file that has been read already; `path` is for its refusals."""
        try:
            if saved.meta["estimator"] != cls.__name__:
                raise FileError(f"it holds a {saved.meta['estimator']!s:.40}")
            # Nothing that `save` leaves behind: a file does not say where the next fit is to write.
            known, _ = pack_settings(cls(likelihood="").get_params(deep=False))
            settings = {k: v for k, v in saved.meta["settings"].items() if k in known}
            estimator = cls(**settings)
            estimator.set_params(device=device)
            estimator._set_state(saved.model, saved.meta, saved.tensors)
        except OrthogpError as error:
            raise FileError(f"{path} cannot be loaded as a {cls.__name__}: {error}") from error
        except Exception as error:
            # As in `load_model`: what a file says with a valid checksum may fail in any way.
            raise FileError(
                f"{path} cannot be loaded: what it describes is not a {cls.__name__}"
            ) from error
        return estimator

    def _export(self, path: str | Path, y: Scaling, **variances: Any) -> None:
        x, mean = self._x_scaling, self.model_.mean
        units = [torch.from_numpy(part) for part in (x.shift, x.scale, y.shift, y.scale)]
        # On the host: a file is written once, and its constants are the host's.
        predictor = deepcopy(self.model_).cpu().predictor()
        export_onnx(path, predictor, *units, mean=deepcopy(mean).cpu(), **variances)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All of a fitted estimator but its model, as JSON and tensors."""
        settings, tensors = pack_settings(self.get_params(deep=False))
        names = getattr(self, "feature_names_in_", None)
        meta = {
            "estimator": type(self).__name__,
            "settings": settings,
            "own_kernel": self.kernel is not None,
            "own_likelihood": not isinstance(self.likelihood, str | None),
            "feature_names_in": None if names is None else names.tolist(),
            "elbo": self.elbo_,
            "history": self.history_,
            "n_iter": self.n_iter_,
        }
        return meta, tensors | pack_scaling("x", self._x_scaling)

    def _set_state(
        self, model: VariationalGP, meta: dict[str, Any], tensors: dict[str, Tensor]
    ) -> None:
        """The reverse of `_state`, for what may come from anywhere."""
        count = model.basis.beta.shape[1]
        self.n_features_in_ = count
        self.elbo_, self.n_iter_ = float(meta["elbo"]), int(meta["n_iter"])
        self.history_ = [asdict(Report(**row)) for row in meta["history"]]
        self._x_scaling = unpack_scaling("x", tensors, count)
        for name in ARRAYS:
            if name in tensors:
                setattr(self, name, finite(tensors, name, (None, count)).numpy())
        if meta["own_kernel"]:
            self.kernel = deepcopy(model.covariance.kernel)
        if meta["own_likelihood"]:
            self.likelihood = deepcopy(model.likelihood)
        self._place(model, self.device)
        self._require_predictions()
        # At last: the rows just asked for have no names.
        if meta["feature_names_in"] is not None:
            self.feature_names_in_ = unpack_names(meta["feature_names_in"], count)

    def _require_predictions(self) -> None:
        """Refuses a state whose predictions, at some of its own points, are not all finite."""
        points = self.model_.basis.beta[:PROBED].detach().double().cpu().numpy()
        X, own = points * self._x_scaling.scale + self._x_scaling.shift, cast(Any, self)
        if hasattr(self, "classes_"):
            found = [own.predict_proba(X)]
        else:
            found = [*own.predict(X, return_std=True), *own.predict_interval(X)]
        if not all(np.isfinite(part).all() for part in found):
            raise FileError("its predictions are not finite")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # pyright: ignore
        if "model_" in state:
            # On the host, so that it can be read where there is no such device.
            state["model_"] = deepcopy(self.model_).cpu()
            del state["_predictor"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            self._place(state["model_"], self.device)

    def _place(self, model: VariationalGP, device: str | torch.device | None) -> None:
        """Predicts with `model`, on `device` if this machine has it."""
        wanted = torch_device(device)
        here = wanted.type != "cuda" or torch.cuda.is_available()
        self.model_ = model.to(wanted if here else "cpu")
        self._predictor = self.model_.predictor()
