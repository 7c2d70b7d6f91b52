"""What BoTorch's own tests ask of a model, asked of ours; and noise that is known.

The same properties as its cases of `SingleTaskGP`, of one and several outcomes, in float32 and
float64, with and without transforms, on a CPU and on a GPU.
"""

import itertools

import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.testing import BotorchTestCase

from botorch_models import NEW, SMALL, D, X, assert_same, data, near_model, peer
from orthogp import OrthogonalGPRegressor
from orthogp.botorch import OrthogonalGPModel
from orthogp.errors import DataError

N = 10


class TestModel(BotorchTestCase):
    def small_model(self, m=1, dtype=torch.float64, noise=False, outcome=False, inputs=False):
        x, y = (t.to(self.device, dtype) for t in data(N, m))
        return OrthogonalGPModel(
            x, y, torch.full_like(y, 0.1) if noise else None, OrthogonalGPRegressor(**SMALL),
            Standardize(m) if outcome else None,
            Normalize(D, bounds=torch.tensor([[0.0] * D, [10.0] * D]).to(x)) if inputs else None,
        )  # fmt: skip

    def points(self, *shape, dtype=torch.float64):
        generator = torch.Generator().manual_seed(sum(shape))
        return torch.rand(*shape, D, generator=generator).to(self.device, dtype)

    def test_posterior(self):
        options = itertools.product((1, 2), (torch.float32, torch.float64), (False, True))
        for m, dtype, transformed in options:
            model = self.small_model(m, dtype, outcome=transformed, inputs=transformed)
            assert (model.num_outputs, model.batch_shape) == (m, torch.Size())
            for shape in ((3,), (2, 3), (2, 4, 3)):
                x = self.points(*shape, dtype=dtype)
                posterior = model.posterior(x)
                assert isinstance(posterior, GPyTorchPosterior)
                assert posterior.mean.shape == (*shape, m)
                assert posterior.variance.shape == (*shape, m)
                assert posterior.rsample(torch.Size([5])).shape == (5, *shape, m)
                assert (posterior.dtype, posterior.device.type) == (dtype, x.device.type)
                observed = model.posterior(x, observation_noise=True)
                noise = model._noise
                if transformed:
                    noise = noise * model.outcome_transform.stdvs.square()
                added = observed.variance - posterior.variance
                self.assertAllClose(added.double(), noise.expand_as(added).double(), rtol=1e-2)

    def test_train_inputs_are_transformed(self):
        model = self.small_model(inputs=True)
        expected = data(N)[0].to(self.device) / 10.0
        self.assertAllClose(model.train_inputs[0], expected)
        joined = model.condition_on_observations(self.points(2), self.points(2)[:, :1])
        self.assertAllClose(joined.train_inputs[0][N:], self.points(2) / 10.0)

    def test_condition_on_observations(self):
        for m, noise, transformed in itertools.product((1, 2), (False, True), (False, True)):
            model = self.small_model(m, noise=noise, outcome=transformed)
            x, y = self.points(2, 3), self.points(2, 3)[..., :m]
            given = {"noise": torch.full_like(y, 0.01)} if noise else {}
            each = model.condition_on_observations(x, y, **given)
            same = model.condition_on_observations(x[0], y, **given)
            assert isinstance(each, OrthogonalGPModel)
            at = self.points(4)
            for points in (at, at.expand(2, 4, D)):
                assert each.posterior(points).mean.shape == (2, 4, m)
                assert same.posterior(points).mean.shape == (2, 4, m)
            for i in range(2):
                own = {name: t[i] for name, t in given.items()}
                for batched, x_one in ((each, x[i]), (same, x[0])):
                    alone = model.condition_on_observations(x_one, y[i], **own).posterior(at)
                    found = batched.posterior(at)
                    self.assertAllClose(found.mean[i], alone.mean, atol=1e-5)
                    self.assertAllClose(found.variance[i], alone.variance, atol=1e-5)

    def test_fantasize(self):
        for m, noise in itertools.product((1, 2), (False, True)):
            model, x = self.small_model(m, noise=noise), self.points(4)
            sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
            found = model.fantasize(x, sampler)
            assert isinstance(found, OrthogonalGPModel)
            assert found.posterior(x).mean.shape == (3, 4, m)
            exact = torch.full((1, m), 1e-6).to(x)
            sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
            known = model.fantasize(x, sampler, observation_noise=exact)
            variance = known.posterior(x).variance
            assert (variance < 0.0001).all()
            assert (found.posterior(x).variance > 0.001).all()
            nothing = model.fantasize(x[:0], SobolQMCNormalSampler(torch.Size([3])))
            expected = model.posterior(x).mean.expand(3, 4, m)
            self.assertAllClose(nothing.posterior(x).mean, expected)

    def test_subset_output(self):
        for noise, transformed in itertools.product((False, True), repeat=2):
            model, x = self.small_model(2, noise=noise, outcome=transformed), self.points(3)
            whole = model.posterior(x)
            for part in ([0], [1], [0, 1], [1, 0]):
                found = model.subset_output(part).posterior(x)
                self.assertAllClose(found.mean, whole.mean[..., part])
                self.assertAllClose(found.variance, whole.variance[..., part])

    def test_construct_inputs(self):
        x, y = (t.to(self.device) for t in data(N))
        names = {"feature_names": list("abc"), "outcome_names": ["y"]}
        for noise in (None, torch.full_like(y, 0.1)):
            parts = OrthogonalGPModel.construct_inputs(SupervisedDataset(x, y, Yvar=noise, **names))
            model = OrthogonalGPModel(**parts)
            assert torch.equal(model.train_inputs[0], x)
            assert (model._known_noise() is None) == (noise is None)

    def test_hyperparameters_are_those_of_a_module(self):
        model = self.small_model(2)
        names = dict(model.named_parameters())
        assert any("lengthscale" in name for name in names)
        assert any("noise" in name for name in names)
        assert all(p.device.type == self.device.type for p in names.values())

    def test_optimize_acqf(self):
        model = self.small_model()
        function = qLogNoisyExpectedImprovement(model, model.train_inputs[0], cache_root=False)
        bounds = torch.stack([torch.zeros(D), torch.ones(D)]).to(self.points(1))
        found, _ = optimize_acqf(
            function, bounds, q=2, num_restarts=2, raw_samples=4, options={"maxiter": 3}
        )
        assert found.shape == (2, D)
        assert found.device.type == self.device.type

    def test_functions(self):
        model = self.small_model(2)
        functions, x = model.sample_functions(3, seed=0), self.points(4)
        assert functions(x).shape == (3, 4, 2)
        assert functions(x).device.type == self.device.type
        assert torch.equal(functions(x), functions(x))


@pytest.mark.cuda
class TestModelOnAGpu(TestModel):
    device = torch.device("cuda")


@pytest.mark.cuda
def test_a_gpu_gives_what_a_cpu_gives():
    found = []
    for device in ("cpu", "cuda"):
        x, y = (t.to(device) for t in data(outcomes=2))
        model = OrthogonalGPModel(x, y, estimator=OrthogonalGPRegressor(**SMALL))
        model = model.condition_on_observations(*(t.to(device) for t in data(4, 2, seed=3)))
        sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
        at = NEW.reshape(4, 3, D).to(device).requires_grad_()
        posterior = model.fantasize(at[:, :1], sampler).posterior(at)
        (posterior.mean.sum() + posterior.variance.sum()).backward()
        found.append([t.detach().cpu() for t in (posterior.mean, posterior.variance, at.grad)])
    for cpu, gpu in zip(*found, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=1e-4, atol=1e-4)


def known(outcomes=1):
    """Variances of noise that differ from row to row, and between outcomes."""
    steps = torch.linspace(0.05, 1.0, len(X) * outcomes).double()
    return steps.reshape(outcomes, len(X)).mT.contiguous()


@pytest.mark.parametrize("outcomes", [1, 2])
@pytest.mark.parametrize("transform", [False, True])
def test_known_noise_is_that_of_the_exact_process(outcomes, transform):
    X, Y = data(outcomes=outcomes)
    Yvar = known(outcomes)
    estimator = OrthogonalGPRegressor(**SMALL)
    standardize = Standardize(outcomes) if transform else None
    model = OrthogonalGPModel(X, Y, Yvar, estimator, standardize)
    if transform:
        assert_same(model.posterior(NEW), OrthogonalGPModel(X, Y, Yvar, estimator).posterior(NEW))
        return
    x, y = data(4, outcomes, seed=3)
    noise = known(outcomes)[:4]
    for c in range(outcomes):
        theirs = peer(model, c, X, Y, Yvar)
        part = model.subset_output([c])
        assert_same(part.posterior(NEW), theirs.posterior(NEW))
        ours = model.condition_on_observations(x, y, noise).subset_output([c])
        expected = theirs.condition_on_observations(x, y[:, [c]], noise=noise[:, [c]])
        assert_same(ours.posterior(NEW), expected.posterior(NEW))


def test_known_noise_is_not_learned():
    X, Y = data()
    fits = [
        OrthogonalGPModel(X, Y, Yvar, OrthogonalGPRegressor(max_steps=5, **SMALL)).fit()
        for Yvar in (known(), 2.0 * known())
    ]
    for model, factor in zip(fits, (1.0, 2.0), strict=True):
        torch.testing.assert_close(
            model._noise.squeeze(), factor * known().mean(), rtol=1e-6, atol=0
        )
    # New rows without a noise have the mean of those known; a fit of all rows has what each had.
    joined = fits[0].condition_on_observations(*data(3, seed=2), noise=known()[:3])
    joined = joined.condition_on_observations(*data(2, seed=4))
    noise = joined._known_noise()
    assert noise is not None
    mean = known().mean().expand(2, 1)
    torch.testing.assert_close(noise, torch.cat([known(), known()[:3], mean]), rtol=1e-6, atol=0)
    assert torch.equal(joined.fit()._known_noise(), noise)


def test_rows_that_know_their_noise_join_one_that_has_learned_it():
    """With near rows, and one noise for both outcomes until then."""
    model = near_model(count=60, outcomes=2, max_steps=5)
    x, y = data(4, 2, seed=3)
    noise = known(2)[:4]
    joined = model.condition_on_observations(x, y, noise)
    batched = model.condition_on_observations(x[None], y[None], noise[None])
    found, expected = (m.posterior(NEW) for m in (joined, batched))
    torch.testing.assert_close(found.mean, expected.mean[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(found.variance, expected.variance[0], rtol=0, atol=1e-4)


def test_lengthscales_have_a_prior_unless_a_kernel_is_given():
    from gpytorch.priors import LogNormalPrior

    x, y = data(N)
    model = OrthogonalGPModel(x, y, estimator=OrthogonalGPRegressor(**SMALL))
    priors = [prior for _, _, prior, _, _ in model.covar_module.named_priors()]
    assert len(priors) == 2
    assert all(isinstance(prior, LogNormalPrior) for prior in priors)
    # The median of BoTorch's, in units of the standard deviation of the unit cube.
    side = torch.tensor(12.0).sqrt()
    expected = side * D**0.5 * torch.tensor(2.0).sqrt().exp()
    torch.testing.assert_close(priors[0].loc.exp().float(), expected)
    kernel = model.covar_module.kernels[1]
    given = OrthogonalGPModel(x, y, estimator=OrthogonalGPRegressor(kernel=kernel, **SMALL))
    assert type(given.covar_module) is type(kernel)


def test_variances_of_another_shape_are_refused():
    x, y = data(N)
    with pytest.raises(DataError, match="train_Yvar has shape"):
        OrthogonalGPModel(x, y, torch.ones(N).double())
