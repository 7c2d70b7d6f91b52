"""Priors on hyperparameters count in training, and in it alone; files keep them."""

import copy
import pickle

import gpytorch
import gpytorch.kernels as gk
import gpytorch.priors as gp
import numpy as np
import pytest
import torch
from gpytorch.constraints import Interval

import team_jobs
from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, FileError, NumericalError
from orthogp.execution import files
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian, as_likelihood
from orthogp.model import VariationalGP
from orthogp.storage import load_model, save_model
from orthogp.training import fit, full_bound, start_hyperparameters
from orthogp.training.checkpoint import fingerprint
from orthogp.training.overlapped import OverlappedStep
from priors import narrow, scaled, with_prior
from runs import contents, data, same, settings, single_step
from strategies import Model, orthogonal
from team import together

SMALL = {"n_neighbors": 0, "n_inducing": 20, "n_residual": 20, "random_state": 0, "device": "cpu"}
X = np.random.default_rng(0).normal(size=(200, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1]


def lengthscale(model: VariationalGP) -> float:
    return model.covariance.kernel.base_kernel.lengthscale.item()


def test_the_engine_ends_where_a_narrow_prior_is():
    rows = data(200)
    model = with_prior(rows)
    fit(model, rows, settings(max_steps=250, learning_rate=0.2, adam_beta2=0.98, schedule="cosine"))
    assert lengthscale(model) == pytest.approx(5.0, abs=0.01)


def test_the_estimators_end_there_too_and_report_the_bound():
    found = OrthogonalGPRegressor(kernel=scaled(narrow()), max_steps=200, **SMALL).fit(X, Y)
    assert lengthscale(found.model_) == pytest.approx(5.0, abs=0.01)
    units = found._fitted.units
    bound = full_bound(found.model_, units.rows(X, Y, None, torch.float32))
    assert found.elbo_ == pytest.approx(bound + len(Y) * units.targets.log_jacobian)


def test_gradients_are_those_of_the_bound_and_a_prior_written_by_hand():
    rows = data(40, dtype=torch.float64)
    likelihood = as_likelihood(
        gpytorch.likelihoods.GaussianLikelihood(noise_prior=gp.GammaPrior(2.0, 3.0)), 1
    )
    mean = gpytorch.means.ConstantMean(constant_prior=gp.NormalPrior(1.0, 0.5))
    kernel = scaled(gp.LogNormalPrior(0.3, 0.7))
    kernel.register_prior("outputscale_prior", gp.NormalPrior(2.0, 0.1), "outputscale")
    model = with_prior(rows, kernel, likelihood, mean)
    plain = with_prior(rows, scaled(), Gaussian(1), gpytorch.means.ConstantMean())
    noise = likelihood.likelihood.noise
    length, scale = kernel.base_kernel.lengthscale, kernel.outputscale
    by_hand = (
        torch.distributions.LogNormal(0.3, 0.7).log_prob(length).sum()
        + torch.distributions.Normal(2.0, 0.1).log_prob(scale).sum()
        + torch.distributions.Gamma(2.0, 3.0).log_prob(noise).sum()
        + torch.distributions.Normal(1.0, 0.5).log_prob(mean.constant).sum()
    )
    assert model.log_prior().item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert plain.log_prior().item() == 0.0
    raw = {name: p for name, p in model.named_parameters() if not name.startswith("basis.")}
    expected = torch.autograd.grad(by_hand, raw.values())
    for m in (model, plain):
        single_step(m, rows, settings(batch_size=40))()
    without = dict(plain.named_parameters())
    for (name, parameter), grad in zip(raw.items(), expected, strict=True):
        found = parameter.grad - without[name].grad
        torch.testing.assert_close(found, -grad, rtol=1e-5, atol=1e-8)


def test_the_bound_that_is_reported_has_no_part_of_it():
    rows = data(60)
    bounds = [
        fit(with_prior(rows, kernel), rows, settings(max_steps=1)).history[0].bound
        for kernel in (scaled(narrow()), scaled())
    ]
    assert bounds[0] == bounds[1]


def test_hyperparameters_that_stay_have_no_prior():
    rows = data(60)
    ends = []
    # A value without any density would be refused, did anyone ask.
    for kernel in (scaled(gp.UniformPrior(7.0, 8.0)), scaled()):
        model = with_prior(rows, kernel)
        fit(model, rows, settings(train_hyperparameters=False))
        ends.append(contents(model))
    assert same(*ends)


def test_a_part_used_twice_counts_once():
    base = gk.RBFKernel(lengthscale_prior=narrow())
    model = with_prior(data(60), gk.ScaleKernel(base) + gk.ScaleKernel(base))
    once = with_prior(data(60), gk.ScaleKernel(base))
    assert model.log_prior() == once.log_prior()


def test_processes_count_it_once(tmp_path):
    (first, _), alone = together(2, "train_with_prior", tmp_path), team_jobs.train_with_prior()
    for found, expected in zip(first, alone, strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-8, msg=name)


def test_the_start_by_evidence_heeds_it():
    rows, ends = data(100), []
    for prior in (None, gp.NormalPrior(5.0, 1e-3)):
        kernel = scaled(prior)
        generator = torch.Generator().manual_seed(0)
        assert start_hyperparameters(Covariance(kernel), Gaussian(1), rows, generator, 100)
        ends.append(kernel.base_kernel.lengthscale.item())
    assert abs(ends[0] - 5.0) > 1.0
    assert ends[1] == pytest.approx(5.0, abs=0.3)


def test_a_model_of_gpytorch_has_them_from_its_own_objective():
    x, y = torch.rand(30, 2), torch.rand(30)
    model = Model(gk.ScaleKernel(gk.RBFKernel()), orthogonal(x[:5], x[5:15]))
    model.covar_module.register_prior("outputscale_prior", gp.NormalPrior(3.0, 0.1), "outputscale")
    elbo = gpytorch.mlls.VariationalELBO(
        gpytorch.likelihoods.GaussianLikelihood(), model, num_data=30, combine_terms=False
    )
    expected = torch.distributions.Normal(3.0, 0.1).log_prob(model.covar_module.outputscale) / 30
    torch.testing.assert_close(elbo(model(x), y)[2], expected)


class TestSupport:
    def test_a_start_without_density_is_refused(self):
        rows = data(60)
        for prior in (gp.UniformPrior(7.0, 8.0), gp.UniformPrior(7.0, 8.0, validate_args=False)):
            with pytest.raises(ConfigurationError, match="density"):
                fit(with_prior(rows, scaled(prior)), rows, settings())

    def test_a_prior_of_another_shape_is_refused(self):
        rows = data(60)
        prior = gp.NormalPrior(torch.ones(3), torch.ones(3))
        with pytest.raises(ConfigurationError, match="shape"):
            fit(with_prior(rows, scaled(prior, ard_num_dims=2)), rows, settings())

    @pytest.mark.parametrize("validate", [True, False])
    @pytest.mark.filterwarnings("ignore:step")
    def test_a_run_that_walks_out_says_why(self, validate):
        rows = data(60)
        kernel = scaled(gp.UniformPrior(0.692, 0.694, validate_args=validate))
        with pytest.raises(NumericalError, match="density"):
            fit(with_prior(rows, kernel), rows, settings(learning_rate=10.0, max_steps=100))

    def test_a_constraint_keeps_it_inside(self):
        rows = data(60)
        kernel = scaled(gp.UniformPrior(0.5, 1.0), lengthscale_constraint=Interval(0.5, 1.0))
        assert fit(with_prior(rows, kernel), rows, settings()).recoveries == 0


PRIORS = {
    "normal": gp.NormalPrior(5.0, 0.1),
    "a normal for each": gp.NormalPrior(torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.2])),
    "log-normal": gp.LogNormalPrior(0.1, 0.7),
    "half-normal": gp.HalfNormalPrior(0.3),
    "half-Cauchy": gp.HalfCauchyPrior(0.3),
    "horseshoe": gp.HorseshoePrior(0.1),
    "gamma": gp.GammaPrior(2.0, 3.0),
    "uniform": gp.UniformPrior(0.1, 9.0),
    "smoothed box": gp.SmoothedBoxPrior(0.1, 9.0, 0.2),
    "multivariate": gp.MultivariateNormalPrior(
        torch.ones(2), torch.tensor([[1.0, 0.3], [0.3, 2.0]])
    ),
}


def forge(path, change) -> None:
    """Rewrites the kernel's description in a file, behind a valid checksum."""
    tensors, header = files.read(path, "model")
    change(header["kernel"])
    files.write(path, "model", tensors, header)


class TestFiles:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("name", PRIORS)
    def test_every_known_prior_comes_back(self, name, dtype, tmp_path):
        rows = data(60, dtype=dtype)
        model = with_prior(rows, scaled(copy.deepcopy(PRIORS[name]), ard_num_dims=2))
        save_model(tmp_path / "m", model, {}, {})
        back = load_model(tmp_path / "m").model
        assert torch.equal(back.log_prior(), model.log_prior())
        # As good as new: it trains, is copied, pickled and saved again.
        assert torch.equal(pickle.loads(pickle.dumps(back)).log_prior(), model.log_prior())
        save_model(tmp_path / "again", copy.deepcopy(back), {}, {})
        assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()
        for m in (model, back):
            fit(m, rows, settings())
        assert same(contents(model), contents(back))

    def test_on_every_part(self, tmp_path):
        likelihood = as_likelihood(
            gpytorch.likelihoods.GaussianLikelihood(noise_prior=gp.GammaPrior(2.0, 3.0)), 1
        )
        mean = gpytorch.means.ConstantMean(constant_prior=gp.NormalPrior(1.0, 0.5))
        kernel = gk.ScaleKernel(
            gk.PeriodicKernel(period_length_prior=gp.GammaPrior(2.0, 1.0)) + gk.RBFKernel(),
            outputscale_prior=gp.GammaPrior(3.0, 1.0),
        )
        kernel.base_kernel.kernels[1].register_prior(
            "any_prior", gp.NormalPrior(1.0, 1.0), "lengthscale"
        )
        model = with_prior(data(60), kernel, likelihood, mean)
        save_model(tmp_path / "m", model, {}, {})
        back = load_model(tmp_path / "m").model
        assert torch.equal(back.log_prior(), model.log_prior())
        assert len([*back.covariance.kernel.named_priors()]) == 3

    def test_a_loaded_estimator_goes_on_with_it(self, tmp_path):
        prior = gp.NormalPrior(5.0, 1e-3)
        fitted = OrthogonalGPRegressor(kernel=scaled(prior), max_steps=5, **SMALL).fit(X, Y)
        fitted.save(tmp_path / "m")
        loaded = OrthogonalGPRegressor.load(tmp_path / "m", device="cpu")
        loaded.set_params(warm_start=True, max_steps=200).fit(X, Y)
        assert lengthscale(loaded.model_) == pytest.approx(5.0, abs=0.01)

    def test_files_from_before_priors_were_kept(self, tmp_path):
        model = with_prior(data(60), scaled())
        save_model(tmp_path / "m", model, {}, {})
        forge(tmp_path / "m", lambda kernel: kernel.pop("priors"))
        assert load_model(tmp_path / "m").model.log_prior() == 0.0

    @pytest.mark.parametrize("odd", ["class", "function", "transform"])
    def test_one_that_a_file_cannot_describe_comes_with_its_kernel(self, odd, tmp_path):
        class Own(gp.NormalPrior):
            pass

        kernel = scaled(Own(5.0, 1e-3) if odd == "class" else None)
        if odd == "function":
            kernel.register_prior("log_prior", narrow(), lambda m: m.outputscale.log())
        if odd == "transform":
            prior = gp.NormalPrior(5.0, 1e-3, transform=torch.log)
            kernel.register_prior("outputscale_prior", prior, "outputscale")
        model = with_prior(data(60), kernel)
        save_model(tmp_path / "m", model, {}, {})
        named = {"class": "Own", "function": "log_prior", "transform": "outputscale_prior"}[odd]
        with pytest.raises(FileError, match=rf"needs its kernel \({named}\)"):
            load_model(tmp_path / "m")
        back = load_model(tmp_path / "m", kernel=kernel).model
        assert torch.equal(back.log_prior(), model.log_prior())

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("name", "base_kernel"), ("name", "base_kernel.raw_lengthscale"), ("name", "a_prior.x"),
            ("name", 7), ("parameter", "forward"), ("parameter", "__class__"), ("parameter", "x"),
            ("parameter", None), ("type", "Prior"), ("type", "Interval"), ("dtype", "int64"),
            ("values", {"loc": 5.0}), ("values", {"loc": "x", "scale": 1.0}),
            ("values", {"loc": 5.0, "scale": [1.0, 2.0, 3.0]}), ("validate", "yes"),
        ],
    )  # fmt: skip
    def test_descriptions_that_lie_are_refused(self, key, value, tmp_path):
        prior = gp.NormalPrior(torch.ones(2), torch.ones(2))
        save_model(tmp_path / "m", with_prior(data(60), scaled(prior, ard_num_dims=2)), {}, {})
        forge(tmp_path / "m", lambda kernel: kernel["priors"][0].update({key: value}))
        with pytest.raises(FileError):
            load_model(tmp_path / "m")


def test_checkpoints_of_a_run_with_another_prior_are_a_strangers():
    rows, found = data(60), set()
    priors = (None, narrow(), gp.NormalPrior(4.0, 1e-3), gp.UniformPrior(0.0, 9.0), *(
        gp.MultivariateNormalPrior(torch.zeros(1), scale * torch.eye(1)) for scale in (1.0, 2.0)
    ))  # fmt: skip
    for kernel in map(scaled, priors):
        found.add(fingerprint(with_prior(rows, kernel), rows, settings()))
    assert len(found) == len(priors)


@pytest.mark.cuda
def test_on_a_gpu_it_is_not_captured():
    rows = data(200)
    model = with_prior(rows).cuda()
    fit(model, rows, settings(max_steps=250, learning_rate=0.2, adam_beta2=0.98, schedule="cosine"))
    assert lengthscale(model) == pytest.approx(5.0, abs=0.01)
    there = rows.to(torch.device("cuda"), torch.float32)
    assert not single_step(model, there, settings(), kind=OverlappedStep).capturable
