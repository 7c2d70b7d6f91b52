# %% [markdown]
# # Classification that knows when it does not know
#
# The handwritten digits that ship with scikit-learn: 1 797 images of 8 × 8 pixels, ten classes.
# The classifier has one latent function a class and the softmax likelihood, its default for more
# than two classes. Many pixels are black in nearly every image and a stationary kernel would
# take their noise for distance, so sixteen principal components go in, as a scikit-learn pipeline.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orthogp import OrthogonalGPClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)

classifier = OrthogonalGPClassifier(
    n_inducing=100, n_residual=300, ard=False, max_steps=200, batch_size=512, random_state=0
)
gp = make_pipeline(PCA(16), classifier).fit(X_train, y_train)
probabilities = gp.predict_proba(X_test)

linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X_train, y_train)
for name, p in {"orthogp": probabilities, "logistic": linear.predict_proba(X_test)}.items():
    accuracy = accuracy_score(y_test, p.argmax(axis=1))
    print(f"{name:9} accuracy {accuracy:.1%}, log density {-log_loss(y_test, p):.3f}")

# %% [markdown]
# The entropy of the predicted probabilities orders the test images from sure to unsure. Leaving
# out the unsure ones, as one would hand them to a person, removes errors first:

# %%
entropy = -np.sum(probabilities * np.log(np.clip(probabilities, 1e-12, None)), axis=1)
order = np.argsort(entropy)
right = (gp.predict(X_test) == y_test)[order]
kept = np.arange(1, len(order) + 1)
for share in (0.8, 0.9, 0.95, 1.0):
    count = int(share * len(order))
    print(f"the surest {share:4.0%}: {count - right[:count].sum():2d} errors in {count}")

figure, axes = plt.subplots(num="Errors left when the least certain images are handed to a person")
axes.plot(kept / len(kept), np.cumsum(~right))
axes.set(xlabel="share of images decided by the model", ylabel="errors among them")

# %% [markdown]
# The eight test images with the highest entropy, the two most probable classes below each:

# %%
figure, axes = plt.subplots(
    1,
    8,
    num="The eight least certain test images with their two most probable classes",
    figsize=(8, 1.7),
)
for panel, row in zip(axes, order[::-1][:8], strict=True):
    first, second = np.argsort(probabilities[row])[::-1][:2]
    panel.imshow(X_test[row].reshape(8, 8), cmap="gray_r")
    panel.set_title(f"is {y_test[row]}", fontsize=9)
    panel.set_xlabel(
        f"{first}: {probabilities[row, first]:.0%}\n{second}: {probabilities[row, second]:.0%}",
        fontsize=8,
    )
    panel.set(xticks=[], yticks=[])
