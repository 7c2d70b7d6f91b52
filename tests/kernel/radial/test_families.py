"""Every form of a radial family, torch, machine code, Triton and ONNX, is the same κ and κ′."""

import contextlib
import math
import os

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import reference
from orthogp.kernel.radial import families, tiled
from orthogp.storage import onnx as export

NAMES = ("rbf", "matern12", "matern32", "matern52")
# From a point itself to where nothing is left.
DISTANCES = np.array([0.0, 1e-4, 0.01, 0.1, 0.3, 0.8, 1.0, 1.7, 2.5, 4.0, 7.0, 20.0])


def slope(family: str, q: float) -> float:
    """κ′(q), from the derivative in r = √q by hand; 0 where it is infinite."""
    if family == "rbf":
        return -0.5 * math.exp(-0.5 * q)
    if family == "matern12":
        return -0.5 * math.exp(-math.sqrt(q)) / math.sqrt(q) if q else 0.0
    if family == "matern32":
        return -1.5 * math.exp(-math.sqrt(3.0 * q))
    r = math.sqrt(5.0 * q)
    return -5.0 / 6.0 * (1.0 + r) * math.exp(-r)


def by_torch(name, x, inverse, scale):
    zero = torch.zeros_like(x[:1])
    return tiled.block(x, zero, inverse.square().reshape(1), scale, (name,))


def by_machine_code(name, x, inverse, scale):
    compiled = pytest.importorskip("orthogp.kernel.radial.compiled")
    return compiled.block(x, torch.zeros_like(x[:1]), inverse, scale, (name,))


def by_triton(name, x, inverse, scale, monkeypatch):
    """On a GPU, or in Triton's interpreter."""
    fused = pytest.importorskip("orthogp.kernel.radial.fused")
    device = "cuda"
    if os.environ.get("TRITON_INTERPRET") == "1":
        device = "cpu"
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        # Which asks to see the language among the names of every function.
        monkeypatch.setattr(families, "tl", fused.tl, raising=False)
    elif not torch.cuda.is_available():
        pytest.skip("neither a GPU nor Triton's interpreter is there")
    x, inverse, scale = (t.to(device) for t in (x, inverse, scale))
    return fused.block(x, torch.zeros_like(x[:1]), inverse, scale, (name,)).cpu()


FORMS = {"torch": by_torch, "machine code": by_machine_code, "triton": by_triton}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_slopes_are_those_of_numpy(name, form, dtype, monkeypatch):
    x = torch.tensor(DISTANCES, dtype=dtype)[:, None].requires_grad_()
    inverse = torch.tensor([[0.7]], dtype=dtype)
    scale = torch.tensor([1.3], dtype=dtype)
    extra = (monkeypatch,) if form == "triton" else ()
    K = FORMS[form](name, x, inverse, scale, *extra)
    (gradient,) = torch.autograd.grad(K.sum(), x)
    q = (0.7 * DISTANCES) ** 2
    values = 1.3 * np.array([reference.kappa(name, t) for t in q])
    # ∂κ/∂x = 2 κ′(q) ρ x
    slopes = 2.6 * 0.49 * DISTANCES * np.array([slope(name, t) for t in q])
    tolerance = {"rtol": 0, "atol": 1e-13 if dtype == torch.float64 else 1e-6}
    np.testing.assert_allclose(K[:, 0].detach().numpy(), values, **tolerance)
    np.testing.assert_allclose(gradient[:, 0].numpy(), slopes, **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_exported_values_are_those_of_numpy(name):
    graph = export.Graph(onnx)
    value, _ = export.FAMILIES[name](export.Node(graph, "Mul", "d", "d"))
    graph("Mul", value.name, 1.0, output="value")
    # κ′ has no part in what is exported.
    assert "Div" not in {node.op_type for node in graph.nodes}
    session = onnxruntime.InferenceSession(graph.serialised({"d": ["N"]}, {"value": ["N"]}))
    (found,) = session.run(["value"], {"d": DISTANCES})
    expected = [reference.kappa(name, t) for t in DISTANCES**2]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
