"""One file a library. Which contestants take part, and what each of them is given."""

from dataclasses import dataclass, replace

from .contract import Setup

PEERS = ("gpytorch", "gpjax", "gpflow")
OURS, OUR_MODEL = "orthogp_orthogonal", "ours:OrthogpModel"
# The paper compares 300 + 700 points with 400 coupled ones, as equal in cost.
EQUAL_COST = 100


@dataclass(frozen=True)
class Entry:
    """`file:class` of a model in this folder, its setup, and the library that it times."""

    model: str
    setup: Setup
    library: str


def lineup(setup: Setup, peers: tuple[str, ...]) -> dict[str, Entry]:
    """The contestants by name: ours first, then those of the peers asked for."""
    svgp = replace(setup, n_residual=0)
    wider = replace(svgp, n_inducing=setup.n_inducing + EQUAL_COST)
    entries = {
        OURS: Entry(OUR_MODEL, setup, "orthogp"),
        "orthogp_coupled": Entry(OUR_MODEL, svgp, "orthogp"),
        f"orthogp_coupled_{wider.n_inducing}": Entry(OUR_MODEL, wider, "orthogp"),
        "gpytorch_orthogonal": Entry("gpytorch_models:GPyTorchModel", setup, "gpytorch"),
        "gpytorch_svgp": Entry("gpytorch_models:GPyTorchModel", svgp, "gpytorch"),
        "gpytorch_large_batch": Entry("gpytorch_models:LargeBatchModel", svgp, "gpytorch"),
        "gpjax_svgp": Entry("gpjax_svgp:GPJaxSVGP", svgp, "gpjax"),
        "gpflow_svgp": Entry("gpflow_svgp:GPflowSVGP", svgp, "gpflow"),
    }
    wanted = ("orthogp", *peers)
    return {name: entry for name, entry in entries.items() if entry.library in wanted}
