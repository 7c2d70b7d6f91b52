"""Without an accelerator the same comes out, slower; what is compiled suits other processors."""

import sys
from importlib.machinery import ModuleSpec
from itertools import product
from types import ModuleType

import pytest
import torch

from orthogp.errors import ConfigurationError
from orthogp.kernel import radial
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.training import Rows, TrainingConfig, fit

pytest.importorskip("llvmlite")

from llvmlite import binding

from orthogp.kernel.radial import native
from orthogp.kernel.radial.program import Kind, program


def forget() -> None:
    for found in (radial._llvm_backend, radial._triton_backend, native._openmp_parallel):
        found.cache_clear()


@pytest.fixture
def switch(monkeypatch):
    """Sets what is switched off, until the end of the test."""

    def set_disabled(names: str) -> None:
        monkeypatch.setenv(radial.VARIABLE, names)
        forget()

    yield set_disabled
    forget()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def sums() -> list[torch.Tensor]:
    """Blocks, products and all gradients, of more entries than one thread is given."""
    rng = torch.Generator().manual_seed(0)
    x, z, a = (
        torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()
        for shape in ((120, 3), (90, 3), (2, 90))
    )
    covariance = Covariance(default_kernel(3, ard=True).double())
    block, along = covariance.block(x, z), covariance.matvec(x, z, a)
    loss = block.square().sum() + along.square().sum() + covariance.symmetric_block(x).sum()
    return [block, along, *torch.autograd.grad(loss, [x, z, a, *covariance.parameters()])]


def trained() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(400, 2, generator=rng, dtype=torch.float64)
    y = torch.sin(9 * x[:, 0]) * x[:, 1]
    kernel = default_kernel(2).double()
    basis = build_basis("orthogonal", kernel, x[:20], x[20:60])
    model = VariationalGP(kernel, Gaussian(1), basis).double()
    fit(model, Rows(x, y), TrainingConfig(max_steps=20, batch_size=100))
    return [*model.state_dict().values(), *model.predict(x[:50])]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("names", ["llvm", "openmp", " llvm, openmp,triton "])
@pytest.mark.parametrize("work", [sums, trained])
def test_what_is_switched_off_changes_nothing_but_the_speed(work, names, switch):
    switch("")
    assert radial.compiled_backend(torch.zeros(1, 1)) is not None
    expected = work()
    switch(names)
    assert (radial.compiled_backend(torch.zeros(1, 1)) is None) == ("llvm" in names)
    if "openmp" in names:
        assert native._openmp_parallel() is None
    for ours, theirs in zip(work(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("error")
def test_triton_that_is_switched_off_is_not_tried(switch, monkeypatch):
    broken = ModuleType("triton")
    broken.__spec__ = ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", broken)
    switch("triton")
    assert radial._triton_backend(torch.device("cpu")) is None


def test_a_name_that_is_none_of_them_is_refused(switch):
    switch("llvm,cuda")
    with pytest.raises(ConfigurationError, match="cuda"):
        Covariance(default_kernel(1)).block(torch.zeros(2, 1), torch.zeros(2, 1))


# The first bytes of an object file, and of it the processor: ELF for AArch64, Mach-O for ARM64.
PROCESSORS = {
    "aarch64-unknown-linux-gnu": (b"\x7fELF", 18, b"\xb7\x00"),
    "arm64-apple-darwin": (b"\xcf\xfa\xed\xfe", 4, b"\x0c\x00\x00\x01"),
}


@pytest.mark.parametrize("triple", PROCESSORS)
@pytest.mark.parametrize(("double", "backward"), [*product([False, True], repeat=2)])
def test_programs_compile_for_processors_of_another_kind(triple, double, backward):
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    # Every intrinsic is called by one of these.
    families = ("rbf", "matern12", "matern32", "matern52")
    kind = Kind(families, double, double, backward == double, backward, backward, backward)
    module = binding.parse_assembly(program(kind))
    module.verify()
    machine = binding.Target.from_triple(triple).create_target_machine(opt=1)
    code = machine.emit_object(module)
    magic, place, processor = PROCESSORS[triple]
    assert code.startswith(magic)
    assert code[place:].startswith(processor)
