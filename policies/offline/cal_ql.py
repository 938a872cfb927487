"""Cal-QL: CQL whose pushed-down values never fall below the return that the data itself reached."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.cql import Cql
from robot_rl.types import IOSpec


class CalQl(Cql):
    """Calibrated Q-learning, for offline training that is followed by online fine-tuning.

    In the conservative term the values of the policy's actions (not of the uniform ones) are replaced by
    max(Q, return-to-go of the logged step), so that the values keep the scale of returns and fine-tuning does not begin
    by unlearning. Rows without "return_to_go" (online ones, or a `Mix` with them) fall back to CQL, as CORL does.

    Source: Nakamoto et al., Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning, equation 5.1;
    CORL cal_ql.py.
    """

    method = "Cal-QL"
    reads = ("return_to_go",)

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (256, 256),
        critic_hidden: tuple[int, ...] | None = (256, 256, 256, 256),
        alpha_cql: float = 5.0,
        samples: int = 10,
        temperature: float = 1.0,
        importance: bool = True,
        lagrange_gap: float | None = None,
        clip_low: float = -math.inf,
        clip_high: float = math.inf,
        max_target_backup: bool = True,
        backup_entropy: bool = False,
        bc_steps: int = 0,
        lr: float = 3e-4,
        actor_lr: float = 1e-4,
        tau: float = 0.005,
        normalize: bool = False,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`; all arguments are those of `Cql` with the defaults of AntMaze.

        Args:
            io: one vector observation "state".
            seed: of initial weights and samples.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update.
            hidden: widths of the actor.
            critic_hidden: widths of the critics.
            alpha_cql: weight of the conservative term; 5 AntMaze, 1 Adroit.
            samples: actions of each of the three kinds per state.
            temperature: of the logsumexp.
            importance: subtract the log-density of each sampled action.
            lagrange_gap: as in `Cql`; 0.8 AntMaze.
            clip_low: as in `Cql`.
            clip_high: as in `Cql`.
            max_target_backup: as in `Cql`.
            backup_entropy: as in `Cql`.
            bc_steps: as in `Cql`.
            lr: step size of the critics.
            actor_lr: step size of actor and temperature.
            tau: Polyak rate of the target critics.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            hidden=hidden,
            critic_hidden=critic_hidden,
            alpha_cql=alpha_cql,
            samples=samples,
            temperature=temperature,
            importance=importance,
            lagrange_gap=lagrange_gap,
            clip_low=clip_low,
            clip_high=clip_high,
            max_target_backup=max_target_backup,
            backup_entropy=backup_entropy,
            bc_steps=bc_steps,
            lr=lr,
            actor_lr=actor_lr,
            tau=tau,
            normalize=normalize,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
        )

    def _floor(self, q: Tensor, rows: Rows) -> tuple[Tensor, Tensor | None]:
        if "return_to_go" not in rows.extras:
            return q, None
        floor = rows.extras["return_to_go"][0]
        return torch.maximum(q, floor), (q >= floor).to(q.dtype)
