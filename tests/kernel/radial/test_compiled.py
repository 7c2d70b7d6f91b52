"""The compiled radial sums are the plain ones: values, gradients, any shape, any thread count."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from orthogp.errors import DataError
from orthogp.kernel import radial
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial.program import Kind, program
from problems import default_sum

compiled = pytest.importorskip("orthogp.kernel.radial.compiled")
native = pytest.importorskip("orthogp.kernel.radial.native")

ALL = ("rbf", "matern12", "matern32", "matern52")
# The loop over the inputs is written out for few of them only.
SHAPES = [(1, 1, 1), (1, 40, 1), (33, 1, 1), (70, 130, 1), (5, 0, 1), (0, 5, 1), (40, 65, 17)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def inputs(rows: int, columns: int, dims: int, dtype: torch.dtype, count: int, ard: bool) -> list:
    rng = torch.Generator().manual_seed(rows + 100 * columns)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    x, z, a = normal(rows, dims), normal(columns, dims), normal(2, columns)
    inverse = 0.4 + normal(count, dims if ard else 1).abs()
    return [t.requires_grad_() for t in (x, z, a, inverse, 0.5 + normal(count).abs())]


def plain(x, z, a, inverse, scale, families):
    """K and K a in float64, summand by summand, from the formulas."""
    x, z, a, inverse, scale = (t.double() for t in (x, z, a, inverse, scale))
    K = torch.zeros(x.shape[0], z.shape[0], dtype=torch.float64)
    for k, name in enumerate(families):
        q = ((x[:, None] - z) * inverse[k]).square().sum(-1)
        if name == "rbf":
            value = (-0.5 * q).exp()
        else:
            r = (int(name[-2]) * q).sqrt()
            series = {"1": 1.0, "3": 1 + r, "5": 1 + r + r.square() / 3}
            value = series[name[-2]] * (-r).exp()
        K = K + scale[k] * value
    return K, a @ K.mT


def assert_same(got, wanted, dtype):
    for ours, theirs in zip(got, wanted, strict=True):
        size = theirs.abs().max().item() if theirs.numel() else 1.0
        torch.testing.assert_close(
            ours.double() / max(size, 1e-3), theirs.double() / max(size, 1e-3),
            rtol=0, atol=TOLERANCE[dtype],
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_the_plain_ones(shape, ard, dtype):
    families = ALL if shape[2] == 1 else ALL[2:]
    given = inputs(*shape, dtype, len(families), ard)
    x, z, a, inverse, scale = given
    K, product = plain(*given, families)
    ours = compiled.block(x, z, inverse, scale, families)
    assert_same([ours], [K], dtype)
    weight = torch.cos(torch.arange(K.numel())).reshape(K.shape)
    no_a = [x, z, inverse, scale]
    assert_same(
        torch.autograd.grad((ours * weight.to(dtype)).sum(), no_a),
        torch.autograd.grad((K * weight).sum(), no_a, retain_graph=True),
        dtype,
    )
    ours = compiled.matvec(x, z, a, inverse, scale, families)
    assert_same([ours], [product], dtype)
    assert_same(
        torch.autograd.grad(ours.square().sum(), given),
        torch.autograd.grad(product.square().sum(), given),
        dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("rows", [1, 33, 300])
def test_a_symmetric_block_works_on_every_pair_once(rows, ard, dtype):
    families = ALL[2:]
    x, _, _, inverse, scale = inputs(rows, 1, 3, dtype, len(families), ard)
    K = compiled.block(x, x, inverse, scale, families)
    ours = compiled.symmetric_block(x, inverse, scale, families)
    assert torch.equal(ours, K)
    weight = torch.cos(torch.arange(K.numel())).reshape(K.shape).to(dtype)
    found = (
        torch.autograd.grad(((weight + weight.mT) * block).sum(), [x, inverse, scale])
        for block in (ours, K)
    )
    assert_same(*found, dtype)


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (3,), (4,), (0, 3), (1, 2)])
@pytest.mark.parametrize("ard", [False, True])
def test_each_gradient_alone_is_what_it_is_among_all(needed, ard):
    given = inputs(20, 30, 3, torch.float64, 2, ard)
    families = ("matern52", "rbf")
    whole = torch.autograd.grad(compiled.matvec(*given, families).exp().sum(), given)
    alone = [t.detach().requires_grad_(k in needed) for k, t in enumerate(given)]
    loss = compiled.matvec(*alone, families).exp().sum()
    found = torch.autograd.grad(loss, [alone[k] for k in needed])
    torch.testing.assert_close(found, tuple(whole[k] for k in needed), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exponential_is_right_to_the_last_places(dtype):
    distance = torch.linspace(0.0, 12.5, 20_001, dtype=torch.float64).to(dtype)[:, None]
    one = torch.ones(1, 1, dtype=dtype)
    K = compiled.block(distance, torch.zeros(1, 1, dtype=dtype), one, one[0], ("rbf",))
    # Of the very exponent that the loop sees.
    exponent = -0.5 * (distance.numpy() * distance.numpy())[:, 0]
    exact = np.exp(exponent.astype(np.longdouble))
    error = np.abs(K[:, 0].numpy() / exact - 1) / torch.finfo(dtype).eps
    assert error.max() < 2.0
    assert K[0, 0] == 1.0


def test_far_points_have_nothing_in_common_and_nan_shows():
    x = torch.tensor([[0.0], [1e4], [1e30], [torch.nan]])
    one = torch.ones(1, 1)
    for name in ALL:
        K = compiled.block(x, one, one, one[0], (name,))
        assert K[1, 0].abs() < 1e-30
        assert K[2, 0].abs() < 1e-30
        assert K[3, 0].isnan()


@pytest.mark.parametrize("ard", [False, True])
def test_layouts_of_the_inputs_do_not_matter(ard):
    given = inputs(40, 70, 4, torch.float32, 2, ard)
    x, z, a, inverse, scale = (t.detach() for t in given)
    spread = torch.zeros(80, 4)
    spread[::2] = x
    other = [spread[::2], z.mT.contiguous().mT, a.mT.contiguous().mT]
    families = ("matern32", "rbf")
    expected = compiled.matvec(x, z, a, inverse, scale, families)
    assert torch.equal(compiled.matvec(*other, inverse, scale, families), expected)
    flipped = x.mT.contiguous().mT
    block = compiled.block(x, z, inverse, scale, families)
    assert torch.equal(compiled.block(flipped, z, inverse, scale, families), block)
    upstream = torch.randn(70, 40).mT
    grads = []
    for p in (upstream, upstream.contiguous()):
        leaf = x.clone().requires_grad_()
        out = compiled.block(leaf, z, inverse, scale, families)
        grads.append(torch.autograd.grad(out, leaf, p)[0])
    assert torch.equal(*grads)


@pytest.mark.parametrize("field", ["x", "z", "a", "inverse", "scale"])
@pytest.mark.parametrize("fault", ["dtype", "shape", "device"])
def test_no_address_of_a_tensor_that_does_not_fit_is_handed_on(field, fault):
    names = ("x", "z", "a", "inverse", "scale")
    given = dict(zip(names, inputs(6, 5, 3, torch.float32, 2, True), strict=True))
    wrong = given[field].detach()
    if fault == "dtype":
        given[field] = wrong.double()
    else:
        given[field] = wrong[..., :-1].contiguous() if fault == "shape" else wrong.to("meta")
    with pytest.raises(DataError):
        compiled.matvec(*given.values(), ("matern52", "rbf"))
    del given["a"]
    if field != "a":
        with pytest.raises(DataError):
            compiled.block(*given.values(), ("matern52", "rbf"))


@pytest.mark.parametrize("fault", ["dtype", "shape", "device"])
@pytest.mark.parametrize("product", [False, True])
def test_nor_that_of_a_gradient(product, fault):
    x, z, a, inverse, scale = (t.detach() for t in inputs(6, 5, 3, torch.float32, 2, False))
    radial_sum = compiled._RadialSum(x, z, a if product else None, inverse, scale, ALL[:2])
    right = torch.ones(2, 6) if product else torch.ones(6, 5)
    wrong = {"dtype": right.double(), "shape": right[1:], "device": right.to("meta")}
    radial_sum.gradients(right, True, True)
    with pytest.raises(DataError, match="upstream"):
        radial_sum.gradients(wrong[fault], True, True)


@pytest.mark.parametrize("field", ["out", "upstream", "sums", "grad_x", "grad_z", "grad_a"])
def test_nor_that_of_anything_in_pieces(field):
    x, z, a, inverse, scale = (t.detach() for t in inputs(6, 5, 3, torch.float32, 2, False))
    radial_sum = compiled._RadialSum(x, z, a, inverse, scale, ALL[:2])
    (tile,) = radial_sum._tiles()
    width = tile.z.shape[1]
    shape = {
        "out": (2, 6), "upstream": (2, 6), "sums": (6, 4), "grad_x": (6, 3),
        "grad_z": (3, 6, width), "grad_a": (2, 6, width),
    }[field]  # fmt: skip
    dtype = torch.float64 if field == "sums" else torch.float32
    pieces = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2]
    with pytest.raises(DataError, match="in one piece"):
        radial_sum._call(radial_sum.kind, tile, **{field: pieces})


def everything(given, families):
    """Values and gradients, to compare bit by bit."""
    x, z, a, inverse, scale = given
    block = compiled.block(x, z, inverse, scale, families)
    product = compiled.matvec(x, z, a, inverse, scale, families)
    loss = block.square().sum() + product.square().sum()
    return [block, product, *torch.autograd.grad(loss, given)]


@pytest.mark.parametrize("pool", ["torch", "python"])
def test_the_number_of_threads_changes_nothing(pool, monkeypatch):
    if pool == "python":
        monkeypatch.setattr(native, "_openmp_parallel", lambda: None)
    given = inputs(150, 200, 3, torch.float32, 2, True)
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(everything(given, ("matern52", "rbf")))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(s, t) for s, t in zip(results[0], other, strict=True))


@pytest.mark.parametrize("columns", [1, 7, 64])
def test_tiles_of_columns_change_nothing(columns, monkeypatch):
    given = inputs(30, 150, 3, torch.float64, 2, True)
    whole = everything(given, ("matern52", "rbf"))
    monkeypatch.setattr(compiled, "TILE_COLUMNS", columns)
    for ours, expected in zip(everything(given, ("matern52", "rbf")), whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


def test_a_symmetric_block_of_several_tiles_is_the_same(monkeypatch):
    x, _, _, inverse, scale = inputs(50, 1, 2, torch.float64, 2, True)
    found = []
    for columns in (64, 7):
        monkeypatch.setattr(compiled, "TILE_COLUMNS", columns)
        K = compiled.symmetric_block(x, inverse, scale, ALL[:2])
        found.append([K, *torch.autograd.grad(K.square().sum(), [x, inverse, scale])])
    assert_same(*found, torch.float64)


@pytest.mark.parametrize("name", ALL)
def test_a_block_with_itself_is_symmetric_with_ones_on_its_diagonal(name):
    x = inputs(50, 1, 5, torch.float32, 1, False)[0].detach()
    one = torch.ones(1, 1)
    K = compiled.block(x, x, one, one[0], (name,))
    assert torch.equal(K, K.mT)
    assert torch.equal(K.diagonal(), torch.ones(50))


def test_narrow_points_on_a_cpu_take_the_compiled_way():
    assert radial.compiled_backend(torch.zeros(2, 64)) is compiled
    assert radial.compiled_backend(torch.zeros(2, 3, dtype=torch.float64)) is compiled
    assert radial.compiled_backend(torch.zeros(2, 65)) is None
    assert radial.compiled_backend(torch.zeros(2, 3, dtype=torch.float16)) is None
    assert radial.compiled_backend(torch.zeros(2, 3, device="meta")) is None


@pytest.fixture
def forgetful():
    radial._llvm_backend.cache_clear()
    yield
    radial._llvm_backend.cache_clear()


def answers() -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).reshape(6, 2)
    covariance = Covariance(default_sum(2, ard=True))
    return torch.cat([covariance.block(x, x), covariance.matvec(x, x, x.mT), torch.ones(1, 6)])


@pytest.mark.usefixtures("forgetful")
def test_without_llvm_the_tiles_serve(monkeypatch):
    expected, find = answers(), importlib.util.find_spec
    radial._llvm_backend.cache_clear()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llvmlite" else find(name)
    )
    assert radial.compiled_backend(torch.zeros(2, 2)) is None
    torch.testing.assert_close(answers(), expected)


@pytest.mark.usefixtures("forgetful")
def test_where_llvm_cannot_compile_the_tiles_serve_and_a_warning_says_so(monkeypatch):
    broken = ModuleType("llvmlite")
    monkeypatch.setitem(sys.modules, "llvmlite", broken)
    broken.__spec__ = importlib.util.spec_from_loader("llvmlite", None)
    for name in ("compiled", "native"):
        monkeypatch.delitem(sys.modules, f"orthogp.kernel.radial.{name}")
        monkeypatch.delattr(radial, name)
    with pytest.warns(UserWarning, match="cannot compile"):
        assert radial.compiled_backend(torch.zeros(2, 2)) is None


DEFAULT_DEVICE = """
import torch
from orthogp.kernel import radial
from orthogp.kernel.covariance import Covariance
from orthogp.model import default_kernel

x, a = torch.linspace(-1, 1, 12).reshape(6, 2).requires_grad_(), torch.ones(1, 6)
covariance = Covariance(default_kernel(2))
if SETTING == "for the process":
    torch.set_default_device("meta")
else:
    torch.device("meta").__enter__()
loss = covariance.block(x, x).square().sum() + covariance.matvec(x, x, a).square().sum()
loss.backward()
assert radial.compiled_backend(x) is not None
assert loss.isfinite() and x.grad.isfinite().all() and x.grad.device.type == "cpu"
"""


@pytest.mark.parametrize("setting", ["for the process", "inside a block"])
def test_a_default_device_of_torch_does_not_matter(setting):
    # In a process of its own: the first call is the one that asks whether LLVM can compile.
    script = f"SETTING = {setting!r}\n{DEFAULT_DEVICE}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_the_documentation_shows_the_program_as_it_is():
    page = Path(__file__).parents[3] / "docs" / "machine-code.md"
    shown = re.findall(r"```llvm\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    written = program(Kind(("rbf",), double=False, ard=False, dense=True))
    assert len(shown) == 2
    assert all(part in written for part in shown)


@pytest.mark.parametrize("tile", [64, 100, 2**13])
@pytest.mark.parametrize("rows", [1, 63, 65, 200])
@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_symmetric_product_is_that_of_every_pair(tile, rows, ard, dtype, monkeypatch):
    monkeypatch.setattr(compiled, "TILE_COLUMNS", tile)
    covariance = Covariance(default_sum(3, ard=ard).double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator).to(dtype)
    a = torch.randn(2, rows, generator=generator).to(dtype)
    with torch.no_grad():
        expected = a @ covariance.block(x, x)
    found = covariance.symmetric_matvec(x, a)
    assert not found.requires_grad
    rounding = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found, expected, rtol=0, atol=rounding)
