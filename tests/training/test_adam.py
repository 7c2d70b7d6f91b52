"""Our Adam takes the very steps of torch's own."""

import pytest
import torch

from orthogp.training.adam import Adam


@pytest.mark.parametrize("beta2", [0.999, 0.95])
def test_the_steps_are_those_of_torch(beta2):
    rng = torch.Generator().manual_seed(0)
    shapes = [((3, 4), torch.float32), ((5,), torch.float64), ((), torch.float32)]
    start = [torch.randn(shape, generator=rng).to(dtype) for shape, dtype in shapes]
    ours = [torch.nn.Parameter(t.clone()) for t in start]
    theirs = [torch.nn.Parameter(t.clone()) for t in start]
    rate = torch.tensor(0.1)
    adam = Adam(ours, rate, beta2)
    reference = torch.optim.Adam(theirs, lr=rate, betas=(0.9, beta2), fused=True)
    for k in range(30):
        rate.fill_(0.1 / (1 + k))
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=rng).to(one.dtype)
            other.grad = one.grad.clone()
        adam.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
        for key, value in reference.state[other].items():
            assert torch.equal(adam.state[one][key], value)


@pytest.mark.parametrize("is_there", [False, True])
def test_without_the_private_kernel_the_steps_are_the_same(monkeypatch, is_there):
    def refuse(*args, **kwargs):
        raise TypeError("other arguments")

    rng, ends = torch.Generator().manual_seed(0), []
    start, grads = torch.randn(6, generator=rng), torch.randn(40, 6, generator=rng)
    for kernel in (torch._fused_adam_, refuse if is_there else None):
        monkeypatch.setattr(torch, "_fused_adam_", kernel)
        p = torch.nn.Parameter(start.clone())
        adam = Adam([p], torch.tensor(0.1), 0.95)
        for grad in grads:
            p.grad = grad
            adam.step()
        ends.append([p.detach(), *adam.state[p].values()])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_have_the_strides_of_their_parameters():
    """As a kernel of torch's for GPUs demands; those of a general kernel may be transposed."""
    parameter = torch.nn.Parameter(torch.zeros(3, 4))
    parameter.grad = torch.ones(4, 3).mT
    adam, strides = Adam([parameter], torch.tensor(0.1)), []
    adam._fused = lambda _, grads, *others, **options: strides.extend(g.stride() for g in grads)
    adam.step()
    assert strides == [parameter.stride()]
