"""One training step: bound, gradients, natural step on q(f_β), Adam on the rest.

Nothing here reads a tensor's value on the host. `OverlappedStep` is the same step on a GPU.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.execution.team import Team
from orthogp.model import Bound, VariationalGP
from orthogp.model.priors import log_prior, registered_priors, require_densities
from orthogp.posterior import NaturalGaussian, Orthogonal
from orthogp.posterior.residual import (
    ScaledAdam,
    diagonal_rule,
    exact_rule,
    projected_covariance,
    projected_diagonal,
)
from orthogp.training.adam import BETA1, Adam
from orthogp.training.config import TrainingConfig
from orthogp.training.watch import CAUSES, Watch


class Step:
    """The step with its optimizers and the static buffers it reads and writes."""

    def __init__(
        self,
        model: VariationalGP,
        config: TrainingConfig,
        num_rows: int,
        batch: list[Tensor],
        num_columns: int | None,
        team: Team | None = None,
        batch_rows: int | None = None,
    ):
        """`batch` has this process's share of the `batch_rows` rows of a batch, by default all."""
        self.model, self.config, self.num_rows = model, config, num_rows
        self.batch, self.batch_rows = batch, batch_rows
        self.team = Team() if team is None else team
        device = model.basis.beta.device
        self.columns = (
            None if num_columns is None
            else torch.zeros(num_columns, dtype=torch.long, device=device)
        )  # fmt: skip
        # Learning rate, τ and the γ rule's rate, in the dtype that fused optimizers read.
        self.rates = torch.zeros(3, dtype=torch.float32, device=device)
        self.minus_one = torch.full((), -1.0, dtype=torch.float64, device=device)
        self.watch = Watch(num_rows, device)
        q = getattr(model.basis, "q", None)
        self.natural = q if isinstance(q, NaturalGaussian) else None
        self._choose_parameters()
        # Of hyperparameters that stay where they are a prior has nothing to say.
        self.priors = registered_priors(model) if config.train_hyperparameters else ()
        require_densities(self.priors)

    def _choose_parameters(self) -> None:
        """Who moves each parameter: the γ rule moves a_γ of the orthogonal basis, Adam the rest."""
        model, config = self.model, self.config
        frozen = set()
        if not config.train_points:
            frozen |= {model.basis.beta, model.basis.gamma}
        if not config.train_hyperparameters:
            frozen |= set(model.covariance.parameters()) | set(model.likelihood.parameters())
            frozen |= set(model.mean.parameters())
        chosen = [
            p for p in model.parameters() if p not in frozen and p.requires_grad and p.numel()
        ]
        self.a_gamma = None
        if isinstance(model.basis, Orthogonal) and model.basis.a_gamma.numel():
            self.a_gamma = model.basis.a_gamma
            chosen = [p for p in chosen if p is not self.a_gamma]
        elif config.residual_rule != "adam":
            raise ConfigurationError(
                f"residual_rule is {config.residual_rule!r}; only the orthogonal basis with "
                "residual points has such a rule"
            )
        self.parameters = chosen
        self.adam = Adam(chosen, self.rates[0], config.adam_beta2) if chosen else None
        self.residual_adam, self.scale, self.projected = None, None, None
        if self.a_gamma is not None:
            ones = torch.ones_like(self.a_gamma[0])
            if config.residual_rule == "exact":
                self.projected = ones.new_zeros(len(ones), len(ones), dtype=torch.float64)
            elif config.residual_rule == "diagonal":
                self.scale = ones
            else:
                betas = BETA1, config.adam_beta2
                self.residual_adam = ScaledAdam(self.a_gamma, ones, self.rates[2], betas)

    @torch.no_grad()
    def refresh(self) -> None:
        """Takes D = diag K_γ⊥β (or K_γ⊥β itself, for the exact rule) afresh."""
        if self.a_gamma is None:
            return
        basis, covariance = self.model.basis, self.model.covariance
        factor = basis.factor(covariance, self.model.jitter, robust=True)
        if self.projected is not None:
            fresh = projected_covariance(covariance, basis.beta, basis.gamma, factor.R)
            self.projected.copy_(fresh)
            return
        D = projected_diagonal(covariance, basis.beta, basis.gamma, factor.R)
        floor = self.config.residual_floor * covariance.diagonal(basis.beta).mean()
        if self.residual_adam is not None:
            self.residual_adam.set_scale(D + floor)
        elif self.scale is not None:
            self.scale.copy_(D + floor)

    def __call__(self) -> None:
        """One step on the batch in the buffers, at the rates in the buffers."""
        self._run()

    def _run(self) -> None:
        x, y, *weight = self.batch
        # Among several processes none may leave a step that the others go on with.
        bound = self.model.bound(
            x, y, self.num_rows, self.columns, weight[0] if weight else None, self.batch_rows,
            robust=self.team.size == 1,
        )  # fmt: skip
        prior = self._log_prior()
        value, grads = self._differentiated(bound, prior)
        self._note(bound, value, prior)
        if self.natural is not None:
            grad_v, grad_S, *grads = grads
            self._natural_step(bound, grad_v, grad_S)
        self._set_gradients(grads)
        self._move_residual()
        self._clip()
        self.watch.note_gradients(grads)
        self._move_parameters()

    @property
    def _moved(self) -> Sequence[Tensor]:
        """What gradients are asked for beyond those of q(f_β)."""
        return self.parameters if self.a_gamma is None else [*self.parameters, self.a_gamma]

    def _log_prior(self) -> Tensor | None:
        return log_prior(self.priors) if self.priors else None

    def _note(self, bound: Bound, value: Tensor, prior: Tensor | None) -> None:
        if self.residual_adam is not None:
            self.residual_adam.count()
        self.watch.note(bound, value, prior)

    def _differentiated(
        self, bound: Bound, prior: Tensor | None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The bound of all processes' rows; the gradients of minus the bound plus log p(θ).

        With respect to v and S̃ first, where they take natural steps, then to what else moves.
        """
        moved = self._moved
        wanted = moved if self.natural is None else [bound.q.v, bound.q.S, *moved]
        if self.team.size == 1:
            objective = bound.value if prior is None else bound.value + prior
            return bound.value.detach(), torch.autograd.grad(objective, wanted, self.minus_one)
        # Every process has the whole KL and its own rows' expected log-likelihood.
        share = bound.expected_log_prob - bound.kl / self.team.size
        # log p(θ), like the KL, is whole in every process.
        objective = share if prior is None else share + prior / self.team.size
        grads = torch.autograd.grad(objective, wanted, self.minus_one)
        # Those of this process's part of γ are whole already.
        own = self._own_part()
        common = [grad for t, grad in zip(wanted, grads, strict=True) if t not in own]
        value, *summed = self.team.sum([share.detach(), *common])
        rest = iter(summed)
        return value, [g if t in own else next(rest) for t, g in zip(wanted, grads, strict=True)]

    def _own_part(self) -> set[Tensor]:
        """The parameters that no other process has."""
        basis = self.model.basis
        return set() if basis.shards is None else {basis.gamma, basis.a_gamma}

    def common_tensors(self) -> list[Tensor]:
        """Of `tensors()`, those that must be the same in all processes."""
        own = self._own_part()
        if not own:
            return list(self.tensors().values())
        prefixes = ["model.basis.gamma", "model.basis.a_gamma", "residual.", "scale"]
        prefixes += [f"adam.{k}." for k, p in enumerate(self.parameters) if p in own]
        return [t for name, t in self.tensors().items() if not name.startswith(tuple(prefixes))]

    @torch.no_grad()
    def fault(self) -> str | None:
        """What went wrong since the last restore, or with the state as it is; None for nothing.

        Reads the device. A state without a fault is one that the next step can start from.
        """
        if self.priors and log_prior(self.priors).isneginf():
            return "a prior has no density at the value of its parameter"
        cause = self.watch.cause()
        if cause is not None:
            return cause
        parts = [t.isfinite().all() for t in self.tensors().values() if t.is_floating_point()]
        if not torch.stack(parts).all():
            return "a parameter is not finite"
        model, robust = self.model, not self.rates.is_cuda
        factor = model.basis.factor(model.covariance, model.jitter, robust)
        if factor.failed:
            return CAUSES[0]
        if self.natural is not None and self.natural.whitened(factor).failed.any():
            return CAUSES[1]
        return None

    def _natural_step(self, bound: Bound, grad_v: Tensor, grad_S: Tensor) -> None:
        assert self.natural is not None
        guarded = not self.model.likelihood.log_concave
        self.natural.step(bound.factor, bound.q, grad_v, grad_S, self.rates[1], guarded)

    def _set_gradients(self, grads: Sequence[Tensor]) -> None:
        for parameter, grad in zip(self._moved, grads, strict=True):
            parameter.grad = grad

    def _clip(self) -> None:
        if self.config.clip_norm is not None and self.parameters:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm * self.num_rows)

    def _move_parameters(self) -> None:
        if self.adam is not None:
            self.adam.step()

    def _move_residual(self) -> None:
        if self.a_gamma is None:
            return
        if self.residual_adam is not None:
            self.residual_adam.step(counted=True)
            return
        assert self.a_gamma.grad is not None
        a, grad, rate = self.a_gamma, self.a_gamma.grad, self.rates[2].to(self.a_gamma.dtype)
        if self.scale is not None:
            after = diagonal_rule(a, grad, self.scale, rate)
        else:
            assert self.projected is not None
            after = exact_rule(a, grad, self.projected, rate, self.model.jitter)
        with torch.no_grad():
            self.a_gamma.copy_(after)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a step changes, by name; the order and names are those of a file."""
        found = {f"model.{name}": value.data for name, value in self.model.named_parameters()}
        # Of the buffers only q(f_β) moves; GPyTorch's hold the bounds of its constraints.
        found |= {f"basis.{name}": value for name, value in self.model.basis.named_buffers()}
        for label, optimizer in (("adam", self.adam), ("residual", self.residual_adam)):
            if optimizer is None:
                continue
            for k, state in enumerate(optimizer.state.values()):
                for key, value in state.items():
                    found[f"{label}.{k}.{key}"] = value
        if self.scale is not None:
            found["scale"] = self.scale
        if self.projected is not None:
            found["projected"] = self.projected
        return found

    def snapshot(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.tensors().items()}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Writes a snapshot back in place, so that a captured step goes on from it."""
        for name, value in self.tensors().items():
            value.copy_(state[name])
        self.watch.start_over()
