"""EDAC: SAC-N with critics kept diverse, so that a few do the work of hundreds."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.policies.nets.batched_mlp import BatchedMlp
from robot_rl.policies.offline.sac_n import SacN
from robot_rl.types import IOSpec


def diversity_loss(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cosine between the critics' action gradients, and its derivative.

    Mean over the batch of sum_{i != j} u_i u_j / (N - 1) with unit vectors u = g / (|g| + eps); written as
    |s|^2 - sum |u_i|^2, s their sum: linear in N. By u_i it is 2 (s - u_i) / ((N - 1) B), which goes on through the
    length of g_i.

    Args:
        gradient: (N, B, A) gradients of Q_i(s, a) by the data's action, not normalised.

    Returns:
        () N for identical critics, 0 for orthogonal ones; (N, B, A) its derivative by `gradient`.

    Source: An et al., Uncertainty-Based Offline RL with Diversified Q-Ensemble, equation 5.
    """
    count, rows = gradient.shape[:2]
    norm = gradient.norm(dim=-1, keepdim=True)
    length = norm + 1e-10
    unit = gradient / length
    total = unit.sum(0)
    loss = (total.square().sum(-1) - unit.square().sum((0, 2))).mean() / max(count - 1, 1)
    d_unit = (total - unit) * (2.0 / (max(count - 1, 1) * rows))
    direction = gradient / norm.clamp_min(torch.finfo(norm.dtype).tiny)
    return loss, (d_unit - direction * (d_unit * unit).sum(-1, keepdim=True)) / length


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
        actor_decay: int = 0,
        clone_weight: float = 0.0,
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
            actor_decay: updates over which the actor's step size falls to 0 as a cosine (ours); 0: as published.
            clone_weight: of the squared distance to the log's action in the actor's loss, in units of mean |min Q|.
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
            actor_decay=actor_decay,
            clone_weight=clone_weight,
            tau=tau,
            init_alpha=init_alpha,
            normalize=normalize,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
        )
        self._eta = eta
        self._twice = BatchedMlp(self._critic.shape, self._critic_params, matmul=matmul)

    def _critic_step(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        if not self._eta:
            return super()._critic_step(x, target)
        self._twice.refresh()
        q = self._twice.forward(x)[..., 0]
        diff = q - target
        inputs = slice(self._size, None)
        diversity, d_slope = diversity_loss(self._twice.slopes(inputs))
        self._twice.backward_slopes((diff * (2.0 / len(target)))[..., None], d_slope.mul_(self._eta), inputs)
        return {
            "q": q.mean(),
            "q_std": q.std(0, correction=0).mean(),
            "critic_loss": diff.square().mean(1).sum(),
            "diversity": diversity,
        }
