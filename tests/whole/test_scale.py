"""Built for size: one step at |β| = 300, |γ| = 100 000, batch 1024 in under 4 GB."""

import subprocess
import sys

STEP = """
import resource, torch
from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel

rng = torch.Generator().manual_seed(0)
def points(rows):
    return torch.randn(rows, 8, generator=rng)
kernel = default_kernel(8)
basis = build_basis("orthogonal", kernel, points(300), points(100_000))
model = VariationalGP(kernel, Gaussian(1), basis)
columns = torch.randint(100_000, (64,), generator=rng)
bound = model.bound(points(1024), torch.randn(1024, generator=rng), 10**6, columns)
parameters = list(model.parameters())
grads = torch.autograd.grad(-bound.value, [bound.q.v, bound.q.S, *parameters])
model.basis.q.step(bound.factor, bound.q, *grads[:2], torch.tensor(0.1), guarded=False)
assert not bound.failed
assert all(g.isfinite().all() for g in grads)
assert grads[2:][[n for n, _ in model.named_parameters()].index("basis.a_gamma")].abs().min() > 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)
"""


def test_a_step_with_100_000_residual_points_stays_under_4_gb(record_property):
    out = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    gigabytes = float(out.stdout)
    record_property("figure", f"a step with 100 000 residual points: {gigabytes:.2f} GB in all")
    assert gigabytes < 4.0
