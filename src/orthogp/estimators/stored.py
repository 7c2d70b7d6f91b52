"""An estimator with what it has learned, in files and in pickles."""

import warnings
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
from sklearn.base import BaseEstimator
from torch import Tensor

from orthogp.errors import FileError, OrthogpError
from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.checks import Columns, require_fitted
from orthogp.estimators.conformal import CrossScores
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.inputs import encoded
from orthogp.estimators.promised import pack_cross, unpack_cross
from orthogp.estimators.scaling import Array, Scaling
from orthogp.estimators.setting_checks import (
    check_settings,
    cpu_by_default,
    torch_device,
)
from orthogp.estimators.settings import Settings, no_type_check
from orthogp.estimators.state import (
    ARRAYS,
    finite_tensor,
    pack_fitted,
    pack_settings,
    unpack_fitted,
    unpack_noise,
)
from orthogp.estimators.targets import Targets
from orthogp.likelihoods import Likelihood
from orthogp.model import VariationalGP
from orthogp.storage import Saved, load_model, save_model
from orthogp.storage.onnx import export_onnx
from orthogp.tables import ColumnTable, Plan

# Points at which a loaded estimator must predict finite values.
CHECKED_POINTS = 4


@no_type_check
class StoredEstimator(Settings, BaseEstimator):
    """Settings and, after a fit, the fitted state, which files and pickles hold."""

    model_: VariationalGP
    elbo_: float
    history_: list[dict[str, Any]]
    n_iter_: int
    n_features_in_: int
    feature_names_in_: NDArray
    columns_: ColumnTable
    _fitted: Fitted

    def _settings(self) -> dict[str, Any]:
        """All settings, refused where they are wrong whatever the data."""
        settings = self.get_params(deep=False)
        check_settings(settings)
        return settings

    def _prediction_inputs(self, X: Any) -> tuple[Fitted, Array]:
        """The fitted state, and the inputs of X, checked against its columns."""
        require_fitted(self)
        fitted = self._fitted
        return fitted, encoded(type(self), X, fitted.units.columns, fitted.units.plan)

    def _set_fitted(self, fitted: Fitted) -> None:
        """Sets every fitted attribute; the only place that does."""
        learned = fitted.attributes()
        vars(self).update(learned, _fitted=fitted)
        if "feature_names_in_" not in learned:
            vars(self).pop("feature_names_in_", None)

    @staticmethod
    @abstractmethod
    def _unpack_targets(
        model: VariationalGP, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[Targets, Calibration | LatentScales]:
        """The targets and the calibration in a file."""

    @cpu_by_default()
    def save(
        self,
        path: str | Path,
        extra: Mapping[str, Any] | None = None,
        near_rows: bool = True,
    ) -> None:
        """Writes the fitted estimator to one file, which holds data and nothing that runs.

        Callbacks, `device`, `checkpoint_dir` and `rows_dir` are not saved. `extra` is JSON of the
        caller's own, stored in the same file and ignored by `load`. In a process group one process
        is enough; where all write the same file it is still whole. The training rows that
        predictions are conditioned on are in the file, standardised; without `near_rows` they are
        not, and what is loaded predicts by the inducing and residual points alone. Rows in a folder
        (`rows_dir`) stay there, and the file says which folder that is.
        """
        require_fitted(self)
        meta, tensors = self._state()
        extra_meta = {} if extra is None else {"extra": dict(extra)}
        model = self.model_ if near_rows else self.model_.without_near_rows()
        save_model(path, model, meta | extra_meta, tensors)

    @classmethod
    @cpu_by_default()
    def load(
        cls,
        path: str | Path,
        kernel: Kernel | None = None,
        likelihood: GpytorchLikelihood | Likelihood | None = None,
        device: str | torch.device | None = None,
        rows_dir: str | Path | None = None,
    ) -> Self:
        """Reads what `save` wrote; a kernel or likelihood of your own must be passed in.

        The folder of a fit with `rows_dir` is looked for beside the file and then where it was
        when the file was written; `rows_dir` says where else it is.
        """
        saved = load_model(path, kernel=kernel, likelihood=likelihood, rows_dir=rows_dir)
        return cls.from_saved(saved, path, device)

    @classmethod
    def from_saved(
        cls, saved: Saved, path: str | Path, device: str | torch.device | None = None
    ) -> Self:
        """The estimator in a file that has been read already; `path` is for error messages."""
        try:
            if saved.meta["estimator"] != cls.__name__:
                raise FileError(f"it holds a {saved.meta['estimator']!s:.40}")
            # Only settings that `save` writes: a file must not choose where the next fit writes.
            storable, _ = pack_settings(cls(likelihood="").get_params(deep=False))
            settings = {k: v for k, v in saved.meta["settings"].items() if k in storable}
            estimator = cls(**settings)
            estimator.set_params(device=device)
            estimator._set_state(saved)
        except OrthogpError as error:
            raise FileError(f"{path} cannot be loaded as a {cls.__name__}: {error}") from error
        except Exception as error:
            # As in `load_model`: a file with a valid checksum may fail in any way.
            raise FileError(
                f"{path} cannot be loaded: what it describes is not a {cls.__name__}"
            ) from error
        return estimator

    def with_plan(self, plan: Plan) -> Self:
        """The same estimator for tables, whose columns become its inputs by this plan: for models
        that were saved before estimators knew columns."""
        require_fitted(self)
        if len(plan.sources) != len(self._fitted.units.inputs.scale):
            raise FileError(
                f"its columns make {len(plan.sources)} inputs and its estimator has "
                f"{len(self._fitted.units.inputs.scale)}"
            )
        columns = Columns(len(plan.columns), np.array(list(plan.columns), dtype=object))
        units = replace(self._fitted.units, columns=columns, plan=plan)
        self._set_fitted(replace(self._fitted, units=units))
        return self

    def _export(self, path: str | Path, y: Scaling, **variances: Any) -> None:
        x, model = self._fitted.units.inputs, self._fitted.model
        units = [torch.from_numpy(part) for part in (x.shift, x.scale, y.shift, y.scale)]
        # On the host: a file is written once, and its constants are the host's.
        if model.near is not None and model.near.count > 0:
            warnings.warn(
                "an ONNX graph cannot search for the rows near x: it holds the posterior of the "
                "inducing and residual points alone, whose predictions are less accurate",
                stacklevel=3,
            )
        plan = self._fitted.units.plan
        if plan is not None and not plan.plain:
            warnings.warn(
                f"an ONNX graph knows no columns of a table: its x are the {len(plan.sources)} "
                "inputs that orthogp.tables.Encoder(gp.columns_.plan) makes of them",
                stacklevel=3,
            )
        predictor, mean = deepcopy(model).cpu().condensed(), deepcopy(model.mean).cpu()
        linear_map = None if x.linear_map is None else torch.from_numpy(x.linear_map).double()
        ramps = None
        if x.ramps is not None:
            column, low, high = x.ramps.source, x.ramps.low, x.ramps.high
            ramps = torch.from_numpy(column), torch.from_numpy(low), torch.from_numpy(high)
        export_onnx(
            path, predictor, *units, mean=mean, linear_map=linear_map, ramps=ramps, **variances
        )

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All of a fitted estimator but its model, as JSON and tensors."""
        settings, tensors = pack_settings(self._settings())
        meta, learned = pack_fitted(self._fitted)
        scores = self._fitted.scores
        cross = pack_cross(scores) if isinstance(scores, CrossScores) else {}
        header = {
            "estimator": type(self).__name__,
            "settings": settings,
            "own_kernel": self.kernel is not None,
            "own_likelihood": not isinstance(self._settings()["likelihood"], str | None),
        }
        return header | meta, tensors | learned | cross

    def _set_state(self, saved: Saved) -> None:
        """The reverse of `_state`, for untrusted input."""
        model, meta, tensors = saved.model, saved.meta, saved.tensors
        learned = self._unpack_targets(model, meta, tensors)
        device = _device_or_cpu(self.device)
        fitted = unpack_fitted(model, learned, meta, tensors, device)
        width = len(fitted.units.inputs.scale)
        for name in ARRAYS:
            if name in tensors:
                setattr(self, name, finite_tensor(tensors, name, (None, width)).numpy())
        if meta["own_kernel"]:
            self.kernel = deepcopy(model.covariance.kernel)
        if "noise_variance" in tensors:
            self.noise_variance = unpack_noise(tensors, model.basis.num_latents)
        if meta["own_likelihood"]:
            self.likelihood = deepcopy(model.likelihood)
        # The points to check are inputs: they have no column names and no plan.
        bare = replace(fitted.units, columns=Columns(width), plan=None)
        self._set_fitted(replace(fitted, units=bare))
        self._require_predictions()
        own = {"kernel": model.covariance.kernel, "likelihood": model.likelihood}
        passed = {name: part for name, part in own.items() if meta[f"own_{name}"]}
        cross = unpack_cross(type(self), tensors, passed, device)
        self._set_fitted(fitted if cross is None else replace(fitted, scores=cross))

    def _require_predictions(self) -> None:
        """Refuses a state whose predictions, at some of its own points, are not all finite."""
        points = self.model_.basis.beta[:CHECKED_POINTS].detach().double().cpu().numpy()
        inputs, estimator = self._fitted.units.inputs, cast(Any, self)
        X = inputs.in_units(points)
        if hasattr(self, "classes_"):
            found = [estimator.predict_proba(X)]
        else:
            found = [*estimator.predict(X, return_std=True), *estimator.predict_interval(X)]
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
            self._set_fitted(Fitted.on_device(_device_or_cpu(self.device), **state["_fitted"]))


def _device_or_cpu(device: str | torch.device | None) -> torch.device:
    """The device if this machine has it, else the host."""
    wanted = torch_device(device)
    here = wanted.type != "cuda" or torch.cuda.is_available()
    return wanted if here else torch.device("cpu")
