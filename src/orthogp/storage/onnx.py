"""The predictive mean and variance as an ONNX graph, node by node.

The graph computes in float64 from its input `x` [N, d] to its output: the distances come from a
product of matrices, and float32 would lose half of their digits. It holds an N × |β ∪ γ| matrix, so
that a caller with many rows passes them in batches.

No single number multiplies a matrix product or its arguments: onnxruntime would move it into the
product, as a float32.
"""

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.execution import files
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial.families import families_with
from orthogp.posterior import Predictor

# Old enough for the runtimes in use, new enough for axes as inputs.
OPSET, IR_VERSION = 17, 8
LARGEST_FILE = 2**31 - 1


class Graph:
    """Nodes and constants of a graph in the making; a call adds a node and names its output."""

    def __init__(self, onnx: Any):
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(
        self,
        operation: str,
        *inputs: str | Tensor | float,
        output: str | None = None,
        **attributes: Any,
    ) -> str:
        names = [i if isinstance(i, str) else self._constant(i) for i in inputs]
        output = output or f"{operation}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, names, [output], **attributes))
        return output

    def _constant(self, value: Tensor | float) -> str:
        name = f"constant_{len(self.constants)}"
        indices = isinstance(value, Tensor) and not value.is_floating_point()
        array = torch.as_tensor(value, dtype=torch.long if indices else torch.float64)
        self.constants.append(self.onnx.numpy_helper.from_array(array.cpu().numpy(), name))
        return name

    def serialised(self, inputs: dict[str, list], outputs: dict[str, list]) -> bytes:
        """The whole graph from these inputs to these outputs, each a name and a shape."""
        helper, double = self.onnx.helper, self.onnx.TensorProto.DOUBLE
        ends = [
            [helper.make_tensor_value_info(name, double, shape) for name, shape in end.items()]
            for end in (inputs, outputs)
        ]
        model = helper.make_model(
            helper.make_graph(self.nodes, "orthogp", *ends, self.constants),
            producer_name="orthogp",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        if model.ByteSize() > LARGEST_FILE:
            raise ConfigurationError("the model has more than the 2 GiB that an ONNX file can hold")
        return model.SerializeToString()


class Node:
    """A node with the arithmetic of the radial families; it joins the graph when it is named."""

    def __init__(self, graph: Graph, operation: str, *inputs: "Node | str | Tensor | float"):
        self.graph, self.operation, self.inputs = graph, operation, inputs

    @cached_property
    def name(self) -> str:
        names = (i.name if isinstance(i, Node) else i for i in self.inputs)
        return self.graph(self.operation, *names)

    def then(self, operation: str, *inputs: "Node | Tensor | float") -> "Node":
        return Node(self.graph, operation, self, *inputs)

    def __add__(self, other: "Node | float") -> "Node":
        return self.then("Add", other)

    def __mul__(self, other: "Node | float") -> "Node":
        return self.then("Mul", other)

    __radd__, __rmul__ = __add__, __mul__


FAMILIES = families_with(
    sqrt=lambda t: t.then("Sqrt"),
    exp_minus=lambda t: t.then("Neg").then("Exp"),
    limit=lambda t: t,
    # Only κ′ has a ratio, and nothing exported has a κ′.
    ratio=lambda e, r: e.then("Div", r),
)


# For each ramp the column of x, where it leaves zero, and where it reaches one.
Ramps = tuple[Int[Tensor, " r"], Float[Tensor, " r"], Float[Tensor, " r"]]


@torch.no_grad()
def export_onnx(
    path: str | Path,
    predictor: Predictor,
    x_shift: Float[Tensor, " d"],
    x_scale: Float[Tensor, " d"],
    y_shift: Float[Tensor, " c"],
    y_scale: Float[Tensor, " c"],
    noise_variance: Float[Tensor, " c"] | None,
    latent_scale: Float[Tensor, " c"] | float = 1.0,
    mean: Mean | None = None,
    linear_map: Float[Tensor, "z d_and_r"] | None = None,
    ramps: Ramps | None = None,
) -> None:
    """Writes a graph from "x" [N, d] to "mean" and "variance", [N] or, for c > 1, [N, c].

    The model was trained on (x − x_shift)/x_scale, times `linear_map` if there is one, and
    (y − y_shift)/y_scale, with `mean` as the prior mean. With `ramps` the map is one of x and,
    after it, of their values. The variance is `latent_scale` times that of the latent function,
    plus `noise_variance` where there is one: then it is that of a new observation.
    """
    g = Graph(_import_onnx())
    weights = torch.cat([predictor.beta_weights, predictor.gamma_weights], 1)
    y_scale = y_scale.to(weights)
    x = g("Div", g("Sub", "x", x_shift), x_scale)
    if ramps is not None:
        column, low, high = ramps
        share = g("Div", g("Sub", g("Gather", x, column, axis=1), low), high - low)
        x = g("Concat", x, g("Max", g("Min", share, 1.0), 0.0), axis=1)
    x = x if linear_map is None else g("MatMul", x, linear_map.mT.contiguous())
    K_xa = _block(g, predictor.covariance, x, torch.cat([predictor.beta, predictor.gamma]))
    # m(x) = k_xα a, in the units of y
    m = g("MatMul", K_xa, (weights.mT * y_scale).contiguous())
    m = g("Add", _add_prior_mean(g, m, x, mean, y_scale), y_shift)
    s = g("Mul", _latent_variance(g, K_xa, predictor), latent_scale)
    s = s if noise_variance is None else g("Add", s, noise_variance)
    s = g("Mul", s, y_scale.square())
    shape = ["N"] if len(y_shift) == 1 else ["N", len(y_shift)]
    for name, result in {"mean": m, "variance": s}.items():
        g("Reshape", result, torch.tensor([-1, *shape[1:]]), output=name)
    model = g.serialised({"x": ["N", len(x_shift)]}, {"mean": shape, "variance": shape})
    files.write_atomically(Path(path), [model])


def _block(g: Graph, covariance: Covariance, x: str, z: Float[Tensor, "m d"]) -> str:
    """K_xz = Σ_k s_k κ_k(|x − z|²/ℓ_k²)."""
    if covariance.terms is None:
        raise ConfigurationError(
            f"ONNX export knows sums of scaled RBF and Matérn kernels on all columns, not "
            f"{type(covariance.kernel).__name__}"
        )
    # |x|² + |z|² − 2 xᵀz cancels least about the centre of z.
    centre = z.mean(0)
    x, z = g("Sub", x, centre), z - centre
    total, isotropic = "", None
    for term in covariance.terms:
        inverse = term.kernel.lengthscale.to(z).reciprocal()
        if inverse.numel() == 1:
            isotropic = isotropic or _square_distance(g, x, z)
            q = isotropic.then("Mul", inverse.square())
        else:
            q = _square_distance(g, g("Mul", x, inverse), z * inverse)
        # One factor a column, though all are equal: see the top of the file.
        scale = term.scale().to(z).expand(z.shape[0])
        kappa, _ = FAMILIES[term.family](q)
        part = g("Mul", kappa.name, scale)
        total = g("Add", total, part) if total else part
    return total


def _square_distance(g: Graph, x: str, z: Float[Tensor, "m d"]) -> Node:
    x_norm = g("ReduceSum", g("Mul", x, x), torch.tensor([1]), keepdims=1)
    product = g("MatMul", x, -2.0 * z.mT.contiguous())
    return Node(g, "Max", g("Add", g("Add", product, x_norm), z.square().sum(1)), 0.0)


def _latent_variance(g: Graph, K_xa: str, p: Predictor) -> str:
    """s(x) = k_xx − Σ_i λ_i (Z k_βx)_i²; β are the first points of α."""
    first, last, columns = torch.tensor([0]), torch.tensor([len(p.beta)]), torch.tensor([1])
    k = g("Slice", K_xa, first, last, columns)
    along = g("MatMul", k, p.Z.mT.contiguous())
    products = g("Mul", g("Mul", along, along), p.explained.unsqueeze(-2))
    explained = g("ReduceSum", products, torch.tensor([2]), keepdims=0)
    # Of a stationary kernel the same everywhere.
    prior = p.covariance.diagonal(p.beta[:1])
    variance = g("Sub", prior, g("Transpose", explained, perm=[1, 0]))
    return g("Max", variance, 1e-10 * prior)


def _add_prior_mean(
    g: Graph, m: str, x: str, mean: Mean | None, y_scale: Float[Tensor, " c"]
) -> str:
    if mean is None or type(mean) is ZeroMean:
        return m
    if type(mean) is ConstantMean:
        return g("Add", m, mean.constant * y_scale)  # pyright: ignore
    if type(mean) is LinearMean:
        products = g("Mul", x, mean.get_parameter("weights").mT)
        line = g("ReduceSum", products, torch.tensor([1]), keepdims=1)
        line = line if mean.bias is None else g("Add", line, mean.get_parameter("bias"))
        return g("Add", m, g("Mul", line, y_scale))
    raise ConfigurationError(
        f"ONNX export knows zero, constant and linear means, not {type(mean).__name__}"
    )


def _import_onnx() -> Any:
    try:
        import_module("onnx.numpy_helper")
        return import_module("onnx")
    except ImportError as error:
        raise ConfigurationError(
            "ONNX export needs the package onnx: pip install 'orthogp[export]'"
        ) from error
