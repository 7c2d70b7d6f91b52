"""The models by name. A model is a function that imports its library when it is called."""

from functools import partial
from typing import Any

from orthogp.apps.accuracy.models.contract import FittedModel, Model, Problem
from orthogp.apps.accuracy.models.networks import fit_realmlp, fit_tabm
from orthogp.apps.accuracy.models.ours import fit_orthogp
from orthogp.apps.accuracy.models.tabpfn import fit_tabpfn
from orthogp.apps.accuracy.models.trees import BOOSTED, fit_ngboost
from orthogp.apps.accuracy.models.vecchia import fit_gpboost
from orthogp.errors import ConfigurationError


def _gpytorch(name: str, problem: Problem) -> FittedModel:
    from orthogp.apps.accuracy.models import gpytorch_models

    return getattr(gpytorch_models, name)(problem)


NUMBERS: dict[str, Any] = {"tasks": ("regression",)}
MODELS = {
    "orthogp": Model("orthogp's defaults", fit_orthogp, "orthogp", uses_device=True),
    **{
        name: Model(
            f"{name.removesuffix('-tuned')}, "
            + ("the best of a random search" if name.endswith("-tuned") else "early stopping"),
            fit,
            name.removesuffix("-tuned"),
            "peers-trees",
        )
        for name, fit in BOOSTED.items()
    },
    "ngboost": Model("NGBoost", fit_ngboost, "ngboost", "peers", **NUMBERS),
    "realmlp": Model("RealMLP-TD", fit_realmlp, "pytabkit", "peers-networks", uses_device=True),
    "tabm": Model("TabM-D", fit_tabm, "pytabkit", "peers-networks", uses_device=True),
    "exact-gp": Model(
        "an exact GP in GPyTorch",
        partial(_gpytorch, "fit_exact_gp"),
        "gpytorch",
        uses_device=True,
        **NUMBERS,
    ),
    "svgp": Model(
        "GPyTorch's SVGP", partial(_gpytorch, "fit_svgp"), "gpytorch", uses_device=True, **NUMBERS
    ),
    "gpboost": Model("GPBoost's Vecchia GP", fit_gpboost, "gpboost", "peers-gpboost", **NUMBERS),
    "tabpfn": Model("TabPFN", fit_tabpfn, "tabpfn", "peers-tabpfn", uses_device=True),
}


def find_models(wanted: list[str] | None) -> dict[str, Model]:
    """All models, or those named."""
    unknown = [name for name in wanted or () if name not in MODELS]
    if unknown:
        raise ConfigurationError(
            f"there is no model {unknown[0]!r}; the models are {', '.join(MODELS)}"
        )
    return {name: MODELS[name] for name in wanted or MODELS}
