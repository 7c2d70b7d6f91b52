"""GPflow: its whitened SVGP, natural steps and Adam in one graph. It needs numpy<2."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tf_keras

from .contract import Data, Setup


class GPflowSVGP:
    chunk_rows = None

    def __init__(self, setup: Setup, data: Data):
        self.versions = {"gpflow": gpflow.__version__, "tensorflow": tf.__version__}
        if setup.device == "cuda" and not tf.config.list_physical_devices("GPU"):
            raise RuntimeError("TensorFlow sees no CUDA device")
        gpflow.config.set_default_float(setup.dtype)
        gpflow.config.set_default_jitter(1e-5)
        rough, smooth = (
            np.full(setup.dims, value) if setup.ard else value for value in setup.lengthscales
        )
        kernel = gpflow.kernels.Matern52(lengthscales=rough)
        kernel += gpflow.kernels.RBF(lengthscales=smooth)
        likelihood = gpflow.likelihoods.Gaussian(variance=setup.noise)
        self.model = gpflow.models.SVGP(kernel, likelihood, data.beta, num_data=setup.rows)
        gpflow.set_trainable(self.model.q_mu, False)
        gpflow.set_trainable(self.model.q_sqrt, False)
        self.x, self.y = tf.constant(data.x), tf.constant(data.y[:, None])
        self.test = tf.constant(data.test)
        self.num_rows = setup.rows
        natural = gpflow.optimizers.NaturalGradient(gamma=setup.natural_step)
        adam = tf_keras.optimizers.Adam(setup.learning_rate)
        adam.build(self.model.trainable_variables)

        @tf.function
        def run(steps: Any) -> Any:
            value = tf.zeros((), self.x.dtype)
            for _ in tf.range(steps):
                index = tf.random.uniform([setup.batch], maxval=setup.rows, dtype=tf.int32)
                batch = tf.gather(self.x, index), tf.gather(self.y, index)
                loss = self.model.training_loss_closure(batch, compile=False)
                natural.minimize(loss, [(self.model.q_mu, self.model.q_sqrt)])
                with tf.GradientTape() as tape:
                    value = loss()
                variables = self.model.trainable_variables
                adam.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
            return value

        self.run, self.latent = run, tf.function(self.model.predict_f)

    def train(self, steps: int) -> float:
        return -float(self.run(tf.constant(steps))) / self.num_rows

    def predict(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.latent(self.test[start:stop])
        return mean.numpy()[:, 0], variance.numpy()[:, 0]

    def peak_bytes(self) -> int | None:
        if not tf.config.list_physical_devices("GPU"):
            return None
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
