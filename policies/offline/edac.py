"""EDAC: SAC-N with critics kept diverse, so that a few do the work of hundreds."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.policies.nets.mlp import AutogradMlp
from robot_rl.policies.offline.sac_n import SacN
from robot_rl.types import IOSpec


def diversity_loss(gradient: Tensor) -> Tensor:
    """Mean cosine between the critics' action gradients: mean over the batch of sum_{i != j} g_i g_j / (N - 1).

    Args:
        gradient: (N, B, A) gradients of Q_i(s, a) by the data's action, not normalised.

    Returns:
        () N for identical critics, 0 for orthogonal ones.

    Source: An et al., Uncertainty-Based Offline RL with Diversified Q-Ensemble, equation 5.
    """
    count = gradient.shape[0]
    unit = gradient / (gradient.norm(dim=-1, keepdim=True) + 1e-10)
    total = unit.sum(0).square().sum(-1) - unit.square().sum((0, 2))  # |sum g|^2 - sum |g|^2 = sum over i != j
    return total.mean() / max(count - 1, 1)


class Edac(SacN):
    """Ensemble-diversified actor-critic: SAC-N plus eta times the cosine between the critics' action gradients.

    Source: An et al., Uncertainty-Based Offline RL with Diversified Q-Ensemble, algorithm 1; CORL edac.py.
    """

    method = "EDAC"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (256, 256, 256),
        critics: int = 10,
        eta: float = 1.0,
        lr: float = 3e-4,
        tau: float = 0.005,
        init_alpha: float = 1.0,
        normalize: bool = False,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`; arguments as in `SacN`, and:

        Args:
            io: one vector observation "state".
            seed: of initial weights and samples.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update.
            hidden: widths of all networks.
            critics: N; 10 halfcheetah, walker2d, AntMaze and Maze2d, 50 hopper and Adroit, 20 pen.
            eta: weight of the diversity; 1 locomotion (5 medium-expert), 10 to 1000 pen, 200 Adroit, 0.1 Maze2d.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            init_alpha: temperature at the start.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: of all but the critics' own step, which needs second derivatives and goes through autograd.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if eta < 0 or (critics < 2 and eta > 0):
            raise ValueError(f"eta is {eta} with {critics} critics, expected eta >= 0 and at least two critics")
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            hidden=hidden,
            critics=critics,
            lr=lr,
            tau=tau,
            init_alpha=init_alpha,
            normalize=normalize,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
        )
        self._eta = eta
        self._twice = AutogradMlp(self._critic.shape, self._critic_params, matmul=matmul) if eta else None

    def _critic_step(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        if self._twice is None:
            return super()._critic_step(x, target)
        with torch.enable_grad():
            members = self.critics
            own = x.expand(members, *x.shape).clone().requires_grad_()  # each critic's own input: N gradients at once
            q = self._twice.compute(own)[..., 0]
            (slope,) = torch.autograd.grad(q.sum(), own, create_graph=True)
            fit = (q - target).square().mean(1).sum()
            diversity = diversity_loss(slope[..., self._size :])
            names = list(self._critic.shape.shapes())
            leaves = [self._critic_params.view[name] for name in names]
            # the output bias does not act on the slopes, hence allow_unused
            grads = torch.autograd.grad(fit + self._eta * diversity, leaves, allow_unused=True)
        for name, grad in zip(names, grads):
            view = self._critic_params.grad_view[name]
            view.zero_() if grad is None else view.copy_(grad)
        q = q.detach()
        return {
            "q": q.mean(),
            "q_std": q.std(0, correction=0).mean(),
            "critic_loss": fit.detach(),
            "diversity": diversity.detach(),
        }
