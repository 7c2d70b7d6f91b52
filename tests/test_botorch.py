"""The model for BoTorch beside `SingleTaskGP` with the same hyperparameters."""

import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.models import ModelList
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from botorch_models import BOUNDS, NEW, SMALL, D, N, X, Y, assert_same, data, near_model, peer
from orthogp import OrthogonalGPRegressor
from orthogp.botorch import OrthogonalGPModel
from orthogp.errors import ConfigurationError, DataError
from orthogp.training import predictive


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EVIDENCE_STEPS", "PATCH_STEPS", "LEAVE_ONE_OUT_STEPS"):
            patch.setattr(predictive, name, 30)
        yield


@pytest.fixture(scope="module", params=["exact", "all rows near"])
def model(request, few_steps):
    if request.param == "exact":
        return OrthogonalGPModel(X, Y, estimator=OrthogonalGPRegressor(**SMALL)).fit()
    return near_model(count=60)


@pytest.fixture(scope="module")
def near(few_steps):
    return near_model(count=8)


@pytest.mark.parametrize("shape", [(12,), (4, 3), (2, 6, 1), (2, 2, 3)])
@pytest.mark.parametrize("noise", [False, True])
def test_the_posterior_is_that_of_the_exact_process(model, shape, noise):
    x = NEW.reshape(*shape, D)
    ours = model.posterior(x, observation_noise=noise)
    assert_same(ours, peer(model).posterior(x, observation_noise=noise))
    assert ours.mean.shape == (*shape, 1)


@pytest.mark.parametrize("outcomes", [1, 2])
def test_points_that_coincide_can_be_sampled(outcomes):
    posterior = near_model(10, outcomes).posterior(NEW[[0, 0, 0]])
    draws = posterior.rsample(torch.Size([64]))
    assert draws.shape == (64, 3, outcomes)
    spread = (draws - draws[:, :1]).abs().max()
    assert spread < 0.1 * posterior.variance.sqrt().min()


def test_its_gradient_is_the_exact_one(model):
    gradients = []
    for m in (model, peer(model)):
        x = NEW.reshape(4, 3, D).clone().requires_grad_()
        posterior = m.posterior(x)
        (posterior.mean.sum() + posterior.distribution.covariance_matrix.square().sum()).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def test_noise_of_ones_own(model):
    noise = torch.full((4, 3, 1), 0.7).double()
    x = NEW.reshape(4, 3, D)
    with_it = model.posterior(x, observation_noise=noise).variance
    torch.testing.assert_close(with_it, model.posterior(x).variance + 0.7)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_conditioning_is_that_of_the_exact_process(model, batch):
    x, y = data(4, seed=3)
    x, y = x.expand(*batch, -1, -1), y.expand(*batch, -1, -1) + torch.rand(*batch, 1, 1)
    theirs = peer(model)
    theirs.posterior(NEW)
    ours = model.condition_on_observations(x, y)
    assert ours.batch_shape == batch
    expected = theirs.condition_on_observations(x, y)
    at = NEW.expand(*batch, -1, -1)
    assert_same(ours.posterior(at), expected.posterior(at))
    more = data(2, seed=4)
    again = ours.condition_on_observations(*more)
    more = [t.expand(*batch, -1, -1) for t in more]
    both = [torch.cat(parts, -2) for parts in zip((x, y), more, strict=True)]
    assert_same(again.posterior(at), model.condition_on_observations(*both).posterior(at))
    assert len(again.train_targets) == (N if batch else N + 6)


def test_conditioning_with_noise_of_ones_own(model):
    x, y = data(4, seed=3)
    noise = torch.linspace(0.1, 0.5, 4).double().unsqueeze(1)
    joined = model.condition_on_observations(x, y, noise=noise)
    batched = model.condition_on_observations(x.unsqueeze(0), y.unsqueeze(0), noise=noise)
    assert_same(joined.posterior(NEW), _first(batched.posterior(NEW.unsqueeze(0))))
    assert joined.estimator is not model.estimator


def _first(posterior):
    """The posterior of the first batch."""
    from botorch.posteriors import GPyTorchPosterior
    from gpytorch.distributions import MultivariateNormal

    d = posterior.distribution
    return GPyTorchPosterior(MultivariateNormal(d.mean[0], d.covariance_matrix[0]))


def test_fantasies_are_those_of_the_exact_process(model):
    x = NEW.reshape(4, 3, D)[:, :2]
    found = []
    for m in (model, peer(model)):
        sampler = SobolQMCNormalSampler(torch.Size([5]), seed=1)
        fantasy = m.fantasize(x, sampler)
        found.append(fantasy.posterior(NEW.reshape(4, 3, D)))
        assert fantasy.batch_shape == (5, 4)
    assert found[0].mean.shape == (5, 4, 3, 1)
    assert_same(*found, atol=1e-3)


def acquisitions(m):
    """Each with points to evaluate it at."""
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=1)
    few = SobolQMCNormalSampler(torch.Size([4]), seed=1)
    pairs = NEW.reshape(6, 2, D)
    return {
        "qLogEI": (qLogExpectedImprovement(m, Y.max(), sampler), pairs),
        "qLogNEI": (
            qLogNoisyExpectedImprovement(m, X[:6], sampler, prune_baseline=False, cache_root=False),
            pairs,
        ),
        "LogEI": (LogExpectedImprovement(m, Y.max()), NEW.unsqueeze(1)),
        "UCB": (UpperConfidenceBound(m, beta=2.0), NEW.unsqueeze(1)),
        "qKG": (qKnowledgeGradient(m, num_fantasies=4, sampler=few), NEW.reshape(2, 6, D)),
    }


NAMES = ("qLogEI", "qLogNEI", "LogEI", "UCB", "qKG")


@pytest.mark.parametrize("name", NAMES)
def test_acquisition_functions_agree(model, name):
    (ours, x), (theirs, _) = (acquisitions(m)[name] for m in (model, peer(model)))
    found, expected = ours(x), theirs(x)
    # A logarithm of little: its smallest values are those of rounding.
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_acquisition_functions_are_optimised_with_near_rows(near, name):
    function, x = acquisitions(near)[name]
    points, value = optimize_acqf(
        function, BOUNDS, q=1, num_restarts=2, raw_samples=8, options={"maxiter": 8},
    )  # fmt: skip
    assert points.shape == (1, D)
    assert ((points >= BOUNDS[0]) & (points <= BOUNDS[1])).all()
    if name in ("LogEI", "UCB"):
        assert value > function(x).median()


@pytest.mark.parametrize("outcomes", [1, 2])
def test_functions_have_the_moments_of_the_exact_process(outcomes):
    m = OrthogonalGPModel(*data(outcomes=outcomes), estimator=OrthogonalGPRegressor(**SMALL))
    functions = m.sample_functions(500, seed=0)
    draws = functions(NEW[:4])
    assert draws.shape == (500, 4, outcomes)
    for c in range(outcomes):
        expected = peer(m, c).posterior(NEW[:4])
        error = (draws[..., c].mean(0) - expected.mean[:, 0]).abs()
        assert (error < 5.0 * (expected.variance[:, 0] / 500).sqrt()).all()
        spread = draws[..., c].var(0) / expected.variance[:, 0]
        assert ((spread - 1.0).abs() < 6.0 * (2.0 / 500) ** 0.5).all()
    own = torch.stack([NEW[:4], NEW[4:8]]).unsqueeze(1).expand(2, 500, 4, D)
    each = functions(own)
    assert each.shape == (2, 500, 4, outcomes)
    torch.testing.assert_close(each[0], draws, rtol=0, atol=1e-6)
    assert torch.equal(m.sample_functions(500, seed=0)(NEW[:4]), draws)


@pytest.mark.parametrize("outcomes", [1, 2])
def test_functions_given_the_rows_near_a_start_are_the_same_there_and_smooth(near, outcomes):
    m = near if outcomes == 1 else near_model(count=8, outcomes=2)
    functions, start = m.sample_functions(3, seed=0), NEW[:6].reshape(3, 2, D)
    given = functions.given_rows_near(start)
    torch.testing.assert_close(given(start), functions(start))
    away = start + torch.linspace(0.0, 1.0, 200).double().reshape(-1, 1, 1, 1) * (NEW[-1] - start)
    path = torch.stack([given(x)[..., 0] for x in away])
    other = torch.stack([functions(x)[..., 0] for x in away])
    # Where near rows change, a function has a step, which its second differences show.
    largest, with_steps = (values.diff(n=2, dim=0).abs().amax(0) for values in (path, other))
    assert (largest < 0.1 * with_steps).all()
    x = start.clone().requires_grad_()
    given(x).sum().backward()
    functions(y := start.clone().requires_grad_()).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_thompson_sampling_by_functions(near):
    function = PathwiseThompsonSampling(near)
    points, value = optimize_acqf(
        function, BOUNDS, q=2, num_restarts=2, raw_samples=16, options={"maxiter": 10}
    )
    assert points.shape == (2, D)
    assert value >= function(NEW[:2].unsqueeze(0)).item()


def test_several_outcomes():
    X, Y = data(outcomes=3)
    m = OrthogonalGPModel(X, Y, estimator=OrthogonalGPRegressor(**SMALL))
    x = NEW.reshape(4, 3, D)
    whole = m.posterior(x)
    assert whole.mean.shape == (4, 3, 3)
    fantasies = m.fantasize(x, SobolQMCNormalSampler(torch.Size([2]), seed=0))
    for c in range(3):
        expected = peer(m, c).posterior(x)
        for part in (m.subset_output([c]).posterior(x), m.posterior(x, output_indices=[c])):
            assert_same(part, expected)
        torch.testing.assert_close(whole.mean[..., c : c + 1], expected.mean, rtol=0, atol=1e-4)
        variance = whole.variance[..., c : c + 1]
        torch.testing.assert_close(variance, expected.variance, rtol=0, atol=1e-4)
        one = fantasies.subset_output([c]).posterior(x).mean
        torch.testing.assert_close(one, fantasies.posterior(x).mean[..., c : c + 1])
    assert m.subset_output([2, 0]).num_outputs == 2
    weights = torch.tensor([1.0, -2.0, 0.5]).double()
    scalarised = m.posterior(x, posterior_transform=ScalarizedPosteriorTransform(weights))
    torch.testing.assert_close(scalarised.mean[..., 0], whole.mean @ weights)
    joined = m.condition_on_observations(*data(4, 3, seed=3))
    assert joined.posterior(x).mean.shape == (4, 3, 3)


def test_transforms_that_only_scale_change_nothing():
    """The estimator standardises what they leave."""
    settings = OrthogonalGPRegressor(**SMALL)
    plain = OrthogonalGPModel(X, Y, estimator=settings)
    scaled = OrthogonalGPModel(X, Y, None, settings, Standardize(1), Normalize(D))
    x = NEW.reshape(4, 3, D)
    assert_same(scaled.posterior(x), plain.posterior(x))
    more = data(4, seed=3)
    found, expected = (m.condition_on_observations(*more) for m in (scaled, plain))
    assert_same(found.posterior(x), expected.posterior(x))
    one, other = (m.sample_functions(3, seed=0)(NEW) for m in (scaled, plain))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    samplers = [SobolQMCNormalSampler(torch.Size([2]), seed=0) for _ in range(2)]
    found, expected = (m.fantasize(x, s) for m, s in zip((scaled, plain), samplers, strict=True))
    torch.testing.assert_close(
        found.posterior(x).mean, expected.posterior(x).mean, atol=1e-4, rtol=0
    )


def test_a_transform_that_is_not_linear():
    m = OrthogonalGPModel(X, Y, None, OrthogonalGPRegressor(**SMALL), Log())
    plain = OrthogonalGPModel(X, Y.log(), estimator=OrthogonalGPRegressor(**SMALL))
    samples = m.posterior(NEW).rsample(torch.Size([3]))
    assert (samples > 0).all()
    functions = [p.sample_functions(2, seed=0)(NEW) for p in (m, plain)]
    torch.testing.assert_close(functions[0].log(), functions[1])


def test_a_state_dict_carries_the_hyperparameters(model):
    other = OrthogonalGPModel(X, Y, estimator=OrthogonalGPRegressor(**SMALL))
    before = other.posterior(NEW).mean
    other.load_state_dict(model.state_dict())
    assert_same(other.posterior(NEW), model.posterior(NEW))
    assert (other.posterior(NEW).mean - before).abs().max() > 1e-3


def test_it_is_one_of_a_list(near):
    other = OrthogonalGPModel(X, Y, estimator=OrthogonalGPRegressor(**SMALL))
    both = ModelList(near, other).posterior(NEW)
    torch.testing.assert_close(both.mean[..., :1], near.posterior(NEW).mean)


def test_thousands_of_points_together(near):
    """Batches of more points than are worked on at a time."""
    x = torch.rand(600, 2, D, generator=torch.Generator().manual_seed(0)).double() * BOUNDS[1]
    whole = near.posterior(x)
    one = near.posterior(x[333])
    torch.testing.assert_close(whole.mean[333], one.mean)


def test_what_is_refused(near):
    with pytest.raises(DataError, match="without batches"):
        OrthogonalGPModel(X, Y[:, 0])
    settings = {
        "Gaussian noise": {"likelihood": "laplace"}, "train_Yvar": {"noise": "learned"},
        "outcome_transform": {"target_transform": "log"},
    }  # fmt: skip
    for message, setting in settings.items():
        with pytest.raises(ConfigurationError, match=message):
            OrthogonalGPModel(X, Y, estimator=OrthogonalGPRegressor(**setting))
    fantasy = near.condition_on_observations(X[None, :2], Y[None, :2])
    for act in (fantasy.fit, lambda: fantasy.sample_functions(1)):
        with pytest.raises(ConfigurationError, match="without fantasies"):
            act()
