"""GPJax: its whitened SVGP, natural steps and Adam in one compiled scan, as in `fit_natgrads`.

That function itself compiles afresh at every call; this is its loop, compiled once and carried on.
Adam on everything took four times as long: its gradients pass through a scatter.
"""

# Its annotations are stricter than what its constructors take.
# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
import os
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import equinox as eqx
import gpjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gpjax.fit import get_batch
from gpjax.natural_gradients import natural_gradient_step, partition_variational

from .contract import Data, Setup


def loss(q: Any, batch: Any) -> Any:
    return -gpjax.objectives.elbo(q, batch)


class GPJaxSVGP:
    chunk_rows = None

    def __init__(self, setup: Setup, data: Data):
        self.versions = {"gpjax": gpjax.__version__, "jax": jax.__version__}
        jax.config.update("jax_platforms", setup.device)
        jax.config.update("jax_enable_x64", setup.dtype == "float64")
        # TF32, the default of some devices, ruins distances; PyTorch does not use it either.
        jax.config.update("jax_default_matmul_precision", "highest")
        self.device = jax.devices()[0]

        def scale(value: float) -> Any:
            return jnp.full((setup.dims,) if setup.ard else (), value, setup.dtype)

        one = jnp.ones((), setup.dtype)
        rough, smooth = (scale(value) for value in setup.lengthscales)
        kernel = gpjax.kernels.Matern52(lengthscale=rough, variance=one)
        kernel += gpjax.kernels.RBF(lengthscale=smooth, variance=one)
        mean = gpjax.mean_functions.Zero()
        prior = gpjax.gps.Prior(mean_function=mean, kernel=kernel, jitter=1e-5)
        model = prior * gpjax.likelihoods.Gaussian(obs_stddev=setup.noise**0.5 * one)
        q = gpjax.variational_families.WhitenedVariationalGaussian(
            model=model, inducing_inputs=jnp.asarray(data.beta)
        )
        self.rows = gpjax.Dataset(X=jnp.asarray(data.x), y=jnp.asarray(data.y[:, None]))
        self.test = jnp.asarray(data.test)
        variational, rest = partition_variational(q)
        adam = optax.adam(setup.learning_rate)
        state = variational, rest, adam.init(eqx.filter(rest, eqx.is_array))
        # Some leaves begin weakly typed and a step makes them strong: each would compile it anew.
        self.state = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, leaf.dtype) if eqx.is_array(leaf) else leaf, state
        )
        self.key = jax.random.key(setup.seed)

        def step(state: Any, drawn: Any) -> Any:
            rows, key = drawn
            variational, rest, moments = state
            batch = get_batch(rows, setup.batch, key)
            rate = jnp.asarray(setup.natural_step, setup.dtype)
            variational, value = natural_gradient_step(variational, rest, batch, loss, rate)
            grads = eqx.filter_grad(lambda r: loss(eqx.combine(variational, r), batch))(rest)
            updates, moments = adam.update(grads, moments, eqx.filter(rest, eqx.is_array))
            return (variational, eqx.apply_updates(rest, updates), moments), value

        @eqx.filter_jit(donate="all-except-first")
        def run(rows: Any, state: Any, keys: Any) -> Any:
            return jax.lax.scan(lambda state, key: step(state, (rows, key)), state, keys)

        @eqx.filter_jit
        def predict(state: Any, x: Any) -> Any:
            latent = eqx.combine(*state[:2]).condition(None)(x, covariance="diagonal")
            return latent.mean, latent.variance

        self.run, self.latent = run, predict

    def train(self, steps: int) -> float:
        self.key, key = jax.random.split(self.key)
        self.state, values = self.run(self.rows, self.state, jax.random.split(key, steps))
        return -float(values[-1]) / self.rows.n

    def predict(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.latent(self.state, self.test[start:stop])
        return np.asarray(mean), np.asarray(variance)

    def peak_bytes(self) -> int | None:
        stats = self.device.memory_stats() or {}
        return stats.get("peak_bytes_in_use")
