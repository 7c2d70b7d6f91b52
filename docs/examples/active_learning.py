# %% [markdown]
# # Active learning
#
# Labels cost money: which rows should be labelled next? Those whose label the model is least sure
# of. The breast cancer table that ships with scikit-learn plays the pool: ten labels to begin
# with, then ten at a time, chosen by the entropy of the prediction or at random.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from orthogp import OrthogonalGPClassifier

X, y = load_breast_cancer(return_X_y=True)
START, BATCH, ROUNDS, REPEATS = 10, 10, 5, 3


def entropy(model, rows):
    p = np.clip(model.predict_proba(rows), 1e-12, 1)
    return -np.sum(p * np.log(p), axis=1)


def random(model, rows, rng):
    return rng.permutation(len(rows))[:BATCH]


def least_certain(model, rows, rng):
    return np.argsort(entropy(model, rows))[::-1][:BATCH]


# %% [markdown]
# With few labels every one of them is an inducing point, no residual points are needed, and a fit
# is a matter of a fraction of a second.


# %%
def learn(pick, seed):
    """Test errors after every round of labelling."""
    rng = np.random.default_rng(seed)
    pool, test, y_pool, y_test = train_test_split(
        X, y, test_size=0.4, random_state=seed, stratify=y
    )
    labelled = np.concatenate([np.flatnonzero(y_pool == c)[: START // 2] for c in (0, 1)])
    errors = []
    for _ in range(ROUNDS + 1):
        model = OrthogonalGPClassifier(
            n_inducing=100, n_residual=0, ard=False, max_steps=40, random_state=0
        ).fit(pool[labelled], y_pool[labelled])
        errors.append(1 - model.score(test, y_test))
        rest = np.setdiff1d(np.arange(len(pool)), labelled)
        labelled = np.concatenate([labelled, rest[pick(model, pool[rest], rng)]])
    return errors


counts = START + BATCH * np.arange(ROUNDS + 1)
curves = {
    name: np.array([learn(pick, seed) for seed in range(REPEATS)])
    for name, pick in {"at random": random, "least certain": least_certain}.items()
}
print("labels        " + "".join(f"{n:7d}" for n in counts))
for name, errors in curves.items():
    print(f"{name:14}" + "".join(f"{e:7.1%}" for e in errors.mean(0)))

# %%
figure, axes = plt.subplots(
    num="Test error against the number of labels, mean and range of the repeats"
)
for (name, errors), marker in zip(curves.items(), "os", strict=True):
    axes.fill_between(counts, errors.min(0), errors.max(0), alpha=0.15)
    axes.plot(counts, errors.mean(0), marker=marker, markersize=4, label=name)
axes.set(xlabel="labels", ylabel="test error", ylim=(0, None))
axes.yaxis.set_major_formatter("{x:.0%}")
axes.legend()

# %% [markdown]
# For regression the rule is the same with another score: the rows with the largest standard
# deviation of the function, `gp.predict_latent(rows)[1]`. There the inducing points need to cover
# the pool, because residual points sharpen the mean only.
