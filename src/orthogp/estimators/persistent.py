"""A fitted estimator as a file, as an ONNX graph, and as a pickle."""

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood as GpytorchLikelihood
from numpy.typing import NDArray
from torch import Tensor

from orthogp.errors import FileError, OrthogpError
from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.checks import Columns, require_fitted
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.scaling import Scaling
from orthogp.estimators.settings import Settings, cpu_by_default, no_type_check, torch_device
from orthogp.estimators.state import ARRAYS, finite, pack_fitted, pack_settings, unpack_fitted
from orthogp.estimators.targets import Targets
from orthogp.likelihoods import Likelihood
from orthogp.model import VariationalGP
from orthogp.storage import Saved, load_model, save_model
from orthogp.storage.onnx import export_onnx

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
    _fitted: Fitted

    @staticmethod
    @abstractmethod
    def _unpack_targets(
        model: VariationalGP, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[Targets, Calibration | LatentScales]:
        """What a file says of the targets and of the calibration."""

    def _adopt(self, fitted: Fitted) -> None:
        """Puts what was learned in place. Nothing else changes what an estimator has learned."""
        learned = fitted.attributes()
        vars(self).update(learned, _fitted=fitted)
        if "feature_names_in_" not in learned:
            vars(self).pop("feature_names_in_", None)

    @cpu_by_default()
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
    @cpu_by_default()
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
            estimator._set_state(saved)
        except OrthogpError as error:
            raise FileError(f"{path} cannot be loaded as a {cls.__name__}: {error}") from error
        except Exception as error:
            # As in `load_model`: what a file says with a valid checksum may fail in any way.
            raise FileError(
                f"{path} cannot be loaded: what it describes is not a {cls.__name__}"
            ) from error
        return estimator

    def _export(self, path: str | Path, y: Scaling, **variances: Any) -> None:
        x, model = self._fitted.units.inputs, self._fitted.model
        units = [torch.from_numpy(part) for part in (x.shift, x.scale, y.shift, y.scale)]
        # On the host: a file is written once, and its constants are the host's.
        predictor = deepcopy(model).cpu().predictor()
        export_onnx(path, predictor, *units, mean=deepcopy(model.mean).cpu(), **variances)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All of a fitted estimator but its model, as JSON and tensors."""
        settings, tensors = pack_settings(self.get_params(deep=False))
        meta, learned = pack_fitted(self._fitted)
        own = {
            "estimator": type(self).__name__,
            "settings": settings,
            "own_kernel": self.kernel is not None,
            "own_likelihood": not isinstance(self.likelihood, str | None),
        }
        return own | meta, tensors | learned

    def _set_state(self, saved: Saved) -> None:
        """The reverse of `_state`, for what may come from anywhere."""
        model, meta, tensors = saved.model, saved.meta, saved.tensors
        learned = self._unpack_targets(model, meta, tensors)
        fitted = unpack_fitted(model, learned, meta, tensors, _present(self.device))
        columns = fitted.units.columns
        for name in ARRAYS:
            if name in tensors:
                setattr(self, name, finite(tensors, name, (None, columns.count)).numpy())
        if meta["own_kernel"]:
            self.kernel = deepcopy(model.covariance.kernel)
        if meta["own_likelihood"]:
            self.likelihood = deepcopy(model.likelihood)
        # The rows that are asked for have no names.
        self._adopt(replace(fitted, units=replace(fitted.units, columns=Columns(columns.count))))
        self._require_predictions()
        self._adopt(fitted)

    def _require_predictions(self) -> None:
        """Refuses a state whose predictions, at some of its own points, are not all finite."""
        points = self.model_.basis.beta[:PROBED].detach().double().cpu().numpy()
        inputs, own = self._fitted.units.inputs, cast(Any, self)
        X = points * inputs.scale + inputs.shift
        if hasattr(self, "classes_"):
            found = [own.predict_proba(X)]
        else:
            found = [*own.predict(X, return_std=True), *own.predict_interval(X)]
        if not all(np.isfinite(part).all() for part in found):
            raise FileError("its predictions are not finite")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # pyright: ignore
        if "_fitted" in state:
            # On the host, so that it can be read where there is no such device.
            learned = self._fitted.attributes()
            state = {name: value for name, value in state.items() if name not in learned}
            state["_fitted"] = self._fitted.portable()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: v for name, v in state.items() if name != "_fitted"})
        if "_fitted" in state:
            self._adopt(Fitted.on(_present(self.device), **state["_fitted"]))


def _present(device: str | torch.device | None) -> torch.device:
    """The device if this machine has it, else the host."""
    wanted = torch_device(device)
    here = wanted.type != "cuda" or torch.cuda.is_available()
    return wanted if here else torch.device("cpu")
