"""The training step on a CUDA device: the same computation, with what can run at once overlapped.

The mathematics is that of `Step` and `VariationalGP.bound`. Here is only its order: which pieces
run in streams of their own, what waits for what, and the capture of all of it as one CUDA graph.
On a CPU every piece runs where it stands, and the outcome is that of `Step`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orthogp.execution.cuda_streams import (
    SideStreams,
    gradient_ready_event,
    high_priority_stream,
    record,
    recorded_event,
)
from orthogp.likelihoods import Conditional
from orthogp.linalg import Factor, factorise
from orthogp.model import Bound, VariationalGP
from orthogp.posterior import NaturalGaussian, Projection, kl_divergence, marginals
from orthogp.training.step import Step

WARMUP_STEPS = 3
# From so many points on one factorisation fills a device. That of K_β, which more waits for, then
# goes before that of q's precision.
LARGE_FACTORISATION = 768


@dataclass(frozen=True)
class OverlappedBound:
    """A bound, and the factor of q's precision that it started from, where it did.

    `coefficients_ready` occurs when nothing reads the parameters of q any more.
    """

    bound: Bound
    precision_factor: Factor | None
    coefficients_ready: torch.cuda.Event | None


def overlapped_bound(
    model: VariationalGP,
    x: Tensor,
    y: Tensor,
    num_rows: int,
    columns: Tensor | None = None,
    weight: Tensor | None = None,
    batch_rows: int | None = None,
) -> OverlappedBound:
    """`VariationalGP.bound` with its pieces in streams of their own."""
    model.require_inputs(x)
    basis, covariance, device = model.basis, model.covariance, x.device
    q_beta = getattr(basis, "q", None)
    natural = q_beta if isinstance(q_beta, NaturalGaussian) else None
    large = x.is_cuda and len(basis.beta) >= LARGE_FACTORISATION
    with covariance.parameters_read_once(x):
        # GPyTorch's own kernels read their parameters block by block.
        streams = SideStreams(device, enabled=covariance.fused)
        expectation = streams.start(lambda: model.likelihood.expectation(y, x.dtype), y)
        kernel_parameters = covariance.shared_parameters()
        factorising = torch.cuda.Event() if large else None
        factor = streams.run(lambda: _factor_of_beta(model, factorising), *kernel_parameters)
        precision_factor = None
        if natural is not None:
            precision_factor = streams.start(
                natural.factorise_precision,
                low_priority=large,
                after=() if factorising is None else (factorising,),
            )
        p = basis.project(covariance, factor, x, columns)
        reads = x, p.beta, p.gamma, p.a_gamma, *kernel_parameters
        if p.shards is None:
            # Sums over processes stay in the current stream.
            streams.run(lambda: p.at_x, *reads)
            streams.run(lambda: p.at_points, *reads)
        _ = p.k, p.prior_variance
        streams.join()
        whiten = None
        if large:
            whiten = streams.start(lambda: p.w, p.k, factor.R, low_priority=True)
        residuals = _started_residuals(streams, p, kernel_parameters)
        if natural is not None and precision_factor is not None:
            with natural.using(precision_factor()):
                q = basis.coefficients(p)
        else:
            q = basis.coefficients(p)
        ready = recorded_event(device) if large else None
        divergence = streams.start(
            lambda: (residuals(), kl_divergence(p, q))[1], p.u, *kernel_parameters
        )
        if whiten is not None:
            whiten()
        mean, variance = marginals(p, q)
    expected = model.expected_log_prob(expectation(), x, mean, variance, weight)
    expected, kl = num_rows / (batch_rows or x.shape[0]) * expected, divergence()
    bound = Bound(expected - kl, expected, kl, q, factor)
    return OverlappedBound(bound, precision_factor and precision_factor(), ready)


def _factor_of_beta(model: VariationalGP, factorising: torch.cuda.Event | None) -> Factor:
    """`Basis.factor` in one attempt; the event `factorising` occurs when the
    factorisation itself begins."""
    K_b = model.basis.covariance_at_beta(model.covariance)
    if factorising is not None:
        record(factorising, K_b.device)
    return factorise(K_b, model.jitter, model.basis.beta.dtype)


def _started_residuals(
    streams: SideStreams, p: Projection, kernel_parameters: list[Tensor]
) -> Callable[[], Tensor | None]:
    if p.columns is None:
        return lambda: None
    reads = p.u, p.at_points[1], p.gamma_columns, p.beta
    return streams.start(lambda: p.residuals, *reads, *kernel_parameters)


class OverlappedStep(Step):
    """`Step` on a CUDA device: overlapped, and captured as a graph at the first call if it can be.

    On a CPU it serves tests alone.
    """

    _graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._graph is None and self.capturable:
            self.capture()
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def _run(self) -> None:
        x, y, *weight = self.batch
        overlapped = overlapped_bound(
            self.model, x, y, self.num_rows, self.columns, weight[0] if weight else None,
            self.batch_rows,
        )  # fmt: skip
        bound, alone = overlapped.bound, self.team.size == 1
        prior, streams = self._log_prior(), SideStreams(self.rates.device)
        # What a natural step waits for: there long before the last gradient.
        ready: list[torch.cuda.Event] = []
        natural, precision_factor = self.natural, overlapped.precision_factor
        if natural is not None and precision_factor is not None:
            free = overlapped.coefficients_ready
            moved = streams.run(
                lambda: _moved(natural, bound.factor, precision_factor),
                low_priority=True,
                after=() if free is None else (free,),
            )
            if alone and moved is not None:
                ready = [moved, gradient_ready_event(bound.q.v), gradient_ready_event(bound.q.S)]
        if alone:
            streams.run(lambda: self._note(bound, bound.value.detach(), prior), low_priority=True)
        value, grads = self._differentiated(bound, prior)
        if not ready:
            streams.join()
        if natural is not None:
            grad_v, grad_S, *grads = grads
            streams.run(
                lambda: self._natural_step(bound, grad_v, grad_S),
                low_priority=bool(ready),
                after=ready,
            )
        if ready:
            streams.join()
        if not alone:
            self._note(bound, value, prior)
        self._set_gradients(grads)
        streams.run(self._move_residual)
        self._clip()
        streams.run(lambda: self.watch.note_gradients(grads))
        self._move_parameters()
        streams.join()

    def capture(self) -> None:
        """Captures the step as a CUDA graph; the state afterwards is the state before."""
        before, device = self.snapshot(), self.rates.device
        with torch.cuda.device(device):
            stream = high_priority_stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(WARMUP_STEPS):
                    self._run()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may allocate and copy meanwhile, as they do who read ahead.
            mode = "thread_local"
            with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
                self._run()
        self._graph = graph
        self.restore(before)
        self.watch.first.fill_(torch.nan)

    @property
    def capturable(self) -> bool:
        # GPyTorch's own kernels, conditionals and priors compare tensors on the host.
        return (
            self.model.basis.beta.is_cuda
            and self.model.covariance.fused
            and not isinstance(self.model.likelihood, Conditional)
            and not self.priors
            and self.config.residual_rule != "exact"
        )


def _moved(
    natural: NaturalGaussian, factor: Factor, precision_factor: Factor
) -> torch.cuda.Event | None:
    """Expresses q by the current L; the event that it is done, on a CUDA device."""
    natural.move_to(factor, precision_factor)
    return recorded_event(factor.L.device) if factor.L.is_cuda else None
