"""A saved model comes back bit for bit; any file that is not one is refused, with one error."""

import hashlib
import json
import struct

import gpytorch.kernels as gk
import gpytorch.likelihoods as gl
import gpytorch.means as gm
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from safetensors.torch import save

from orthogp import likelihoods
from orthogp.errors import ConfigurationError, FileError
from orthogp.execution import files
from orthogp.likelihoods import as_likelihood
from orthogp.model import VariationalGP
from orthogp.posterior import Decoupled
from orthogp.storage import load_model, save_model
from orthogp.storage.model import FORMAT
from problems import KINDS, make_basis, make_model, problem, randomise

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
META = {"scaler": "standard", "steps": 12, "nested": {"γ": [1.5, None, True]}}
TENSORS = {"x_shift": torch.tensor([1.0, 2.0]), "classes": torch.arange(3)}


def model_with(kernel=None, likelihood="gaussian", mean=None, latents=1, dtype=torch.float64):
    p = problem(dtype=dtype)
    kernel = p.kernel if kernel is None else kernel
    likelihood = as_likelihood(likelihood, latents)
    basis = randomise(make_basis("orthogonal-natural", p, latents))
    return VariationalGP(kernel, likelihood, basis, mean, jitter=1e-3)


def round_trip(model, path, **passed):
    save_model(path, model, META, TENSORS)
    saved = load_model(path, **passed)
    assert saved.meta == META
    assert all(torch.equal(saved.tensors[name], value) for name, value in TENSORS.items())
    return saved.model


def assert_same_predictions(a, b):
    for left, right in zip(a.predict(X), b.predict(X), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("latents", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_basis_comes_back_bit_for_bit(kind, latents, dtype, tmp_path):
    p = problem(dtype=dtype, ard=True)
    model = make_model(kind, p, latents=latents, noise=0.3)
    back = round_trip(model, tmp_path / "m")
    assert_same_predictions(model, back)
    x, y = p.x, p.y if latents == 1 else p.y[:, None].repeat(1, latents)
    assert torch.equal(model.bound(x, y).value, back.bound(x, y).value)
    assert type(back.basis) is type(model.basis)
    assert back.basis.beta.dtype == dtype


@pytest.mark.parametrize("hold_fixed", ["whitened", "unwhitened", "dual"])
def test_what_is_held_fixed_comes_back(hold_fixed, tmp_path):
    model = make_model("orthogonal-natural", problem(), hold_fixed=hold_fixed)
    back = round_trip(model, tmp_path / "m")
    assert_same_predictions(model, back)
    assert back.basis.q.hold_fixed == hold_fixed
    # The same once the kernel has moved from where q was set.
    for m in (model, back):
        m.covariance.kernel.kernels[0].outputscale = 1.7
    assert_same_predictions(model, back)


def scaled(base, value=1.7):
    kernel = gk.ScaleKernel(base)
    kernel.outputscale = value
    return kernel


def spectral_mixture():
    kernel = gk.SpectralMixtureKernel(num_mixtures=3, ard_num_dims=2)
    kernel.mixture_means = torch.linspace(0.1, 0.5, 6).view(3, 1, 2)
    return kernel


KERNELS = {
    "rbf": lambda: gk.RBFKernel(),
    "ard": lambda: gk.RBFKernel(ard_num_dims=2),
    "matern12": lambda: scaled(gk.MaternKernel(0.5)),
    "matern32 on one column": lambda: scaled(gk.MaternKernel(1.5, active_dims=(1,))),
    "nested": lambda: scaled(scaled(gk.RBFKernel()) + gk.LinearKernel() * gk.CosineKernel()),
    "periodic": lambda: gk.PeriodicKernel(ard_num_dims=2) + gk.PeriodicKernel(),
    "linear ard": lambda: gk.LinearKernel(ard_num_dims=2) + gk.ConstantKernel(),
    "rq": lambda: gk.RQKernel(ard_num_dims=2),
    "polynomial": lambda: scaled(gk.PolynomialKernel(power=3)),
    "piecewise": lambda: gk.PiecewisePolynomialKernel(q=1, ard_num_dims=2),
    "spectral": spectral_mixture,
    "bounded": lambda: scaled(
        gk.MaternKernel(2.5, ard_num_dims=2, lengthscale_constraint=Interval(0.1, 7.0))
    ),
    "bounds by column": lambda: gk.RBFKernel(
        ard_num_dims=2, lengthscale_constraint=GreaterThan(torch.tensor([0.1, 0.5]))
    ),
    "exp": lambda: gk.RBFKernel(lengthscale_constraint=Positive(torch.exp, torch.log)),
    "unenforced": lambda: gk.ScaleKernel(
        gk.RBFKernel(lengthscale_constraint=Positive(None)),
        outputscale_constraint=LessThan(5.0),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_known_kernel_is_rebuilt_with_its_constraints(name, tmp_path):
    kernel = KERNELS[name]()
    rng = torch.Generator().manual_seed(3)
    for parameter in kernel.parameters():
        parameter.data = 0.5 + torch.rand(parameter.shape, generator=rng)
    model = model_with(kernel)
    state = torch.random.get_rng_state()
    back = round_trip(model, tmp_path / "m")
    assert_same_predictions(model, back)
    assert repr(back.covariance.kernel) == repr(kernel)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    "mean", [gm.ZeroMean(), gm.ConstantMean(), gm.LinearMean(2), gm.LinearMean(2, bias=False)]
)
def test_means_are_rebuilt(mean, tmp_path):
    mean = mean.double()
    for parameter in mean.parameters():
        parameter.data.fill_(0.7)
    model = model_with(mean=mean)
    back = round_trip(model, tmp_path / "m")
    assert_same_predictions(model, back)
    zero = model_with()
    assert type(mean) is gm.ZeroMean or not torch.equal(zero.predict(X)[0], back.predict(X)[0])


def softmax_with_weights():
    inner = gl.SoftmaxLikelihood(num_features=3, num_classes=4)
    return likelihoods.Softmax(3, inner, num_draws=32, seed=7)


def bounded_noise():
    return gl.GaussianLikelihood(noise_constraint=Interval(0.01, 0.5))


LIKELIHOODS = {
    **{f"{name}, one": (name, 1) for name in likelihoods.LIKELIHOODS if "max" not in name},
    **{f"{name}, three": (name, 3) for name in likelihoods.LIKELIHOODS if name != "bernoulli"},
    "bounded noise": (bounded_noise, 1),
    "one noise for two": (bounded_noise, 2),
    "softmax with weights": (softmax_with_weights, 3),
    "robust-max": (lambda: likelihoods.RobustMax(4, epsilon=0.02, num_nodes=11), 4),
    "failures": (lambda: gl.NegativeBinomialLikelihood(num_failures_param=True), 1),
    "nodes": (lambda: likelihoods.Poisson(1, num_nodes=7, num_density_nodes=13), 1),
    "conditional": (lambda: likelihoods.Conditional(1, gl.PoissonLikelihood()), 1),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_likelihood_is_rebuilt(name, dtype, tmp_path):
    make, latents = LIKELIHOODS[name]
    likelihood = as_likelihood(make if isinstance(make, str) else make(), latents).to(dtype)
    rng = torch.Generator().manual_seed(2)
    for parameter in likelihood.parameters():
        parameter.data = 0.3 + torch.rand(parameter.shape, generator=rng, dtype=dtype)
    model = model_with(likelihood=likelihood, latents=latents)
    back = round_trip(model, tmp_path / "m")
    assert type(back.likelihood) is type(likelihood)
    assert back.likelihood.num_latents == latents
    mean, variance = (part.to(dtype) for part in model.predict(X))
    several = isinstance(likelihood, likelihoods.RegressionLikelihood) and latents > 1
    y = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0], dtype=dtype)
    y = y.clamp(0.1, 0.9) if isinstance(likelihood, likelihoods.Beta) else y
    y = y[:, None].expand(-1, latents) if several else y
    for method in ("log_density", "expected_log_prob"):
        before = getattr(likelihood, method)(y, mean, variance)
        assert torch.equal(before, getattr(back.likelihood, method)(y, mean, variance))


QUADRATURES = {
    "student_t": (lambda: likelihoods.StudentT(num_nodes=50), {"num_nodes": 50}),
    "poisson": (
        lambda: likelihoods.Poisson(1, num_nodes=7, num_density_nodes=13),
        {"num_nodes": 7, "num_density_nodes": 13},
    ),
    "bernoulli": (lambda: likelihoods.Bernoulli(num_nodes=9), {"num_nodes": 9}),
    "robustmax": (lambda: likelihoods.RobustMax(3, num_nodes=11), {"num_nodes": 11}),
    "softmax": (lambda: likelihoods.Softmax(3, num_draws=32), {"num_draws": 32}),
}


@pytest.mark.parametrize("name", QUADRATURES)
def test_quadrature_sizes_are_stated_and_an_old_file_without_them_is_read(name, tmp_path):
    make, sizes = QUADRATURES[name]
    likelihood, path = make(), tmp_path / "m"
    save_model(path, model_with(likelihood=likelihood, latents=likelihood.num_latents), {}, {})
    tensors, header = files.read(path, "model")
    assert header["likelihood"].pop("quadrature") == sizes
    forge(path, tensors, {**header, "format": [1, 2]})
    buffers = dict(load_model(path).model.likelihood.named_buffers())
    assert all(torch.equal(buffers[key], value) for key, value in likelihood.named_buffers())


@pytest.mark.parametrize("name", QUADRATURES)
def test_a_quadrature_size_that_the_file_does_not_hold_is_refused(name, tmp_path):
    likelihood, path = QUADRATURES[name][0](), tmp_path / "m"
    save_model(path, model_with(likelihood=likelihood, latents=likelihood.num_latents), {}, {})
    tensors, header = files.read(path, "model")
    for size in (2**40, 2, None, "20"):
        header["likelihood"]["quadrature"] = dict.fromkeys(QUADRATURES[name][1], size)
        forge(path, tensors, header)
        with pytest.raises(FileError, match="quadrature sizes"):
            load_model(path)


def test_draws_of_a_size_that_takes_no_room_are_refused(tmp_path):
    path = tmp_path / "m"
    save_model(path, model_with(likelihood="softmax", latents=3), {}, {})
    tensors, header = files.read(path, "model")
    del header["likelihood"]["quadrature"]
    tensors["likelihood.draws"] = torch.empty(2**40, 3, 0)
    forge(path, tensors, header)
    with pytest.raises(FileError, match="empty"):
        load_model(path)


def test_frozen_parameters_stay_frozen(tmp_path):
    model = model_with()
    model.likelihood.likelihood.noise_covar.raw_noise.requires_grad_(False)
    model.basis.beta.requires_grad_(False)
    back = round_trip(model, tmp_path / "m")
    frozen = {name for name, p in back.named_parameters() if not p.requires_grad}
    assert frozen == {"basis.beta", "likelihood.likelihood.noise_covar.raw_noise"}


class Bent(gk.RBFKernel):
    def forward(self, x1, x2, diag=False, **params):
        return super().forward(x1, x2, diag=diag, **params) ** 2


class Cubed(gl._OneDimensionalLikelihood):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.4, dtype=torch.float64))

    def forward(self, f):
        return torch.distributions.Normal(f**3, self.scale)


class Tilted(gm.Mean):
    def forward(self, x):
        return x[:, 0]


class TestCustomParts:
    def test_a_kernel_of_ones_own_is_passed_in(self, tmp_path):
        kernel = scaled(Bent() + gk.LinearKernel())
        kernel.base_kernel.kernels[0].lengthscale = 0.3
        model = model_with(kernel)
        save_model(tmp_path / "m", model, {}, {})
        with pytest.raises(FileError, match=r"kernel \(Bent\)"):
            load_model(tmp_path / "m")
        passed = gk.ScaleKernel(Bent() + gk.LinearKernel())
        back = load_model(tmp_path / "m", kernel=passed).model
        assert_same_predictions(model, back)
        # A copy took the parameters, not what was passed.
        assert passed.base_kernel.kernels[0].lengthscale.item() == pytest.approx(0.6931, abs=1e-4)

    def test_a_likelihood_of_ones_own_is_passed_in(self, tmp_path):
        model = model_with(likelihood=Cubed())
        save_model(tmp_path / "m", model, {}, {})
        with pytest.raises(FileError, match=r"likelihood \(Cubed\)"):
            load_model(tmp_path / "m")
        back = load_model(tmp_path / "m", likelihood=Cubed()).model
        assert back.likelihood.likelihood.scale == model.likelihood.likelihood.scale

    def test_a_mean_of_ones_own_is_passed_in(self, tmp_path):
        model = model_with(mean=Tilted())
        save_model(tmp_path / "m", model, {}, {})
        with pytest.raises(FileError, match=r"mean \(Tilted\)"):
            load_model(tmp_path / "m")
        assert_same_predictions(model, load_model(tmp_path / "m", mean=Tilted()).model)

    @pytest.mark.parametrize(
        "kernel",
        [
            gk.RBFKernel(lengthscale_constraint=Positive(torch.nn.Softplus(beta=2.0))),
            gk.RFFKernel(num_samples=5, num_dims=2),
        ],
    )
    def test_what_the_list_lacks_is_custom(self, kernel, tmp_path):
        model = model_with(kernel)
        save_model(tmp_path / "m", model, {}, {})
        with pytest.raises(FileError, match="needs its kernel"):
            load_model(tmp_path / "m")
        assert_same_predictions(model, load_model(tmp_path / "m", kernel=kernel).model)

    @pytest.mark.parametrize(
        ("kernel", "message"),
        [
            (gk.RBFKernel(), "base_kernel.raw_lengthscale"),
            (gk.ScaleKernel(gk.RBFKernel(ard_num_dims=2)), r"\[1, 1\] .* \[1, 2\]"),
            (gk.ScaleKernel(gk.RQKernel()), "raw_alpha"),
        ],
    )
    def test_one_that_does_not_fit_is_refused(self, kernel, message, tmp_path):
        save_model(tmp_path / "m", model_with(scaled(Bent())), {}, {})
        with pytest.raises(FileError, match=message):
            load_model(tmp_path / "m", kernel=kernel)

    def test_a_likelihood_with_another_number_of_latents_is_refused(self, tmp_path):
        save_model(tmp_path / "m", model_with(likelihood="robustmax", latents=3), {}, {})
        with pytest.raises(FileError, match="4 latent"):
            load_model(tmp_path / "m", likelihood=likelihoods.RobustMax(4))

    def test_a_basis_of_ones_own_cannot_be_saved(self, tmp_path):
        class Own(Decoupled):
            pass

        p = problem()
        model = VariationalGP(p.kernel, likelihoods.Gaussian(), Own(p.beta, p.gamma, 1))
        with pytest.raises(ConfigurationError, match="cannot be saved"):
            save_model(tmp_path / "m", model, {}, {})
        assert not (tmp_path / "m").exists()


def test_a_model_that_diverged_is_not_saved(tmp_path):
    model = model_with()
    with torch.no_grad():
        model.basis.a_gamma[0, 0] = torch.nan
    with pytest.raises(FileError, match="a_gamma"):
        save_model(tmp_path / "m", model, {}, {})


@pytest.mark.cuda
def test_models_move_between_devices(tmp_path):
    model = make_model("orthogonal-natural", problem(n=50), latents=2)
    cpu = model.predict(X)
    save_model(tmp_path / "cpu", model, {}, {})
    on_device = load_model(tmp_path / "cpu", device="cuda").model
    for left, right in zip(cpu, on_device.predict(X.cuda()), strict=True):
        torch.testing.assert_close(left, right.cpu(), rtol=1e-9, atol=1e-11)
    save_model(tmp_path / "cuda", on_device, {}, {})
    assert_same_predictions(model, load_model(tmp_path / "cuda").model)
    bent = model_with(Bent())
    save_model(tmp_path / "bent", bent, {}, {})
    back = load_model(tmp_path / "bent", kernel=Bent().cuda(), device="cuda").model
    assert back.predict(X.cuda())[0].is_cuda


# What follows is about files that are not as they were written.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m"
    model = model_with(gk.ScaleKernel(gk.MaternKernel(1.5)), "student_t")
    save_model(path, model, META, TENSORS)
    return path


@pytest.fixture
def content(whole):
    """The tensors and the header of a file, to be changed and written by `forge`."""
    return files.read(whole, "model")


def forge(path, tensors, header):
    """A file with a valid checksum, whatever it says."""
    text = header if isinstance(header, str) else json.dumps(header)
    write_payload(path, save(tensors, metadata={"orthogp": text}))


def write_payload(path, payload):
    digest = hashlib.sha256(payload).hexdigest().encode()
    path.write_bytes(b"orthogp model 1\n" + digest + b"\n" + payload)


def test_damage_and_truncation_are_refused_everywhere(whole, tmp_path):
    content = whole.read_bytes()
    path = tmp_path / "m"
    stride = max(1, len(content) // 150)
    for position in range(0, len(content), stride):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        for bytes_ in (bytes(damaged), content[:position]):
            path.write_bytes(bytes_)
            with pytest.raises(FileError):
                load_model(path)


def places(value, at=()):
    """Every path into a JSON value."""
    yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


WRONG = [None, True, -1, 0, 10**30, 1e308, float("nan"), "", "RBFKernel", "os.system", [], {}, [[]]]


def test_altered_json_behind_the_checksum_is_refused_or_changes_nothing(whole, content, tmp_path):
    tensors, header = content
    path = tmp_path / "m"
    original = load_model(whole).model
    altered = [at for at in places(header) if at and at[0] != "meta"]
    assert len(altered) > 20
    tried = refused = 0
    for number, at in enumerate(altered):
        # A third of the values at each place, others at the next one.
        for value in [*WRONG, "missing"][number % 3 :: 3]:
            tried += 1
            forged = json.loads(json.dumps(header))
            target = forged
            for key in at[:-1]:
                target = target[key]
            if value == "missing":
                del target[at[-1]]
            else:
                target[at[-1]] = value
            forge(path, tensors, forged)
            try:
                model = load_model(path).model
            except FileError:
                refused += 1
                continue
            if at[0] not in ("orthogp", "frozen", "format", "jitter"):
                assert_same_predictions(original, model)
    assert refused > 0.8 * tried


def test_altered_tensors_behind_the_checksum_are_refused(content, tmp_path):
    tensors, header = content
    path = tmp_path / "m"
    own = [name for name in tensors if not name.startswith("tensors.")]
    for name in own:
        value = tensors[name]
        wrong = {
            "missing": None,
            "longer": torch.cat([value.reshape(-1), value.reshape(-1)[:1]]),
            "another dtype": value.to(torch.int32),
            "half": value.half(),
            "deep": value.reshape([1] * 70 + list(value.shape)),
            "empty": value.reshape(-1)[:0],
        }
        if not name.endswith("_bound"):
            wrong["infinite"] = torch.full_like(value, torch.inf)
        wrong["not a number"] = torch.full_like(value, torch.nan)
        for forged in wrong.values():
            altered = {**tensors, name: forged}
            forge(path, {k: v for k, v in altered.items() if v is not None}, header)
            with pytest.raises(FileError):
                load_model(path)
    forge(path, {**tensors, "extra": torch.zeros(2)}, header)
    with pytest.raises(FileError, match="'extra'"):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # Sizes that no memory would hold, in tensors that take no room in the file.
        ({"basis.gamma": (2**40, 0), "basis.beta": (4, 0)}, "sizes"),
        ({"basis.a_gamma": (2**50, 0)}, "sizes"),
        ({"basis.q.precision": (0, 4, 4)}, "sizes"),
        ({"kernel.base_kernel.raw_lengthscale": (0, 2**50)}, "."),
        ({"likelihood.likelihood.raw_noise": (2**30, 0, 1)}, "."),
    ],
)
def test_sizes_that_lie_are_refused_before_memory_is_taken(changes, message, content, tmp_path):
    tensors, header = content
    for name, shape in changes.items():
        tensors[name] = torch.empty(shape, dtype=torch.float64)
    forge(tmp_path / "m", tensors, header)
    with pytest.raises(FileError, match=message):
        load_model(tmp_path / "m")


def test_json_that_is_a_bomb_or_ambiguous_is_refused(content, tmp_path):
    tensors, header = content
    path = tmp_path / "m"
    text = json.dumps(header)
    deep = "[" * 200_000 + "]" * 200_000
    scale = '{"type": "ScaleKernel", "settings": {}, "constraints": {}, "parts": {"base_kernel": '
    tower = scale * 400 + "{}" + "}}" * 400
    for bad in (
        deep,
        text.replace('"meta":', f'"deep": {deep}, "meta":'),
        text.replace('"jitter":', '"jitter": 0.5, "jitter":'),
        json.dumps({**header, "kernel": "TOWER"}).replace('"TOWER"', tower),
        "{}",
        "3",
        "nonsense",
    ):
        forge(path, tensors, bad)
        with pytest.raises(FileError):
            load_model(path)


def test_headers_of_the_container_that_lie_are_refused(whole, tmp_path):
    path = tmp_path / "m"
    meta = {"__metadata__": {"orthogp": "{}"}}
    for length, entries in (
        (2**63, meta),
        (2**40, meta),
        (None, {**meta, "x": {"dtype": "F64", "shape": [2**60], "data_offsets": [0, 8]}}),
        (None, {**meta, "x": {"dtype": "F64", "shape": [-1], "data_offsets": [0, 8]}}),
        (None, {**meta, "x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 8]}}),
        (None, {**meta, "x": {"dtype": "F64", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
        (None, {**meta, "x": {"dtype": "F64", "shape": [1] * 99_999, "data_offsets": [0, 8]}}),
        (None, {"__metadata__": {}}),
        (None, []),
    ):
        text = json.dumps(entries).encode()
        payload = struct.pack("<Q", len(text) if length is None else length) + text + bytes(8)
        write_payload(path, payload)
        with pytest.raises(FileError):
            load_model(path)


def test_only_listed_names_are_built(content, tmp_path):
    tensors, header = content
    for name in ("os.system", "Kernel", "GaussianLikelihood", "ZeroMean", "RFFKernel"):
        header["kernel"]["type"] = name
        forge(tmp_path / "m", tensors, header)
        with pytest.raises(FileError, match=f"'{name}'"):
            load_model(tmp_path / "m")


def test_a_constraint_that_is_not_described_is_refused(tmp_path):
    kernel = gk.RBFKernel(lengthscale_constraint=Interval(0.1, 7.0))
    save_model(tmp_path / "m", model_with(kernel), {}, {})
    tensors, header = files.read(tmp_path / "m", "model")
    # The default constraint in its place would give the raw parameter another meaning.
    del header["kernel"]["constraints"]["raw_lengthscale"]
    forge(tmp_path / "m", tensors, header)
    with pytest.raises(FileError, match="constraint"):
        load_model(tmp_path / "m")


def test_a_newer_minor_format_is_read_and_a_newer_major_is_not(whole, content, tmp_path):
    tensors, header = content
    path = tmp_path / "m"
    major, minor = FORMAT
    newer = {"format": [major, minor + 1], "orthogp": "3.2.1"}
    forge(path, tensors, header | newer | {"novelty": 1})
    assert_same_predictions(load_model(whole).model, load_model(path).model)
    for wrong in (0, major + 1):
        forge(path, tensors, {**header, "format": [wrong, 0], "orthogp": "9.0.0"})
        newer_note = r".*9\.0\.0" if wrong > major else ""
        with pytest.raises(FileError, match=rf"format {wrong}\.0{newer_note}"):
            load_model(path)
    header["kernel"]["type"] = "QuantumKernel"
    forge(path, tensors, header | newer)
    with pytest.raises(FileError, match=r"newer.*3\.2\.1"):
        load_model(path)


def test_other_files_are_refused(tmp_path, whole):
    with pytest.raises(FileError, match="could not be read"):
        load_model(tmp_path / "absent")
    files.write(tmp_path / "c", "checkpoint", TENSORS, META)
    with pytest.raises(FileError, match="not an orthogp"):
        load_model(tmp_path / "c")
    torch.save({"a": torch.zeros(2)}, tmp_path / "p")
    with pytest.raises(FileError, match="not an orthogp"):
        load_model(str(tmp_path / "p"))
