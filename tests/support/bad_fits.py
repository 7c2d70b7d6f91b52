"""Fits to bad input, one row a case: the error and its words, or what the right result is."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from gpytorch.kernels import MaternKernel, MultitaskKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood, SoftmaxLikelihood

from orthogp import OrthogonalGPClassifier as Classifier
from orthogp import OrthogonalGPRegressor as Regressor
from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.checks import DataTypeError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)
LABELS = np.where(X[:, 0] > 0, "up", "down")
ONES = np.ones(40)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
NAN, INF = float("nan"), float("inf")


def small(kind: type, **settings: Any) -> Any:
    few = {"n_inducing": 10, "n_residual": 10, "max_steps": 5, "random_state": 0}
    return kind(**few | settings)


def changed(values: np.ndarray, place: Any, value: float) -> np.ndarray:
    out = np.array(values, dtype=np.float64)
    out[place] = value
    return out


def objects(*row: Any) -> np.ndarray:
    """Forty such rows."""
    out = np.empty((40, len(row)), dtype=object)
    out[:] = row
    return out


# Of both estimators: inputs, and what else is not as it should be.
FITS: dict[str, tuple] = {
    "infinity in X": (DataError, "X has 1 values that are infinite.*row 0, column 2; drop",
                      changed(X, (0, 2), INF)),
    "minus infinity in X": (DataError, "infinite", changed(X, (9, 0), -INF)),
    "infinity in a named column": (DataError, "column 'b'", FRAME.assign(b=changed(Y, 7, INF))),
    "nothing but gaps": (DataError, "every value of X is missing", NAN * X),
    "masked values": (DataError, "masked values; fill them in", np.ma.masked_array(X, X > 1)),
    "no X": (DataError, "X is None; expected numbers", None),
    "no y": (DataError, "requires y to be passed", X, {"y": None}),
    "text in X": (DataError, "text, 'abc', expected numbers; encode", np.full((40, 2), "abc")),
    "bytes in X": (DataError, "text, b'abc', expected numbers", np.full((40, 2), b"abc")),
    "objects in X": (DataTypeError, "real number, not 'dict'", objects({"a": 1}, 2.0)),
    "dates": (DataTypeError, "dates or times; derive", np.full((40, 2), 7, dtype="datetime64[D]")),
    "durations": (DataTypeError, "dates or times", np.full((40, 2), 7, dtype="timedelta64[s]")),
    "complex X": (DataError, "complex, expected real numbers", X + 1j),
    "sparse X": (DataTypeError, r"sparse.*use X\.toarray\(\)", scipy.sparse.csr_array(X)),
    "sparse y": (DataTypeError, r"y is sparse", X, {"y": scipy.sparse.csr_array(Y[:, None])}),
    "no rows": (DataError, r"0 sample\(s\).*minimum of 1 is required", X[:0], {"y": LABELS[:0]}),
    "no columns": (DataError, r"0 feature\(s\).*minimum of 1 is required", X[:, :0]),
    "one dimension": (DataError, "1 dimension.*Reshape your data", X[:, 0]),
    "a number for a table": (DataError, "0 dimension", 3.0),
    "three dimensions": (DataError, "dim 3, while dim <= 2 is required", X[None]),
    "ragged rows": (DataError, "rows of different lengths", [[1, 2], [3]] * 20),
    "a tensor with a graph": (DataError, "requires grad", torch.tensor(X, requires_grad=True)),
    "X too large": (DataError, "X has values too large to standardise; rescale", X * 1e306),
    "X too large for float32": (DataError, "not finite", X * 1e100, {"standardize": False}),
    "three dimensions of y": (DataError, "y (has shape|cannot)", X, {"y": ONES[:, None, None]}),
    "negative weights": (DataError, "40 negative values; expected zero", X, {"weight": -ONES}),
    "weights of zero": (DataError, "every sample_weight is zero", X, {"weight": 0 * ONES}),
    "a weight of NaN": (DataError, "sample_weight.*NaN", X, {"weight": changed(ONES, 3, NAN)}),
    "weights for other rows": (DataError, r"\(39,\); expected \(40,\)", X, {"weight": ONES[1:]}),
    "weights that are text": (DataError, "has text, 'a'", X, {"weight": np.full(40, "a")}),
    "weights too large": (DataError, "weight.*not finite", X, {"weight": 1e300 * ONES}),
    "points of other columns": (DataError, r"expected \(m, 3\)", X, {"inducing_points": X[:, :2]}),
    "points of NaN": (DataError, "residual_points.*NaN", X, {"residual_points": NAN * X}),
    "points of text": (DataError, "has text", X, {"inducing_points": [["a", "b", "c"]]}),
    "no points": (ConfigurationError, "β is empty", X, {"inducing_points": X[:0]}),
    "a kernel by name": (ConfigurationError, "expected a GPyTorch kernel", X, {"kernel": "rbf"}),
    "a kernel with a batch": (ConfigurationError, r"batch shape \(2,\)", X,
                              {"kernel": ScaleKernel(RBFKernel(), batch_shape=torch.Size([2]))}),
    "a batch inside": (ConfigurationError, r"batch shape \(2,\)", X,
                       {"kernel": ScaleKernel(RBFKernel(batch_shape=torch.Size([2])))}),
    "too many lengthscales": (ConfigurationError, "5 lengthscales and the points have 3", X,
                              {"kernel": MaternKernel(ard_num_dims=5) + RBFKernel()}),
    "lengthscales for one column": (ConfigurationError, "2 lengthscales and the points have 1",
                                    X[:, :1], {"kernel": RBFKernel(ard_num_dims=2)}),
    "too few of another kernel": (ConfigurationError, "cannot be evaluated at points with 3", X,
                                  {"kernel": RQKernel(ard_num_dims=2)}),
    "columns beyond the last": (ConfigurationError, "cannot be evaluated", X,
                                {"kernel": RBFKernel(active_dims=[0, 7])}),
    "a kernel of tasks": (ConfigurationError, "one number for each pair", X,
                          {"kernel": MultitaskKernel(RBFKernel(), num_tasks=2)}),
    "a likelihood misspelt": (ConfigurationError, "must be one of", X, {"likelihood": "gauss"}),
    "early stopping by no rows": (ConfigurationError, "rows to judge by", X,
                                  {"early_stopping": True, "validation_fraction": 0.0}),
    "natural steps of hybrid": (ConfigurationError, "optimizer='adam'", X, {"basis": "hybrid"}),
    "a device out of reach": (ConfigurationError, "cannot be used here.*use 'cpu'", X,
                              {"device": "cuda:63"}),
    "a device without memory": (ConfigurationError, "cannot be used", X, {"device": "meta"}),
}  # fmt: skip

# Settings that no data could make right. Those of a type that the suite's own check of types would
# refuse first are in the tests of `TrainingConfig`.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "n_inducing": (0, -3, 2.5, True, "10", None),
    "n_residual": (-1, 0.5),
    "max_steps": (0, -1),
    "batch_size": (0,),
    "max_time": (-1.0, NAN, INF),
    "learning_rate": (0.0, NAN),
    "adam_beta2": (0.0, 1.0, NAN),
    "natural_step": (0.0, 1.5),
    "kl_columns": (0, "all"),
    "jitter": (-1e-6, NAN, INF, "small"),
    "validation_fraction": (1.0, -0.1, NAN, "some"),
    "noise_variance": (-1.0, 0.0, NAN, INF, "loud", 1e-9, 1e300),
    "clip_norm": (0.0,),
    "schedule": ("linear",),
    "residual_rule": ("sgd",),
    "hold_fixed": ("all",),
    "basis": ("round",),
    "optimizer": ("sgd",),
    "dtype": ("float16", int, None),
    "device": ("abacus", 3),
    "random_state": ("seven", -1, 1.5),
    "callbacks": (None, [5]),
    "checkpoint_dir": (5,),
    "rows_dir": (5,),
    "ard": ("no",),
    "standardize": ("no",),
    "early_stopping": (1,),
    "train_points": ("no",),
}

# Targets of one estimator alone.
TARGET_FITS: dict[str, tuple] = {
    "NaN in y": (Regressor, DataError, "y has 1 values.*row 3", changed(Y, 3, NAN)),
    "infinity in y": (Regressor, DataError, "y has 1 values.*infinite", changed(Y, 3, INF)),
    "None in y": (Regressor, DataError, "y has 20 values", np.array([1, None] * 20, dtype=object)),
    "text in y": (Regressor, DataError, "y has text, '(up|down)'", LABELS),
    "complex y": (Regressor, DataError, "y is complex", Y + 1j),
    "y of other rows": (Regressor, DataError, "X has 40 rows and y has 39", Y[1:]),
    "y too large": (Regressor, DataError, "y has values too large", Y * 1e306),
    "no target": (Regressor, DataError, r"y has shape \(40, 0\)", np.ones((40, 0))),
    "negative counts": (Regressor, DataError, "negative or fractional", -ONES, "poisson"),
    "fractional counts": (Regressor, DataError, "counts must be 0, 1, 2", 1.5 * ONES, "poisson"),
    "half a success": (Regressor, DataError, "fractional", 0.5 * ONES, "negative_binomial"),
    "certain shares": (Regressor, DataError, r"outside \(0, 1\)", ONES, "beta"),
    "numbers as classes": (Regressor, ConfigurationError, "OrthogonalGPClass", Y, "bernoulli"),
    "a likelihood of two": (Regressor, ConfigurationError, "batch_shape", Y,
                            GaussianLikelihood(batch_shape=torch.Size([2]))),
    "NaN among labels": (Classifier, DataError, "1 labels that are missing", changed(ONES, 3, NAN)),
    "None among labels": (Classifier, DataError, "20 labels", np.array(["a", None] * 20, object)),
    "NA among labels": (Classifier, DataError, "20 labels", pd.Series(["a", pd.NA] * 20)),
    "one class": (Classifier, DataError, "one class, 'up'; .* at least 2", np.full(40, "up")),
    "measurements": (Classifier, DataError, "Unknown label type: continuous", Y),
    "labels of two types": (Classifier, DataError, "of one type", np.array([1, "b"] * 20, object)),
    "two labels a row": (Classifier, DataError, r"shape \(40, 2\)", np.ones((40, 2), dtype=int)),
    "labels of other rows": (Classifier, DataError, "y has 39", LABELS[1:]),
    "classes as numbers": (Classifier, ConfigurationError, "OrthogonalGPReg", LABELS, "gaussian"),
    "three for two": (Classifier, ConfigurationError, "are 3", np.arange(40) % 3, "bernoulli"),
    "three for four": (Classifier, ConfigurationError, "for 4 classes", np.arange(40) % 3,
                       SoftmaxLikelihood(4, 4)),
}  # fmt: skip


@cache
def plain(kind: type) -> np.ndarray:
    """What the same fit to plain numbers predicts, on all rows."""
    return predicted(small(kind).fit(X, LABELS if kind is Classifier else Y), X)


def predicted(gp: Any, inputs: Any) -> np.ndarray:
    """Probabilities, or means and deviations."""
    if isinstance(gp, Classifier):
        return gp.predict_proba(inputs)
    return np.stack(gp.predict(inputs, return_std=True), axis=1)


def sound(gp: Any, inputs: Any) -> bool:
    """Finite; probabilities that sum to one, or deviations that are not negative."""
    found = predicted(gp, inputs)
    if isinstance(gp, Classifier):
        fair = bool((found >= 0).all()) and np.allclose(found.sum(1), 1)
    else:
        fair = bool((found[:, 1] >= 0).all())
    return fair and bool(np.isfinite(found).all()) and bool(np.isfinite(gp.elbo_))


# Inputs that mean the same as plain numbers, exactly or to the rounding of float32.
SAME: dict[str, Any] = {
    "numbers as objects": X.astype(object),
    "numbers as text": X.astype(str),
    "a table with names": FRAME,
    "a list": X.tolist(),
    "a tensor": torch.tensor(X),
    "a wider float": X.astype(np.longdouble),
    "columns from 1e-30 to 1e30": X * [1e-30, 1.0, 1e30],
    "columns from 1e-300 to 1e300": X * [1e-300, 1.0, 1e300],
    "numbers without digits to lose": X * 1e-310,
    "columns in Fortran's order": np.asfortranarray(X),
    "a mask that hides nothing": np.ma.masked_array(X, False),
}
# Inputs, targets and settings of which nothing but soundness can be said.
SOUND: dict[str, tuple] = {
    "a constant column": (np.column_stack([X, ONES]), {}),
    "constant columns only": (np.ones((40, 2)), {}),
    "one distinct row": (np.repeat(X[:1], 40, axis=0), {}),
    "duplicates": (np.tile(X[:4], (10, 1)), {}),
    "fewer rows than points": (X, {"n_inducing": 1000, "n_residual": 1000}),
    "a column of truth values": (np.column_stack([X, X[:, 0] > 0.5]), {}),
    "small integers": ((10 * X).astype(np.int8), {}),
    "half precision": (X.astype(np.float16), {}),
    "far from zero": (X + 1e12, {}),
    "an outlier": (changed(X, (0, 0), 1e30), {}),
    "points that coincide": (X, {"inducing_points": X[[0, 0, 0]], "residual_points": X[[0, 0]]}),
    "no residual points": (X, {"n_residual": 0}),
    "one inducing point": (X, {"n_inducing": 1}),
    "weights next to nothing": (X, {"weight": 1e-300 * ONES}),
    "NaN in X": (changed(X, (3, 1), NAN), {}),
    "NaN in a named column": (FRAME.assign(b=changed(Y, 7, NAN)), {}),
    "NA of pandas in X": (FRAME.astype("Float64").mask(X[0, 0] == FRAME), {}),
    "a column of None": (objects(None, 1.0), {}),
    "a column of text": (FRAME.assign(b="red"), {}),
    "a column of categories": (FRAME.assign(b=pd.Categorical(["x", "y"] * 20)), {}),
    "a column of dates": (FRAME.assign(b=pd.Timestamp("2020-01-01")), {}),
}
# Targets of one estimator, and what has to be true of it then.
RIGHT: dict[str, tuple[type, Any, dict[str, Any], Callable[[Any], bool]]] = {
    "a constant target": (Regressor, 7.25 * ONES, {}, lambda gp: near(gp.predict(X), 7.25)),
    "a constant far from one": (Regressor, -3e20 * ONES, {}, lambda gp: near(gp.predict(X), -3e20)),
    "a target of 1e300": (Regressor, 1e300 * Y, {},
                          lambda gp: np.allclose(predicted(gp, X) / 1e300, plain(Regressor))),
    "a target of 1e-300": (Regressor, 1e-300 * Y, {},
                           lambda gp: np.allclose(predicted(gp, X) / 1e-300, plain(Regressor))),
    "a column of targets": (Regressor, Y[:, None], {}, lambda gp: gp.predict(X).shape == (40, 1)),
    "no counts at all": (Regressor, 0 * ONES, {"likelihood": "poisson"},
                         lambda gp: bool((gp.predict(X) >= 0).all())),
    "counts of a trillion": (Regressor, 1e12 * ONES, {"likelihood": "poisson"},
                             lambda gp: near(gp.predict(X), 1e12)),
    "a class of one": (Classifier, ONES.astype(int) - (np.arange(40) == 5), {},
                       lambda gp: gp.classes_.tolist() == [0, 1]),
    "labels that are whole floats": (Classifier, (LABELS == "up") * 1.0, {},
                                     lambda gp: (predicted(gp, X) == plain(Classifier)).all()),
    "truth values": (Classifier, LABELS == "up", {}, lambda gp: gp.predict(X).dtype == bool),
    "labels as objects": (Classifier, LABELS.astype(object), {},
                          lambda gp: np.array_equal(predicted(gp, X), plain(Classifier))),
}  # fmt: skip


def near(values: np.ndarray, value: float) -> bool:
    return bool(np.allclose(values, value, rtol=1e-6, atol=0))
