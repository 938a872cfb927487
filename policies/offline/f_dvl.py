"""f-DVL: implicit Q-learning with the value loss of dual RL, which never exponentiates."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.iql import Iql
from robot_rl.types import IOSpec

DIVERGENCES = ("chi2", "tv")


def dual_loss(diff: Tensor, weight: float, divergence: str, variant: str = "exact") -> tuple[Tensor, Tensor]:
    """(1 - weight) V + weight f*(Q - V) without the constant Q, and its derivative by V.

    With x = Q - V: total variation f*(x) = max(x, 0); Pearson chi^2 f*(x) = x + x^2 / 4 for x >= -2, else -1, which is
    sup over w >= 0 of w x - (w - 1)^2. Towards weight 1 the minimiser leans towards the maximum.

    Args:
        diff: (...) Q - V.
        weight: lambda in (0, 1).
        divergence: "chi2" or "tv".
        variant: "exact", or "code": what the public code computes for chi^2, max(x + x^2 / 4, 0), whose gradient is
            that of the first term alone for -4 < x < 0 and grows again below.

    Returns:
        The loss with V written as -x (both up to a constant in Q), and its derivative by V, both (...).

    Source: Sikchi et al., Dual RL: Unification and New Methods, section 5 (f-DVL); code hari-sikchi/DVL.
    """
    if divergence == "tv":
        conjugate, slope = diff.clamp(min=0.0), (diff > 0).to(diff.dtype)
    elif variant == "code":
        inner = diff + diff.square() / 4
        conjugate, slope = inner.clamp(min=0.0), torch.where(inner > 0, 1 + diff / 2, torch.zeros_like(diff))
    else:
        conjugate = torch.where(diff >= -2, diff + diff.square() / 4, -torch.ones_like(diff))
        slope = (1 + diff / 2).clamp(min=0.0)
    return weight * conjugate - (1 - weight) * diff, (1 - weight) - weight * slope


class FDvl(Iql):
    """Dual V-learning with an f-divergence.

    Source: Sikchi et al., Dual RL: Unification and New Methods for Reinforcement and Imitation Learning; Huber loss of
    the critics and policy of its code, which is XQL's. The weight 0.7 for locomotion is ours (the code's commands use
    another parametrisation there), 0.8 for AntMaze is theirs.
    """

    method = "f-DVL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 1024,
        seeds: int = 1,
        hidden: tuple[int, ...] = (256, 256),
        divergence: str = "chi2",
        weight: float = 0.7,
        variant: str = "exact",
        random_actions: int = 0,
        beta: float = 3.0,
        weight_clip: float = 100.0,
        lr: float = 3e-4,
        tau: float = 0.005,
        actor_decay: int = 1_000_000,
        order: str = "jax",
        log_std_min: float = -5.0,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
        value_norm: bool = True,
        huber: float | None = 20.0,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update of one seed.
            seeds: how many independent runs are trained side by side.
            hidden: widths of all networks.
            divergence: "chi2" (locomotion) or "tv" (AntMaze).
            weight: lambda; 0.7 locomotion, 0.8 AntMaze.
            variant: "exact" conjugate or the public "code".
            random_actions: uniform actions per row that join the value batch.
            beta: inverse temperature of the policy's weights; 3 locomotion, 10 AntMaze.
            weight_clip: upper bound of the weights.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine; 0 keeps it.
            order: as in `Iql`.
            log_std_min: lower limit of the log standard deviation.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.
            value_norm: LayerNorm in the value network.
            huber: threshold of the critics' Huber loss, or None.

        Raises:
            ValueError: an option outside its range.
        """
        if divergence not in DIVERGENCES or variant not in ("exact", "code") or not 0.0 < weight < 1.0:
            raise ValueError(
                f"divergence is '{divergence}', variant '{variant}' and weight {weight}; expected one of "
                f"{', '.join(DIVERGENCES)}, 'exact' or 'code', and a number in (0, 1)"
            )
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            seeds=seeds,
            hidden=hidden,
            beta=beta,
            weight_clip=weight_clip,
            lr=lr,
            tau=tau,
            actor_decay=actor_decay,
            order=order,
            log_std_min=log_std_min,
            normalize=normalize,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
            value_norm=value_norm,
            huber=huber,
        )
        self._weight, self._divergence, self._variant, self._random = weight, divergence, variant, random_actions

    def _value_rows(self, rows: Rows, x: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return self.with_random_actions(rows, q, self._random)

    def _value_loss(self, q: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return dual_loss(q - value, self._weight, self._divergence, self._variant)
