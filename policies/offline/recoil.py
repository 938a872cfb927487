"""ReCOIL: imitation from one expert episode beside any other data, without rewards and without a discriminator."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from robot_rl.policies.nets.rows import Rows, split
from robot_rl.policies.offline.iql import Iql
from robot_rl.types import IOSpec, LogFacts, Metrics, Transitions


class Recoil(Iql):
    """Dual imitation with the chi^2 divergence.

    Batches are half expert, half other data (`robot-rl offline data=others.hdf5 expert=demo.hdf5`); rewards are not
    read. With mix = expert and others in equal parts, and V a network of its own (an expectile of Q over the mix):

    L_Q = -beta mean_{expert} Q(s, a) + 1/4 mean_mix (discount V(s') - Q(s, a))^2

    whose minimiser is Q = discount V + 2 beta p_expert / p_mix: an implied reward of up to 2 on what experts do. The
    policy copies the mix weighted by exp(3 (Q - V)).

    Source: Sikchi et al., Dual RL: Unification and New Methods, section 4 (ReCOIL), recalled; the loss above is derived
    here from the chi^2 conjugate and the expert's flow identity (evaluation starts where the expert started).
    """

    method = "ReCOIL"
    needs_expert = True
    rewardless = True

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 512,
        hidden: tuple[int, ...] = (256, 256),
        mixture: float = 0.5,
        expectile: float = 0.8,
        beta: float = 3.0,
        weight_clip: float = 100.0,
        q_limit: float = 200.0,
        lr: float = 3e-4,
        tau: float = 0.005,
        actor_decay: int = 1_000_000,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update, half of them expert.
            hidden: widths of all networks.
            mixture: beta, the expert's share in the mixture.
            expectile: of the value loss.
            beta: inverse temperature of the policy's weights.
            weight_clip: upper bound of the weights.
            q_limit: targets are clipped to this size.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine; 0 keeps it.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if not 0.0 < mixture < 1.0:
            raise ValueError(f"mixture is {mixture}, expected a number in (0, 1)")
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            hidden=hidden,
            expectile=expectile,
            beta=beta,
            weight_clip=weight_clip,
            lr=lr,
            tau=tau,
            actor_decay=actor_decay,
            normalize=normalize,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
        )
        self._mixture, self._limit = mixture, q_limit
        self._expert: Tensor = torch.zeros(0)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; values are of the implied reward, not of the data's."""
        super().prepare(facts)
        self._state.bound = self._limit

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of value, actor and critics; see `Iql.update`.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
            ValueError: the batches do not say which rows are the expert's.
        """
        batch = next(batches)
        if "source" not in batch.extras:
            raise ValueError(
                "ReCOIL needs expert=<log> beside data=<log>: batches carry extras 'source', 0 for the expert's rows"
            )
        expert = split(batch, 1, None).extras["source"] == 0
        self._expert = expert.to(batch.reward.dtype)
        return super().update(iter([batch]))

    def _target_of(self, rows: Rows, next_value: Tensor) -> Tensor:
        return (rows.discount * next_value).clamp_(-self._limit, self._limit)

    def _critic_step(self, x: Tensor, target: Tensor) -> Tensor:
        """Fill and apply the gradient of L_Q; (1, 2, B) squared error of the quarter term."""
        q = self.ensemble(self._critic.forward(x))
        diff = q - target[:, None]
        size = diff.shape[-1]
        share = self._expert / self._expert.sum(1, keepdim=True).clamp_min(1.0)
        d_q = diff * (0.5 / size) - self._mixture * share[:, None]
        self._critic.backward(d_q.reshape(-1, size, 1))
        self._critic_params.adam(self._lr)
        self._critic.refresh()
        return diff.square()
