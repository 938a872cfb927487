"""One control step of a robot that a policy and a person drive together, and an episode of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, get_args, get_origin, get_type_hints

import numpy as np

from robot_rl.types import Obs


class Source(IntEnum):
    """Who drove a step; BLEND: policy and person mixed, while the person lets go."""

    POLICY = 0
    HUMAN = 1
    SCRIPTED = 2
    RESET = 3
    RECOVERY = 4
    HOLD = 5
    BLEND = 6


class EndReason(IntEnum):
    """Why an episode ended."""

    NONE = 0
    SUCCESS = 1
    FAILURE = 2
    TIMEOUT = 3
    HUMAN_STOP = 4
    SAFETY_STOP = 5
    FAULT = 6
    COMMS = 7
    RESET_FAILED = 8


class RewardSource(IntEnum):
    """Where a reward came from; NONE means that it is not known."""

    NONE = 0
    ENV = 1
    CLASSIFIER = 2
    HUMAN_KEY = 3
    VLM = 4


class Invalid(IntEnum):
    """Why a stored step is never sampled."""

    NONE = 0
    GAP = 1
    SOURCE = 2  # reset, recovery and hold steps
    AFTER_END = 3  # later than the step that a label ended the episode at
    FAULT = 4
    COMMS = 5
    CAMERA = 6
    NONFINITE = 7
    RECOVERED = 8
    REWARD = 9  # whether it was a success is not known: the classifier was late or failed
    GRIPPER = 10  # the gripper did not follow


@dataclass
class ControlStep:
    """What one control tick leaves behind. `obs` and `next_obs` are both explicit; neither is "the row beside it".

    Attributes:
        obs: observation acted on, arrays without a batch axis.
        next_obs: its true successor.
        action_policy: (A,) what the policy proposed, also while a person drives (shadow).
        action_human: (A,) device command in the policy's action space; zeros where `human_valid` is False.
        action_cmd: (A,) the one chosen to drive, before safety.
        action_exec: (A,) what the safety layer let through.
        source: who drove.
        t_obs: capture time of `obs` [ns, monotonic].
        t_cmd: when the command left [ns].
        t_next: capture time of `next_obs` [ns].
        cam_age_ms: age of the oldest image at t_obs; 0 without cameras.
        human_valid: whether `action_human` holds a device command.
        intv_start: first step of an intervention.
        intv_end: last step of one.
        intv_id: number of the intervention in the episode, -1 outside.
        intv_step: index inside it, -1 outside.
        deadman: enable signal.
        input_norm: largest absolute device axis after the dead zone.
        grip_action: what became of the gripper, the last one of several: 1 it was told to open, -1 to close, 0 it stays
            as it was told before, whoever drives and in whatever words.
        grip_penalty: cost of the real switches of all grippers, below 0 where there is one; never part of `reward`.
        reward: total.
        reward_task: task part.
        reward_rlif: part from interventions.
        reward_source: where the task part came from.
        reward_prob: raw probability of a classifier, nan without one.
        terminated: a true end.
        truncated: a cut; never merged with `terminated`.
        discount: gamma^k (1 - terminated).
        policy_version: parameters that produced `action_policy`.
        policy_lag_ms: age of these parameters.
        safety_bits: limits that fired.
        clip_frac: |cmd - exec|_1 / |cmd|_1.
        sight: (W,) what the policy's encoder saw in `obs`, where it has one; not stored, it can be made again.
        next_sight: the same of `next_obs`.
        valid: False means stored but never sampled.
        invalid_reason: why.
    """

    obs: Obs
    next_obs: Obs
    action_policy: np.ndarray
    action_human: Annotated[np.ndarray, "float32"]
    action_cmd: Annotated[np.ndarray, "float32"]
    action_exec: np.ndarray
    source: Annotated[int, "uint8"] = Source.POLICY
    t_obs: Annotated[int, "int64"] = 0
    t_cmd: Annotated[int, "int64"] = 0
    t_next: Annotated[int, "int64"] = 0
    cam_age_ms: Annotated[float, "float32"] = 0.0
    human_valid: Annotated[bool, "bool"] = False
    intv_start: Annotated[bool, "bool"] = False
    intv_end: Annotated[bool, "bool"] = False
    intv_id: Annotated[int, "int32"] = -1
    intv_step: Annotated[int, "int32"] = -1
    deadman: Annotated[bool, "bool"] = False
    input_norm: Annotated[float, "float32"] = 0.0
    grip_action: Annotated[int, "int8"] = 0
    grip_penalty: Annotated[float, "float32"] = 0.0
    reward: float = 0.0
    reward_task: Annotated[float, "float32"] = 0.0
    reward_rlif: Annotated[float, "float32"] = 0.0
    reward_source: Annotated[int, "uint8"] = RewardSource.ENV
    reward_prob: Annotated[float, "float32"] = float("nan")
    terminated: bool = False
    truncated: bool = False
    discount: Annotated[float, "float32"] = 1.0
    policy_version: Annotated[int, "int64"] = 0
    policy_lag_ms: Annotated[float, "float32"] = 0.0
    safety_bits: Annotated[int, "uint32"] = 0
    clip_frac: Annotated[float, "float32"] = 0.0
    sight: np.ndarray | None = None
    next_sight: np.ndarray | None = None
    valid: Annotated[bool, "bool"] = True
    invalid_reason: Annotated[int, "uint8"] = Invalid.NONE

    @property
    def human(self) -> bool:
        """Whether a person chose the action."""
        return self.source == Source.HUMAN


COLUMNS: dict[str, str] = {
    name: get_args(kind)[1]
    for name, kind in get_type_hints(ControlStep, include_extras=True).items()
    if get_origin(kind) is Annotated
}
"""Per-step columns of an episode on disk (`Episode.meta["columns"]`) -> dtype; the rest is in `Episode` itself."""


@dataclass(frozen=True, order=True)
class Key:
    """Name of one step: unique and monotone per actor; the learner drops what it has already."""

    run_id: int
    actor_id: int
    episode_id: int
    step: int = 0
