"""Run as a program, without the suite's check of types: what many at once get, as JSON.

alone     which things that everyone shares are not as found, after each thing that is done; fits;
          and how many answers to eight threads differ from those to one
fit SEED  one of those fits
"""

import json
import os
import random
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpytorch
import numpy as np

# What these do when they are first imported is theirs: filters of warnings, a place for torch's
# compiler in the environment. torch's own optimizers import that compiler.
import scipy.special  # noqa: F401
import sklearn.cluster  # noqa: F401
import torch
import torch._dynamo

THREADS, ROUNDS = 8, 6
SEEDS = (1, 2)
MODELS = ("numbers", "classes", "another kernel", "draws", "counts", "objects")
SMALL = {"n_neighbors": 0, "n_inducing": 15, "n_residual": 15, "max_steps": 5, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=200)


def shared() -> dict[str, str]:
    """The state of this process that everyone shares, in words."""
    numbers = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "gradients": str(torch.is_grad_enabled()),
        "determinism": str(torch.are_deterministic_algorithms_enabled()),
        "matrix products": torch.get_float32_matmul_precision(),
        "threads": f"{torch.get_num_threads()} {torch.get_num_interop_threads()}",
        "torch's generator": str(torch.get_rng_state().tolist()),
        "NumPy's generator": f"{numbers['key'].tolist()} {numbers['pos']}",
        "Python's generator": str(random.getstate()),
        "filters of warnings": str(warnings.filters),
        "errors of NumPy": str(np.geterr()),
        "printing": str(np.get_printoptions()),
        "environment": str(sorted(os.environ.items())),
        "folder": os.getcwd(),
        "settings of GPyTorch": str(
            {name: getattr(flag, "_state", "") for name, flag in vars(gpytorch.settings).items()}
        ),
        "pictures": str("matplotlib" in sys.modules),
    }


def changes(before: dict[str, str]) -> list[str]:
    return [name for name, value in shared().items() if value != before[name]]


def model(name: str):
    """A fitted model, and what is asked of it."""
    from gpytorch.kernels import RQKernel, ScaleKernel

    from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

    def spread(gp):
        return np.stack([*gp.predict(X, return_std=True), *gp.predict_interval(X)])

    regressor, classifier = OrthogonalGPRegressor(**SMALL), OrthogonalGPClassifier(**SMALL)
    if name == "numbers":
        return regressor.fit(X, Y), spread
    if name == "classes":
        return classifier.fit(X, np.digitize(Y, [-0.5, 0.5])), lambda gp: gp.predict_proba(X)
    if name == "another kernel":
        return regressor.set_params(kernel=ScaleKernel(RQKernel())).fit(X, Y), spread
    if name == "draws":
        return regressor.fit(X, Y), lambda gp: gp.sample_y(X[:20], 3)
    if name == "counts":
        return regressor.set_params(likelihood="poisson").fit(X, np.round(np.exp(Y))), spread
    assert name == "objects"
    return regressor.fit(X, Y), lambda gp: gp.predict(X.astype(object))


def ask_at_once(name: str) -> dict:
    gp, ask = model(name)
    alone, before = ask(gp), shared()
    parameters = dict(gp.model_.named_parameters())
    together = threading.Barrier(THREADS)

    def work(_: int) -> list:
        together.wait()
        return [ask(gp) for _ in range(ROUNDS)]

    usual = sys.getswitchinterval()
    # Threads that are interrupted as often as possible: what can go wrong between them does.
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(THREADS) as pool:
        answers = [answer for part in pool.map(work, range(THREADS)) for answer in part]
    sys.setswitchinterval(usual)
    return {
        "answers": len(answers),
        "wrong": sum(not np.array_equal(answer, alone) for answer in answers),
        "changed": changes(before),
        "exchanged": [n for n, p in gp.model_.named_parameters() if p is not parameters[n]],
    }


def states() -> dict[str, list[str]]:
    before, found = shared(), {}
    import orthogp
    from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

    found["import"] = changes(before)
    # Without a seed of its own, which must not come from a generator that others share.
    few = SMALL | {"random_state": None}
    gp = OrthogonalGPRegressor(**few).fit(X, Y)
    clf = OrthogonalGPClassifier(**few).fit(X, Y > 0)
    found["fit"] = changes(before)
    gp.predict_interval(X), gp.log_density(X, Y), clf.predict_proba(X)
    found["predict"] = changes(before)
    gp.sample_y(X, 3, random_state=None)
    found["draw"] = changes(before)
    with tempfile.TemporaryDirectory() as folder:
        gp.save(Path(folder) / "model")
        found["save"] = changes(before)
        OrthogonalGPRegressor.load(Path(folder) / "model").predict(X)
        found["load"] = changes(before)
    for bad in (lambda: gp.predict(X + np.inf), lambda: clf.fit(X, Y)):
        try:
            bad()
        except orthogp.OrthogpError:
            continue
        raise AssertionError("a refusal was expected")
    found["refuse"] = changes(before)
    return found


def fit(seed: int) -> list[float]:
    from orthogp import OrthogonalGPRegressor

    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(200, 3))
    gp = OrthogonalGPRegressor(**SMALL | {"max_steps": 20}).fit(inputs, np.sin(inputs[:, 0]))
    return [gp.elbo_, *gp.predict(inputs[:20]).tolist()]


if __name__ == "__main__":
    if sys.argv[1] == "fit":
        print(json.dumps(fit(int(sys.argv[2]))))
    else:
        # The states first: nothing of orthogp has been imported yet.
        found = {"states": states(), "fits": [fit(seed) for seed in SEEDS]}
        print(json.dumps(found | {"threads": {name: ask_at_once(name) for name in MODELS}}))
