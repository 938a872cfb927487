"""RLIF: learn from when a person takes over, without any task reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from robot_rl.policies.human.imitation_sac import ImitationSac
from robot_rl.policies.nets.imitation import CLONE_EDGE, SWITCH_WEIGHT
from robot_rl.types import IOSpec, Metrics, Transitions
from robot_rl.types.options import Count, NotNegative, Positive, Rate, Whole


class Rlif(ImitationSac):
    """Reward -1 for the policy's step before a takeover, 0 for all else; then RLPD.

    The person need not drive well, only know when it goes wrong: their actions are never a target unless `bc_steps` or
    `il_weight` says so. The reward is made here from what was recorded, so the same log can train with any weights.

    Source: Luo et al., RLIF: Interactive Imitation Learning as Reinforcement Learning. Where we differ: every step of
    an intervention is stored (the released code keeps the last one of each), as is the last step of an episode, and a
    task reward may be mixed in.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.97,
        w_task: float = 0.0,
        w_rlif: float = 1.0,
        terminal_on_takeover: bool = False,
        batch_size: Count = 256,
        hidden: tuple[Count, ...] = (256, 256),
        critics: Count = 4,
        subset: Count | None = 2,
        utd: Count = 2,
        lr: Rate = 3e-4,
        init_alpha: Positive = 0.01,
        bc_steps: Whole = 0,
        il_weight: NotNegative = 0.0,
        il_min_std: NotNegative = 0.1,
        il_edge: NotNegative = CLONE_EDGE,
        il_switch_weight: NotNegative = SWITCH_WEIGHT,
        acting_rate: float = 1.0,
        normalize_obs: bool = True,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks; options that are not listed are those of `ImitationSac`.

        Args:
            io: observation "state"; images go through the encoder.
            seed: of weights and noise.
            device: torch device.
            gamma: discount per step, part of every learner's signature.
            w_task: weight of the task reward.
            w_rlif: weight of the reward from interventions.
            terminal_on_takeover: the step before a takeover does not bootstrap.
            batch_size: rows per critic step.
            hidden: widths.
            critics: E.
            subset: critics in the target's minimum.
            utd: critic steps per update.
            lr: of everything.
            init_alpha: first temperature.
            bc_steps: behaviour cloning before the first own step; 0 as published.
            il_weight: imitation beside the RL loss; 0 as published.
            il_min_std: see `ImitationSac`.
            il_edge: see `ImitationSac`.
            il_switch_weight: see `ImitationSac`.
            acting_rate: see `ImitationSac`; 1 as published.
            normalize_obs: standardise the state.
            metrics_every: as in `Sac`.
        """
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            hidden=hidden,
            critics=critics,
            subset=subset,
            utd=utd,
            lr=lr,
            init_alpha=init_alpha,
            bc_steps=bc_steps,
            il_weight=il_weight,
            il_min_std=il_min_std,
            il_edge=il_edge,
            il_switch_weight=il_switch_weight,
            acting_rate=acting_rate,
            normalize_obs=normalize_obs,
            metrics_every=metrics_every,
        )
        self._w_task, self._w_rlif, self._terminal = w_task, w_rlif, terminal_on_takeover

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """As `Sac.update`, on relabelled rows.

        Raises:
            KeyError: the batches have no extras "reward_task" and "reward_rlif".
        """
        return super().update(map(self.relabel, batches))

    def relabel(self, batch: Transitions) -> Transitions:
        """The batch with r = w_task r_task + w_rlif r_rlif."""
        taken = batch.extras["reward_rlif"]
        reward = self._w_task * batch.extras["reward_task"] + self._w_rlif * taken
        discount = batch.discount * (taken == 0) if self._terminal else batch.discount
        return replace(batch, reward=reward, discount=discount)
