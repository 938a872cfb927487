"""HIL-SERL: soft actor-critic for the arm, a discrete critic for a gripper, human steps in both buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import StrictBool
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner import TdRows
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.policies.online.sac import SoftActorCritic, SoftOptions
from robot_rl.types import Action, Array, IOSpec, Metrics, Obs, PolicyParts, StateDict, Transitions
from robot_rl.types.options import Count, Number, Positive

CHOICES = (-1.0, 0.0, 1.0)
"""Gripper command of each choice: close, stay, open."""


class HilSerlOptions(SoftOptions):
    """Of HIL-SERL: those of SAC with the released code's defaults."""

    layer_norm: bool = True
    """LayerNorm in the critics."""
    utd: Count = 2
    """Critic steps per update, each on a batch of its own."""
    actor_reduce: Literal["min", "mean"] = "mean"
    """Over the critics in the actor's loss."""
    init_alpha: Positive = 0.01
    """Temperature at the start."""
    target_entropy: Number | Literal["auto", "half"] = "half"
    """Of the continuous actions alone: a number, auto (minus their number) or half of that."""
    backup_entropy: bool = False
    """Whether the target contains the entropy term."""
    normalize_obs: StrictBool | Literal["auto"] = True
    """Standardise "state" with running moments."""


class HilSerl(SoftActorCritic[HilSerlOptions]):
    """Sample-efficient actor-critic with a grasp critic.

    A last action whose name contains "grip" is the gripper's; without one there is no grasp critic. The other actions
    are learned by SAC (two LayerNorm critics, entropy target of the continuous actions alone). The gripper has three
    choices, valued by a double DQN with y_g = (r + penalty) + discount Q'_g(s', argmax Q_g(s')); the penalty for
    switching enters there and nowhere else, in every update. A gripper that stays as it is teaches "stay" and the
    command that it had already. Greedy: exploration comes from people.

    Metrics: those of SAC; with a gripper train/grasp_loss and train/grasp_q.

    Source: Luo et al., Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement Learning, and its
    released code for the defaults. Where we differ: the entropy target leaves the gripper out; one owner per parameter
    instead of sums of separate Adam updates; "stay" keeps the last command of an absolute gripper.
    """

    def __init__(self, options: HilSerlOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the networks for `io`.

        Args:
            options: of the method.
            io: interface.
            seed: of weights and noise.
            device: torch device.
        """
        self._whole, self._grips = io, io.action_dim > 1 and "grip" in io.action_names[-1]
        end = io.action_dim - self._grips
        arm = replace(
            io,
            action_names=io.action_names[:end],
            action_low=io.action_low[:end],
            action_high=io.action_high[:end],
            action_units=io.action_units[:end],
        )
        super().__init__(options, arm, seed=seed, device=device)

    def build(self) -> None:
        """SAC's networks for the arm, and a critic of the gripper's choices with its target."""
        super().build()
        self._grasp_metrics: Metrics = {}
        if self._grips:
            self.grasp = self.net("grasp", self.features, len(CHOICES), layer_norm=True)
            self.grasp_target = self.target_copy("grasp_target", self.grasp)
            self.policy = HilSerlPolicy(self._whole.acting, self.policy, self._grasp_of, self.grasp.params)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """As SAC's; adds train/grasp_loss and train/grasp_q."""
        return {**super().update(batches), **self._grasp_metrics}

    def step_critics(self, b: TdRows) -> dict[str, Tensor]:
        """One step of the grasp critic and one of the arm's critics, on the same batch."""
        if self._grips:
            self.step_grasp(b)
            b = replace(b, action=b.action[:, :-1])
        return super().step_critics(b)

    def step_grasp(self, b: TdRows) -> None:
        """Double DQN on every choice that would have done what was done."""
        penalty, chosen = b.batch.extras.get("grip_penalty"), choices_of(b.batch)
        with torch.no_grad():
            best = self.grasp(b.next_state).argmax(1, keepdim=True)
            after = self.grasp_target(b.next_state).gather(1, best)[:, 0]
            target = (b.reward if penalty is None else b.reward + penalty) + b.discount * after
        error = ((self.grasp(b.state.detach()) - target[:, None]).square() * chosen).sum(1)
        self.grasp.step(mean_rows(error))
        self.grasp_target.soft_update(self.grasp, self.o.tau)
        loss = error.detach().sum() / chosen.sum()
        self._grasp_metrics = {"train/grasp_loss": float(loss), "train/grasp_q": float(target.mean())}

    @torch.no_grad()
    def _grasp_of(self, obs: Obs) -> Tensor:
        """(B,) best choice."""
        tensors = {key: torch.as_tensor(value).to(self.generator.device) for key, value in obs.items()}
        return self.grasp(self.see(tensors, self.encoders)).argmax(1)


class HilSerlPolicy:
    """Arm from the Gaussian, gripper from the grasp critic; "stay" keeps the last command, open at the start.

    Args:
        io: the whole interface.
        arm: policy of all actions but the last.
        grasp: observation -> (B,) choices.
        params: of the grasp critic, shared with the learner.
    """

    def __init__(self, io: IOSpec, arm: SquashedGaussianPolicy, grasp: Any, params: FlatParams) -> None:
        self.io, self._arm, self._grasp, self._params = io, arm, grasp, params
        self._held = self._before = np.ones(1, np.float32)  # the last command, and the one before the last act

    @property
    def parts(self) -> PolicyParts:
        """It hears what was done, which "stay" keeps, and the command can be put back."""
        return PolicyParts(executed=self.executed, save=self._save, restore=self._restore)

    def _save(self) -> StateDict:
        return {"held": torch.from_numpy(self._held.copy())}

    def _restore(self, state: StateDict) -> None:
        self._held = self._before = np.array(torch.as_tensor(state["held"]).cpu(), np.float32)

    def reset(self, rows: Array | None = None) -> None:
        """The gripper counts as open again in these rows; None means all."""
        if rows is None:
            self._held = np.ones(1, np.float32)
        else:
            self._held[np.asarray(rows)] = 1.0
        self._before = self._held

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) actions in the kind of the observation."""
        arm = self._arm.act(obs, deterministic=deterministic).value
        choice = self._grasp(obs).cpu().numpy()
        if len(self._held) != len(choice):
            self._held = np.ones(len(choice), np.float32)
        self._before = self._held
        self._held = np.where(choice == 1, self._held, choice - 1.0).astype(np.float32)
        if isinstance(arm, Tensor):
            return Action(torch.cat([arm, torch.as_tensor(self._held, device=arm.device)[:, None]], 1))
        return Action(np.concatenate([arm, self._held[:, None]], 1))

    def executed(self, action: np.ndarray) -> None:
        """What (B, A) was really done, by whomever: "stay" keeps the last of it that opened or closed."""
        grip = np.asarray(action, np.float32)[:, -1]
        self._held = np.where(np.abs(grip) > 0.5, np.sign(grip), self._before).astype(np.float32)

    def follow_encoder(self, params: FlatParams) -> None:
        """As the arm's policy."""
        self._arm.follow_encoder(params)

    def state_dict(self) -> StateDict:
        """Weights of the arm's policy and of the grasp critic."""
        held = torch.from_numpy(self._held.copy())
        return {**self._arm.state_dict(), "held": held, "grasp": self._params.flat.detach().clone()}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        self._held = self._before = np.array(torch.as_tensor(state["held"]).cpu(), np.float32)
        with torch.no_grad():
            self._params.flat.copy_(state["grasp"])
        self._arm.load_state_dict({key: value for key, value in state.items() if key not in ("held", "grasp")})


def choice_of(command: Tensor) -> Tensor:
    """(B,) gripper commands in [-1, 1] -> choice 0 close, 1 stay, 2 open."""
    return (command > 0.5).long() - (command < -0.5).long() + 1


def choices_of(batch: Transitions) -> Tensor:
    """(B, 3) 1 for every choice that would have done what was done in a row: close, stay, open.

    Extras "grip_action" say what became of the gripper. Where it stayed, "stay" and the command that it had already are
    one and the same, and both get the target; where it was switched, the switch alone. Without these extras the
    command decides.
    """
    told = choice_of(batch.action[:, -1])
    chosen = torch.nn.functional.one_hot(told, len(CHOICES)).to(batch.reward.dtype)
    if "grip_action" in batch.extras:
        chosen[:, 1] = torch.maximum(chosen[:, 1], (batch.extras["grip_action"] == 0).to(chosen.dtype))
    return chosen
