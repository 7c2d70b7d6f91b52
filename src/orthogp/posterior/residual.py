"""The three rules for a_γ: exact, diagonal, and Adam with a scaled step.

Each has a step size of its own: the exact rule diverges with that of q(f_β).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.kernel.covariance import Covariance
from orthogp.linalg import factorise_robustly

DIAGONAL_CHUNK = 2**24


def projected_covariance(
    covariance: Covariance,
    beta: Float[Tensor, "b d"],
    gamma: Float[Tensor, "g d"],
    R: Float[Tensor, "b b"],
) -> Float[Tensor, "g g"]:
    """K_γ⊥β = K_γ − K_γβ K_β⁻¹ K_βγ, for small γ: O(g²(g + b))."""
    w = R @ covariance.block(beta.to(R.dtype), gamma.to(R.dtype))
    K_g = covariance.block(gamma.to(R.dtype), gamma.to(R.dtype))
    return K_g - w.mT @ w


@torch.no_grad()
def projected_diagonal(
    covariance: Covariance,
    beta: Float[Tensor, "b d"],
    gamma: Float[Tensor, "g d"],
    R: Float[Tensor, "b b"],
) -> Float[Tensor, " g"]:
    """D = diag K_γ⊥β in chunks, O(b² g): refreshed now and then, never in the graph."""
    height = max(1, DIAGONAL_CHUNK // max(1, beta.shape[0]))
    R = R.to(gamma.dtype)
    pieces = [
        covariance.diagonal(part) - (R @ covariance.block(beta, part)).square().sum(0)
        for part in gamma.split(height)
    ]
    D = torch.cat(pieces) if pieces else gamma.new_zeros(0)
    return D.clamp_min(0.0)


@torch.no_grad()
def exact_rule(
    a_gamma: Float[Tensor, "c g"],
    grad: Float[Tensor, "c g"],
    K_perp: Float[Tensor, "g g"],
    step_size: float | Float[Tensor, ""],
    jitter: float,
) -> Float[Tensor, "c g"]:
    """a_γ − τ K_γ⊥β⁻¹ ∇ [OD18, eq. 16a], O(g³)."""
    R = factorise_robustly(K_perp, jitter).R.to(grad.dtype)
    return a_gamma - step_size * grad @ R.mT @ R


@torch.no_grad()
def diagonal_rule(
    a_gamma: Float[Tensor, "c g"],
    grad: Float[Tensor, "c g"],
    scale: Float[Tensor, " g"],
    step_size: float | Float[Tensor, ""],
) -> Float[Tensor, "c g"]:
    """a_γ − τ ∇ / scale with scale = D + ε [OD18, eq. 17]."""
    return a_gamma - step_size * grad / scale


class ScaledAdam:
    """Adam on ã = scale · a with scale = D + ε: a step of lr / (D_j + ε) on a_j.

    The state is a itself and the moments are those of its own gradient, so that refreshing D
    (`set_scale`) moves neither the model nor the moments. Every quantity stays on the device.
    """

    def __init__(
        self,
        a_gamma: torch.nn.Parameter,
        scale: Float[Tensor, " g"],
        learning_rate: float | Float[Tensor, ""] = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        self.a_gamma, self.learning_rate, self.betas, self.eps = a_gamma, learning_rate, betas, eps
        self._betas = torch.tensor(betas, dtype=torch.float64, device=a_gamma.device)
        # Of the step under way: lr / (1 − β₁ᵗ), and what divides it, linear in the root of the
        # mean square.
        self._rate = a_gamma.new_zeros(())
        self._slope, self._least = (torch.zeros_like(a_gamma[0]) for _ in range(2))
        own = {
            "step": torch.zeros((), dtype=torch.float64, device=a_gamma.device),
            "exp_avg": torch.zeros_like(a_gamma),
            "exp_avg_sq": torch.zeros_like(a_gamma),
            "scale": torch.empty_like(a_gamma[0]),
        }
        self.state = {a_gamma: own}
        self.set_scale(scale)

    def set_scale(self, scale: Float[Tensor, " g"]) -> None:
        """Takes a fresh D + ε."""
        own = self.state[self.a_gamma]["scale"]
        if scale.shape != own.shape:
            raise ConfigurationError(
                f"the scale has {scale.shape[0]} entries for {own.shape[0]} residual points"
            )
        own.copy_(scale)

    @torch.no_grad()
    def count(self) -> None:
        """Counts a step; its gradient may be computed later."""
        state = self.state[self.a_gamma]
        # In float64: 1 − 0.999ᵗ in float32 is off by 1e-4 at the first step.
        first, second = 1.0 - self._betas ** state["step"].add_(1.0)
        self._rate.copy_(self.learning_rate / first)
        # ∂ℒ/∂ã = ∂ℒ/∂a / D, so Adam's eps on ã is eps · D on a.
        scale = state["scale"]
        torch.mul(scale, second.rsqrt().to(scale.dtype), out=self._slope)
        torch.mul(scale, scale, out=self._least).mul_(self.eps)

    @torch.no_grad()
    def step(self, counted: bool = False) -> None:
        """Moves a_γ by its gradient; `counted` says that `count` was called."""
        if not counted:
            self.count()
        a, state, (first, second) = self.a_gamma, self.state[self.a_gamma], self.betas
        assert a.grad is not None
        mean = state["exp_avg"].lerp_(a.grad, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(a.grad, a.grad, value=1 - second)
        spread = torch.addcmul(self._least, square.sqrt(), self._slope)
        a.addcdiv_(self._rate * mean, spread, value=-1.0)
