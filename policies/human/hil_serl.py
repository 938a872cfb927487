"""HIL-SERL: soft actor-critic for the arm, a discrete critic for the gripper, human steps in both buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import SquashedSample
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.policies.online.sac import Sac
from robot_rl.types import Action, IOSpec, Metrics, Obs, Transitions
from robot_rl.types.options import Count, Mixing, Positive, Rate, Whole

CHOICES = (-1.0, 0.0, 1.0)
"""Gripper command of each choice: close, stay, open."""


class HilSerl(Sac):
    """Sample-efficient actor-critic with a grasp critic.

    The last action must be the gripper's. The other actions are learned by SAC (two LayerNorm critics, entropy target
    of the continuous actions alone). The gripper has three choices, valued by a double DQN with
    y_g = (r + penalty) + discount Q'_g(s', argmax Q_g(s')); the penalty for switching enters there and nowhere else,
    in every update. A gripper that stays as it is teaches "stay" and the command that it had already. Greedy:
    exploration comes from people.

    Source: Luo et al., Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement Learning, and its
    released code for the defaults. Where we differ: the entropy target leaves the gripper out; one owner per parameter
    instead of sums of separate Adam updates; "stay" keeps the last command of an absolute gripper.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.97,
        batch_size: Count = 256,
        hidden: tuple[Count, ...] = (256, 256),
        critics: Count = 2,
        utd: Count = 2,
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        init_alpha: Positive = 0.01,
        backup_entropy: bool = False,
        normalize_obs: bool = True,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks; options that are not listed are those of `Sac`.

        Args:
            io: interface; the name of the last action contains "grip".
            seed: of weights and noise.
            device: torch device.
            gamma: discount per step, part of every learner's signature.
            batch_size: rows per critic step.
            hidden: widths.
            critics: E; the minimum runs over all.
            utd: critic steps per update.
            lr: of everything.
            tau: of the targets.
            init_alpha: first temperature.
            backup_entropy: whether the target contains the entropy.
            normalize_obs: standardise the state.
            metrics_every: as in `Sac`.

        Raises:
            ValueError: the last action is no gripper, or the only one.
        """
        if io.action_dim < 2 or "grip" not in io.action_names[-1]:
            raise ValueError(
                f"the last of the actions {list(io.action_names)} is no gripper; HIL-SERL needs one (env=pick), "
                "policy=human/imitation_sac does not"
            )
        arm = replace(
            io,
            action_names=io.action_names[:-1],
            action_low=io.action_low[:-1],
            action_high=io.action_high[:-1],
            action_units=io.action_units[:-1],
        )
        super().__init__(
            arm,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            hidden=hidden,
            critics=critics,
            layer_norm=True,
            utd=utd,
            actor_reduce="mean",
            lr=lr,
            tau=tau,
            init_alpha=init_alpha,
            target_entropy="half",
            backup_entropy=backup_entropy,
            normalize_obs=normalize_obs,
            metrics_every=metrics_every,
        )
        shape = MlpShape(1, self._features, tuple(hidden), len(CHOICES), True, "grasp.")
        self._grasp_params = FlatParams(shape.shapes(), device=self._device)
        shape.initialise(self._grasp_params, self._generator)
        self._grasp_target_params = self._grasp_params.twin()
        self._grasp = build_mlp(shape, self._grasp_params)
        self._grasp_target = build_mlp(shape, self._grasp_target_params)
        self._grasp_metrics: Metrics = {}
        self.policy: Any = HilSerlPolicy(io, self.policy, self._grasp_of, self._grasp_params)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """As `Sac.update`; adds train/grasp_loss and train/grasp_q."""
        return {**super().update(batches), **self._grasp_metrics}

    def _critic_step(
        self, batch: Transitions, both: bool, metrics: dict[str, Tensor] | None
    ) -> tuple[Tensor, SquashedSample | None]:
        self._grasp_step(batch)
        return super()._critic_step(replace(batch, action=batch.action[:, :-1]), both, metrics)

    @torch.no_grad()
    def _grasp_step(self, batch: Transitions) -> None:
        """One step of the grasp critic, at every critic step, on the same batch."""
        here, there = self._look(batch.obs), self._look(batch.next_obs)
        best = self._grasp.forward(there)[0].argmax(1, keepdim=True)
        after = self._grasp_target.forward(there)[0].gather(1, best)[:, 0]
        penalty = batch.extras.get("grip_penalty")
        reward = batch.reward if penalty is None else batch.reward + penalty
        target = reward + batch.discount * after
        chosen = choices_of(batch)
        values = self._grasp.forward(here)[0]
        error = (values - target[:, None]) * chosen
        grad = (2.0 / len(error)) * error
        self._grasp.backward(grad[None])
        self._grasp_params.adam(self._lr)
        self._grasp_target_params.blend(self._grasp_params, self.tau)
        self._grasp.refresh()
        self._grasp_target.refresh()
        self._grasp_metrics = {
            "train/grasp_loss": float(error.square().sum() / chosen.sum()),
            "train/grasp_q": float(target.mean()),
        }

    def _look(self, obs: Obs) -> Tensor:
        parts = []
        if self._encoder is not None:
            parts.append(self._encoder({key: obs[key] for key in self._encoder.shape.cameras}))
        if "state" in obs:
            parts.append(obs["state"] if self._norm is None else self._norm(obs["state"]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @torch.no_grad()
    def _grasp_of(self, obs: Obs) -> Tensor:
        """(B,) best choice."""
        tensors = {key: torch.as_tensor(value).to(self._device) for key, value in obs.items()}
        return self._grasp.forward(self._look(tensors))[0].argmax(1)

    def state_dict(self) -> dict[str, Any]:
        """As `Sac`, with the grasp critic and its target."""
        grasp = {"params": self._grasp_params.state_dict(), "target": self._grasp_target_params.state_dict()}
        return {**super().state_dict(), "grasp": grasp}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self._grasp_params.load_state_dict(state["grasp"]["params"])
        self._grasp_target_params.load_state_dict(state["grasp"]["target"])
        super().load_state_dict(state)
        self._grasp.refresh()
        self._grasp_target.refresh()


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
        self._held = np.ones(1, np.float32)

    def reset(self, rows: Any = None) -> None:
        """The gripper counts as open again in these rows; None means all."""
        if rows is None:
            self._held = np.ones(1, np.float32)
        else:
            self._held[np.asarray(rows)] = 1.0

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) actions in the kind of the observation."""
        arm = self._arm.act(obs, deterministic=deterministic).value
        choice = self._grasp(obs).cpu().numpy()
        if len(self._held) != len(choice):
            self._held = np.ones(len(choice), np.float32)
        self._held = np.where(choice == 1, self._held, choice - 1.0).astype(np.float32)
        if isinstance(arm, Tensor):
            return Action(torch.cat([arm, torch.as_tensor(self._held, device=arm.device)[:, None]], 1))
        return Action(np.concatenate([arm, self._held[:, None]], 1))

    def executed(self, action: np.ndarray) -> None:
        """What (B, A) was really done, by whomever: "stay" keeps that."""
        grip = np.asarray(action, np.float32)[:, -1]
        self._held = np.where(np.abs(grip) > 0.5, np.sign(grip), self._held).astype(np.float32)

    def follow_encoder(self, params: FlatParams) -> None:
        """As the arm's policy."""
        self._arm.follow_encoder(params)

    def state_dict(self) -> dict[str, Any]:
        """Weights of the arm's policy and of the grasp critic."""
        held = torch.from_numpy(self._held.copy())
        return {**self._arm.state_dict(), "held": held, "grasp": self._params.flat.detach().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy in place."""
        self._held = np.array(state["held"], np.float32)
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
