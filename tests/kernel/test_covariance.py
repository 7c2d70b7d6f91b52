"""The fused path, the generic path and NumPy give the same blocks, products and gradients."""

import subprocess
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import gpytorch
import jaxtyping
import numpy as np
import pytest
import torch
from gpytorch.kernels import (
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

import reference
from orthogp.errors import ConfigurationError, DataError
from orthogp.kernel import radial
from orthogp.kernel.covariance import GENERIC_TILE, Covariance
from problems import default_sum, reference_terms

TOLERANCE = {
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
}


@pytest.fixture(params=["compiled", "tiles"])
def both_ways(request, monkeypatch):
    """Runs a test with the compiled sums and with the torch tiles that stand in for them."""
    if request.param == "tiles":
        monkeypatch.setattr(radial, "compiled_backend", lambda x: None)
    elif radial.compiled_backend(torch.zeros(1, 1)) is None:
        pytest.skip("LLVM is not there")


class RoughRBF(RBFKernel):
    """A subclass, which may compute anything: not for the fused path."""


def kernels(dims: int) -> dict[str, gpytorch.kernels.Kernel]:
    def scaled(kernel, scale=1.7):
        kernel.lengthscale = 0.9 + 0.2 * torch.rand(kernel.lengthscale.shape)
        out = ScaleKernel(kernel)
        out.outputscale = scale
        return out

    return {
        "rbf": scaled(RBFKernel()),
        "matern12": scaled(MaternKernel(0.5)),
        "matern32": scaled(MaternKernel(1.5)),
        "matern52": scaled(MaternKernel(2.5)),
        "rbf-ard": scaled(RBFKernel(ard_num_dims=dims)),
        "matern52-ard": scaled(MaternKernel(2.5, ard_num_dims=dims)),
        "sum": default_sum(dims),
        "sum-ard": default_sum(dims, ard=True),
        "sum-mixed": scaled(RBFKernel(ard_num_dims=dims)) + scaled(MaternKernel(1.5)) + RBFKernel(),
        "nested-scale": ScaleKernel(scaled(RBFKernel(), 0.4) + scaled(MaternKernel(0.5), 0.3)),
    }


NAMES = tuple(kernels(2))


def paths(name: str, dims: int, dtype: torch.dtype) -> tuple[Covariance, Covariance]:
    torch.manual_seed(0)
    fused = Covariance(kernels(dims)[name].to(dtype))
    torch.manual_seed(0)
    generic = Covariance(kernels(dims)[name].to(dtype))
    generic.terms = None
    assert fused.fused
    return fused, generic


def points(rows: int, dims: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dims, generator=rng, dtype=torch.float64).to(dtype)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("name", NAMES)
def test_blocks_match_numpy(name):
    covariance, _ = paths(name, 3, torch.float64)
    x, z = points(6, 3, torch.float64, 1), points(5, 3, torch.float64, 2)
    expected = reference.kernel_block(reference_terms(covariance.kernel), x.numpy(), z.numpy())
    np.testing.assert_allclose(covariance.block(x, z).detach().numpy(), expected, atol=1e-12)
    # Rounding in a distance of zero would show at once under the square root of a Matérn kernel.
    expected = reference.kernel_block(reference_terms(covariance.kernel), x.numpy(), x.numpy())
    np.testing.assert_allclose(covariance.block(x, x).detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(
        covariance.diagonal(x).detach().numpy(), np.diag(expected), atol=1e-12
    )


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_fused_and_generic_agree(name, dtype):
    """Values and the gradients of x, z, a and every kernel parameter."""
    results = []
    for covariance in paths(name, 3, dtype):
        x = points(40, 3, dtype, 1).requires_grad_()
        z = points(30, 3, dtype, 2).requires_grad_()
        a = points(30, 2, dtype, 3).mT.contiguous().requires_grad_()
        block, product = covariance.block(x, z), covariance.matvec(x, z, a)
        # Weights of one sign: a sum that cancels would measure its own rounding.
        weight = points(40, 30, dtype, 4).abs()
        loss = (block * weight).sum() + product.square().sum() + covariance.diagonal(x).sum()
        inputs = [x, z, a, *covariance.parameters()]
        results.append([block, product, *torch.autograd.grad(loss, inputs)])
    for fused, generic in zip(*results, strict=True):
        size = generic.abs().max().item()
        torch.testing.assert_close(fused / size, generic / size, **TOLERANCE[dtype])


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, monkeypatch):
    monkeypatch.setitem(radial.tiled.TILE_BYTES, "cpu", 6 * 8)
    monkeypatch.setitem(radial.tiled.TILE_COLUMNS, "cpu", 3)
    monkeypatch.setattr("orthogp.kernel.radial.compiled.TILE_COLUMNS", 3)
    covariance, _ = paths(name, 2, torch.float64)
    x, z = points(5, 2, torch.float64, 1), points(4, 2, torch.float64, 2)
    a = points(4, 2, torch.float64, 3).mT.contiguous()
    names, values = zip(*covariance.named_parameters(), strict=True)

    def call(method, *arguments):
        def run(*inputs):
            state = dict(zip(names, inputs[len(arguments) :], strict=True))
            return torch.func.functional_call(
                _Method(covariance, method), state, inputs[: len(arguments)]
            )

        inputs = [t.detach().clone().requires_grad_() for t in (*arguments, *values)]
        assert torch.autograd.gradcheck(run, inputs)

    names = tuple(f"covariance.{n}" for n in names)
    call("block", x, z)
    call("matvec", x, z, a)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("name", NAMES)
def test_a_block_of_points_with_themselves_takes_symmetric_gradients_from_one_side(name):
    found = []
    for whole in (True, False):
        covariance, _ = paths(name, 3, torch.float64)
        x = points(20, 3, torch.float64, 1).requires_grad_()
        weight = points(20, 20, torch.float64, 4)
        K = covariance.block(x, x) if whole else covariance.symmetric_block(x)
        loss = ((weight + weight.mT) * K).sum()
        found.append([K, *torch.autograd.grad(loss, [x, *covariance.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


class _Method(torch.nn.Module):
    def __init__(self, covariance, method):
        super().__init__()
        self.covariance, self.method = covariance, method

    def forward(self, *inputs):
        return getattr(self.covariance, self.method)(*inputs)


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("tile", [(1, 1), (6, 3), (100, 7), (10**6, 10**6)])
def test_tiles_change_nothing(tile, same, monkeypatch):
    covariance, _ = paths("sum", 3, torch.float64)
    x = points(17, 3, torch.float64, 1)
    z = x if same else points(13, 3, torch.float64, 2)
    a = points(len(z), 2, torch.float64, 3).mT
    expected = reference.kernel_block(reference_terms(covariance.kernel), x.numpy(), z.numpy())
    monkeypatch.setattr(radial, "compiled_backend", lambda x: None)
    monkeypatch.setitem(radial.tiled.TILE_BYTES, "cpu", 8 * tile[0])
    monkeypatch.setitem(radial.tiled.TILE_COLUMNS, "cpu", tile[1])
    np.testing.assert_allclose(covariance.block(x, z).detach().numpy(), expected, atol=1e-12)
    product = covariance.matvec(x, z, a).detach().numpy()
    np.testing.assert_allclose(product, a.numpy() @ expected.T, atol=1e-11)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("name", ["matern12", "matern52", "sum-ard"])
def test_gradients_are_finite_where_points_coincide(name):
    covariance, _ = paths(name, 2, torch.float32)
    x = points(6, 2, torch.float32, 1).requires_grad_()
    z = x.detach().clone().requires_grad_()
    loss = covariance.matvec(x, z, torch.ones(1, 6)).sum() + covariance.block(x, x).sum()
    for gradient in torch.autograd.grad(loss, [x, z, *covariance.parameters()]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "kernel",
    [
        ScaleKernel(RQKernel()),
        ScaleKernel(PeriodicKernel()),
        LinearKernel(),
        RBFKernel() * MaternKernel(1.5),
        RBFKernel(active_dims=[1]),
        RoughRBF(),
        RBFKernel() + LinearKernel(),
    ],
    ids=["rq", "periodic", "linear", "product", "active-dims", "subclass", "sum-with-linear"],
)
def test_any_other_kernel_goes_the_generic_way(kernel, monkeypatch):
    monkeypatch.setitem(GENERIC_TILE, "cpu", 12)
    covariance = Covariance(kernel)
    assert not covariance.fused
    x, z = points(7, 2, torch.float32, 1), points(5, 2, torch.float32, 2)
    a = points(5, 2, torch.float32, 3).mT
    block = kernel(x, z).to_dense()
    torch.testing.assert_close(covariance.block(x, z), block)
    torch.testing.assert_close(covariance.diagonal(x), kernel(x, diag=True))
    torch.testing.assert_close(covariance.matvec(x, z, a), a @ block.mT)
    wanted = torch.autograd.grad((a @ block.mT).square().sum(), list(kernel.parameters()))
    got = torch.autograd.grad(covariance.matvec(x, z, a).square().sum(), list(kernel.parameters()))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kernel", [default_sum(2), ScaleKernel(RQKernel())], ids=["fused", "rq"])
def test_float64_blocks_of_a_float32_kernel_are_exact(kernel):
    x = points(8, 2, torch.float64, 1)
    block = Covariance(kernel).block(x, x)
    assert block.dtype == torch.float64
    torch.testing.assert_close(block, kernel.double()(x, x).to_dense(), rtol=1e-7, atol=1e-7)
    kernel.float()


@pytest.mark.usefixtures("both_ways")
def test_large_offsets_cancel():
    """Distances by products lose digits unless both sets are centred first."""
    covariance, _ = paths("matern52", 2, torch.float32)
    x = points(20, 2, torch.float32, 1)
    torch.testing.assert_close(
        covariance.block(x + 1000.0, x + 1000.0), covariance.block(x, x), atol=1e-3, rtol=0
    )


@pytest.mark.usefixtures("both_ways")
def test_no_points_give_zeros():
    covariance, generic = paths("sum", 2, torch.float64)
    x, empty = points(3, 2, torch.float64, 1), torch.zeros(0, 2, dtype=torch.float64)
    for c in (covariance, generic):
        assert torch.equal(
            c.matvec(x, empty, torch.zeros(2, 0).double()), torch.zeros(2, 3).double()
        )
        assert c.matvec(empty, x, torch.ones(2, 3).double()).shape == (2, 0)
        assert c.block(empty, x).shape == (0, 3)


def test_batch_kernels_are_refused():
    with pytest.raises(ConfigurationError, match="batch"):
        Covariance(RBFKernel(batch_shape=torch.Size([3])))
    multitask = gpytorch.kernels.MultitaskKernel(RBFKernel(), num_tasks=2)
    with pytest.raises(ConfigurationError, match="each pair"):
        Covariance(multitask).block(points(3, 2, torch.float32, 1), points(4, 2, torch.float32, 2))


def test_matvec_never_holds_the_block():
    """2¹² × 2¹⁴ numbers would be 256 MiB; forward and backward stay far below."""
    # The rise of the peak resident set over one product and its gradients, in a process alone.
    code = """
import resource, torch
from orthogp.kernel.covariance import Covariance
from orthogp.model import default_kernel
x, z = torch.randn(2**12, 2), torch.randn(2**14, 2, requires_grad=True)
a = torch.randn(1, 2**14, requires_grad=True)
covariance = Covariance(default_kernel(2))
covariance.matvec(x[:10], z[:10], a[:, :10]).sum().backward()
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
covariance.matvec(x, z, a).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 60


def test_a_device_on_which_triton_cannot_compile_takes_the_plain_way(monkeypatch):
    broken = ModuleType("triton")
    broken.__spec__ = ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", broken)
    monkeypatch.delitem(sys.modules, "orthogp.kernel.radial.fused", raising=False)
    radial._triton_backend.cache_clear()
    with pytest.warns(UserWarning, match="C compiler"):
        assert radial._triton_backend(torch.device("cpu")) is None
    radial._triton_backend.cache_clear()


def table(rows: int, dims: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return points(rows, dims, dtype, rows)


WIDE = torch.float64
# x, z, a, and a word of what is said; without a it is a block.
MISFITS = {
    "z of another dtype": (table(4), table(5, dtype=WIDE), None, "dtype"),
    "x of another dtype": (table(4, dtype=WIDE), table(5), None, "dtype"),
    "a of another dtype": (table(4), table(5), table(2, 5, WIDE), "dtype"),
    "whole numbers": (table(4).long(), table(5).long(), None, "dtype"),
    "z of another width": (table(4), table(5, 2), None, "columns"),
    "x of another width": (table(4, 1), table(5), None, "columns"),
    "both of another width": (table(4, 2), table(5, 2), None, "lengthscales"),
    "a too short": (table(4), table(5), table(2, 4), "each of the 5"),
    "a too long": (table(4), table(5), table(2, 6), "each of the 5"),
    "a of one column": (table(4), table(5), table(2, 1), "each of the 5"),
    "a without rows for latents": (table(4), table(5), torch.ones(5), "each of the 5"),
    "z on another device": (table(4), table(5).to("meta"), None, "device"),
    "a on another device": (table(4), table(5), table(2, 5).to("meta"), "device"),
    "one point without its axis": (torch.ones(3), table(5), None, "tables"),
}


@pytest.fixture
def unchecked_annotations():
    """As users have it: their shapes are not checked by the suite's type checker."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("both_ways", "unchecked_annotations")
@pytest.mark.parametrize("path", ["fused", "generic"])
@pytest.mark.parametrize("misfit", MISFITS)
def test_points_that_do_not_fit_are_refused(misfit, path):
    x, z, a, word = MISFITS[misfit]
    kernel = default_sum(3, ard=True)
    covariance = Covariance(kernel)
    if path == "generic":
        if word == "lengthscales":
            pytest.skip("GPyTorch's own kernels look themselves")
        covariance = Covariance(kernel + RQKernel())
    call = covariance.block if a is None else partial(covariance.matvec, a=a)
    with pytest.raises(DataError, match=word):
        call(x, z)


@pytest.mark.usefixtures("both_ways", "unchecked_annotations")
@pytest.mark.parametrize("method", ["diagonal", "symmetric_block"])
def test_points_of_another_width_than_the_lengthscales_are_refused(method):
    covariance = Covariance(default_sum(3, ard=True))
    with pytest.raises(DataError, match="lengthscales"):
        getattr(covariance, method)(table(4, 1))
