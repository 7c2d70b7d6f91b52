"""The same truths on a GPU: values as on the CPU, no waiting, a captured step that is the step."""

import copy
import threading

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.execution.team import Team
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial import tiled
from orthogp.likelihoods import Bernoulli, Gaussian, RobustMax, Softmax
from orthogp.linalg import factorise
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.training import Rows, TrainingConfig, feeds, fit
from orthogp.training.overlapped import OverlappedStep
from problems import KINDS, make_model, problem
from runs import Blocks

pytestmark = pytest.mark.cuda

CUDA = torch.device("cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_bound_and_gradients_are_those_of_the_cpu(kind):
    p = problem(seed=1, n=50, b=8, g=20)
    model = make_model(kind, p)
    columns = None if kind.startswith("coupled") else torch.tensor([3, 7, 11])
    results = []
    for device in ("cpu", "cuda"):
        m = copy.deepcopy(model).to(device)
        held = None if columns is None else columns.to(device)
        bound = m.bound(p.x.to(device), p.y.to(device), 500, held)
        grads = torch.autograd.grad(bound.value, [t for t in m.parameters() if t.numel()])
        results.append([bound.value.detach(), *grads])
        assert not bound.failed
    for cpu, gpu in zip(*results, strict=True):
        torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-7, atol=1e-8)


def setting(
    latents=1, dtype=torch.float32, optimizer="natural", basis="orthogonal", classes=RobustMax
):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 4, generator=rng)
    f = torch.sin(2 * x[:, 0]) + x[:, 1]
    y = f + 0.1 * torch.randn(3000, generator=rng) if latents == 1 else (3 * f).long() % latents
    kernel = default_kernel(4)
    basis = build_basis(basis, kernel, x[:60], x[60:300], latents, optimizer)
    likelihood = Gaussian(1) if latents == 1 else classes(latents)
    return VariationalGP(kernel, likelihood, basis).to(CUDA, dtype), Rows(x, y)


OPTIONS = {"max_steps": 60, "batch_size": 256, "report_every": 20, "kl_columns": 32}


@pytest.mark.parametrize(
    "given",
    [
        (1, torch.float32, "natural", "orthogonal"),
        (1, torch.float64, "natural", "orthogonal"),
        (1, torch.float32, "adam", "orthogonal"),
        (1, torch.float32, "adam", "hybrid"),
        (1, torch.float32, "adam", "decoupled"),
        (5, torch.float32, "natural", "orthogonal"),
        (5, torch.float32, "natural", "orthogonal", Softmax),
    ],
)
def test_the_captured_run_is_the_eager_run(given, monkeypatch):
    ends = []
    for eager in (False, True, False):
        if eager:
            monkeypatch.setattr(OverlappedStep, "capturable", False)
        model, rows = setting(*given)
        result = fit(model, rows, TrainingConfig(**OPTIONS))
        assert result.recoveries == 0
        ends.append([t.detach().clone() for t in model.parameters()])
        monkeypatch.undo()
    for first, again in zip(ends[0], ends[2], strict=True):
        assert torch.equal(first, again)
    for captured, eager in zip(ends[0], ends[1], strict=True):
        torch.testing.assert_close(captured, eager, rtol=1e-4, atol=1e-5)


def test_no_step_waits_for_the_device():
    for latents, classes in ((1, None), (4, RobustMax), (4, Softmax)):
        model, rows = setting(latents, classes=classes)
        rows = rows.to(CUDA, torch.float32)
        batch = [part[:256] for part in rows.parts()]
        step = OverlappedStep(model, TrainingConfig(), len(rows), batch, 32)
        step.refresh()
        step.rates.copy_(torch.tensor([1e-3, 1e-2, 1e-3]))
        step._run()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step._run()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_data_on_the_host_give_the_same_run(monkeypatch):
    ends = []
    for share in (0.5, 0.0):
        monkeypatch.setattr(feeds, "DEVICE_SHARE", share)
        model, rows = setting()
        fit(model, rows, TrainingConfig(**OPTIONS))
        ends.append([t.detach().clone() for t in model.parameters()])
    for device, host in zip(*ends, strict=True):
        assert torch.equal(device, host)


def test_a_stream_trains_as_on_the_cpu():
    ends = []
    for device in ("cpu", "cuda"):
        model, rows = setting(dtype=torch.float64)
        stream = Blocks(rows.to(torch.device("cpu"), torch.float64), (700,) * 4 + (200,))
        model.to(device)
        # All columns: those of a step come from a generator of the device.
        fit(model, stream, TrainingConfig(**OPTIONS | {"kl_columns": None}))
        ends.append([t.detach().cpu() for t in model.parameters()])
    for cpu, gpu in zip(*ends, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=1e-5, atol=1e-6)


def test_a_captured_step_sums_over_nccl(tmp_path, monkeypatch):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    try:
        ends = []
        for capture in (True, False):
            model, rows = setting()
            batch = [part[:256] for part in rows.to(CUDA, torch.float32).parts()]
            # One of two processes, whose other half never comes: the sums are its own.
            step = OverlappedStep(model, TrainingConfig(), len(rows), batch, 32, Team(0, 2), 512)
            step.refresh()
            step.rates.copy_(torch.tensor([1e-3, 1e-2, 1e-3]))
            for _ in range(5):
                step() if capture else step._run()
            assert (step._graph is not None) == capture
            assert step.fault() is None
            ends.append([t.clone() for t in step.tensors().values()])
        for captured, eager in zip(*ends, strict=True):
            torch.testing.assert_close(captured, eager, rtol=1e-4, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


def test_binary_classification_trains():
    model, rows = setting()
    labels = (rows.y > 0).long()
    model = VariationalGP(model.covariance.kernel, Bernoulli(1), model.basis).to(CUDA)
    result = fit(model, Rows(rows.x, labels), TrainingConfig(**OPTIONS))
    assert result.history[-1].bound > result.history[0].bound


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("families", "ard"),
    [
        (("matern52", "rbf"), False),
        (("matern52", "rbf"), True),
        (("matern12",), False),
        (("matern32", "rbf"), False),
    ],
)
@pytest.mark.parametrize("latents", [1, 3])
def test_the_fused_radial_sums_are_the_tiled_ones(dtype, families, ard, latents, monkeypatch):
    fused = pytest.importorskip("orthogp.kernel.radial.fused")
    monkeypatch.setattr(fused, "TILE_ELEMENTS", 2**14)
    rng = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(CUDA, dtype)

    x, z, a = normal(300, 5), normal(701, 5), normal(latents, 701)
    count = len(families)
    inverse, scale = normal(count, 5 if ard else 1).abs() + 0.5, normal(count).abs() + 0.3
    inputs = [t.requires_grad_() for t in (x, z, a, inverse, scale)]
    tolerance = 1e-10 if dtype == torch.float64 else 2e-3

    def plainly(name, *given):
        """Summand by summand, at points over their lengthscales."""
        points, (own, size) = given[:-2], given[-2:]
        ones = torch.ones_like(size)
        total = 0.0
        for k, family in enumerate(families):
            scaled = [t * own[k] for t in points[:2]]
            radial_sum = getattr(tiled, name)
            part = slice(k, k + 1)
            total += radial_sum(*scaled, *points[2:], ones[part], size[part], (family,))
        return total

    for name, arguments in (("block", inputs[:2] + inputs[3:]), ("matvec", inputs)):
        ours = getattr(fused, name)(*arguments, families)
        outputs = [ours, plainly(name, *arguments)]
        weights = torch.randn_like(outputs[0])
        grads = [torch.autograd.grad(out, arguments, weights) for out in outputs]
        for got, wanted in zip([outputs[0], *grads[0]], [outputs[1], *grads[1]], strict=True):
            error = (got - wanted).abs().max() / wanted.abs().max()
            assert error < tolerance


def test_a_block_of_a_point_with_itself_has_no_distance():
    x = torch.randn(50, 3, device=CUDA)
    K = Covariance(MaternKernel(0.5)).to(CUDA).block(x, x)
    assert (K.diagonal() == 1.0).all()


@pytest.mark.parametrize("size", [1, 64, 65, 300, 700])
def test_a_factor_and_its_blockwise_inverse(size):
    A = torch.randn(2, size, size, dtype=torch.float64, device=CUDA)
    K = A @ A.mT + size * torch.eye(size, dtype=torch.float64, device=CUDA)
    for matrix in (K, K[0]):
        factor = factorise(matrix, 0.0)
        assert not factor.failed.any()
        torch.testing.assert_close(factor.L @ factor.L.mT, matrix)
        identity = torch.eye(size, dtype=torch.float64, device=CUDA).expand_as(matrix)
        torch.testing.assert_close(factor.R @ factor.L, identity)


@pytest.mark.parametrize("classes", [0, 2, 4])
def test_estimators_calibrate_as_on_the_cpu(classes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1020, 3))
    f = np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=len(x))
    y = np.digitize(f, np.linspace(-1, 1, classes + 1)[1:-1]) if classes else f
    kind = OrthogonalGPClassifier if classes else OrthogonalGPRegressor
    settings = {"n_inducing": 30, "n_residual": 40, "max_steps": 100, "dtype": "float64"}
    ends = []
    for device in ("cpu", "cuda"):
        # All rows and columns: those of a step come from a generator of the device.
        gp = kind(**settings, n_neighbors=0, kl_columns=None, device=device, random_state=0).fit(
            x, y
        )
        ends.append(gp.predict_proba(x) if classes else gp.predict_interval(x))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-3, atol=1e-3)


def test_a_step_is_captured_while_another_thread_uses_the_device():
    """As the threads do that read rows ahead: allocations and copies of theirs end no capture."""
    model, rows = setting()
    stop, copies = threading.Event(), []

    def copy_on() -> None:
        while not stop.is_set():
            # Sizes that no cache holds, so that memory is asked for.
            pinned = torch.empty(2**16 + 64 * len(copies), pin_memory=True)
            copies.append(pinned.to(CUDA, non_blocking=True)[0].item())

    thread = threading.Thread(target=copy_on)
    thread.start()
    try:
        for _ in range(5):
            result = fit(model, rows, TrainingConfig(**OPTIONS))
            assert result.recoveries == 0
    finally:
        stop.set()
        thread.join()
    assert copies


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second GPU")
def test_a_device_that_is_not_the_current_one():
    model, rows = setting()
    expected, other = copy.deepcopy(model), model.to("cuda:1")
    with torch.cuda.device(0):
        for m in (expected, other):
            fit(m, rows, TrainingConfig(**OPTIONS))
    first, second = (m.predict(rows.x[:10].to(m.basis.beta))[0] for m in (expected, other))
    torch.testing.assert_close(first.cpu(), second.cpu(), rtol=1e-3, atol=1e-3)


def test_a_factor_of_nan_is_a_failure():
    K = torch.eye(300, dtype=torch.float64, device=CUDA)
    assert not factorise(K, 0.0).failed
    K[7, 7] = torch.nan
    assert factorise(K, 0.0).failed
