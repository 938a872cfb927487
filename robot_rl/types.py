"""Every contract of the project: dataclasses and Protocols, no logic beyond validation.

Letters, everywhere: B batch, N environments, T time, K turns, L window, H chunk, A action, E ensemble, C H W image.

Arrays: CPU simulators and robots hand over NumPy arrays, GPU simulators hand over tensors. Whatever acts on
observations (a `Policy`) takes either kind and returns the same kind; whatever learns (a `Learner`) gets tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, Union, runtime_checkable

import numpy as np
from torch import Tensor

Array = Union[np.ndarray, Tensor]  # noqa: UP007  (a runtime alias; `|` of two classes would do as well)
Obs = dict[str, Any]
"""Observation batch: "state": (B, S) float32; "image.<camera>": (B, H, W, 3) uint8; "instruction": tokens."""
Metrics = dict[str, float]

Data_contra = TypeVar("Data_contra", contravariant=True)


@dataclass(frozen=True)
class IOSpec:
    """The passport that travels from environment to buffer, policy, checkpoint and robot.

    Attributes:
        obs: key -> (shape without batch, dtype name), e.g. {"state": ((17,), "float32")}.
        action_names: one name per action dimension, length A.
        action_low: (A,) physical lower bounds, in `action_units`; the normalised action -1 maps to it.
        action_high: (A,) physical upper bounds; the normalised action +1 maps to it.
        action_units: (A,) "m", "rad", "rad/s", "N*m" or "1".
        control_hz: decisions per second.
        obs_names: names of the components of "state", or empty when unknown.
    """

    obs: dict[str, tuple[tuple[int, ...], str]]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action_units: tuple[str, ...]
    control_hz: float
    obs_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name)) for name in ("action_names", "action_low", "action_high", "action_units")
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"IOSpec action fields differ in length: {lengths}; expected one entry per action")

    @property
    def action_dim(self) -> int:
        """Number of action dimensions A."""
        return len(self.action_names)

    def differences(self, other: IOSpec) -> list[str]:
        """Every difference that keeps a policy made for `self` from running on `other`, one line each."""
        lines = []
        for key in sorted(self.obs.keys() - other.obs.keys()):
            lines.append(f"observation '{key}' {_spec(self.obs[key])} is missing there")
        for key in sorted(other.obs.keys() - self.obs.keys()):
            lines.append(f"observation '{key}' {_spec(other.obs[key])} is unknown here")
        for key in sorted(self.obs.keys() & other.obs.keys()):
            mine, theirs = _spec(self.obs[key]), _spec(other.obs[key])
            if mine != theirs:
                lines.append(f"observation '{key}' is {mine} here and {theirs} there")
        if self.obs_names and other.obs_names and self.obs_names != other.obs_names:
            pairs = enumerate(zip(self.obs_names, other.obs_names))
            first = next((f"{i}: '{a}' against '{b}'" for i, (a, b) in pairs if a != b), "different lengths")
            lines.append(f"components of 'state' differ, first at {first}")
        if len(self.action_names) != len(other.action_names):
            lines.append(f"action has {len(self.action_names)} dimensions here and {len(other.action_names)} there")
        else:
            for i, name in enumerate(self.action_names):
                if name != other.action_names[i]:
                    lines.append(f"action {i} is '{name}' here and '{other.action_names[i]}' there")
                if self.action_units[i] != other.action_units[i]:
                    units = f"{self.action_units[i]} here and {other.action_units[i]} there"
                    lines.append(f"action {i} ({name}) is in {units}")
                mine = (self.action_low[i], self.action_high[i])
                theirs = (other.action_low[i], other.action_high[i])
                if not np.allclose(mine, theirs, rtol=1e-6, atol=1e-9):
                    lines.append(f"action {i} ({name}) spans {list(mine)} here and {list(theirs)} there")
        if not np.isclose(self.control_hz, other.control_hz, rtol=1e-3):
            lines.append(f"control rate is {self.control_hz:g} Hz here and {other.control_hz:g} Hz there")
        return lines

    def check(self, other: IOSpec) -> None:
        """Prove that data or a policy made for `self` fits `other`.

        Raises:
            ValueError: listing every difference.
        """
        lines = self.differences(other)
        if lines:
            raise ValueError("the two interfaces do not fit:\n  - " + "\n  - ".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form, the content of a checkpoint's io.json."""
        return {
            "obs": {key: {"shape": list(shape), "dtype": dtype} for key, (shape, dtype) in self.obs.items()},
            "obs_names": list(self.obs_names),
            "action_names": list(self.action_names),
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
            "action_units": list(self.action_units),
            "control_hz": self.control_hz,
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> IOSpec:
        """Inverse of `to_dict`.

        Raises:
            ValueError: a field is missing.
        """
        try:
            return cls(
                obs={key: (tuple(item["shape"]), str(item["dtype"])) for key, item in raw["obs"].items()},
                obs_names=tuple(raw.get("obs_names", ())),
                action_names=tuple(raw["action_names"]),
                action_low=tuple(float(x) for x in raw["action_low"]),
                action_high=tuple(float(x) for x in raw["action_high"]),
                action_units=tuple(raw["action_units"]),
                control_hz=float(raw["control_hz"]),
            )
        except KeyError as error:
            raise ValueError(f"io.json lacks the field {error}; expected the form written by IOSpec.to_dict") from error


def _spec(item: tuple[tuple[int, ...], str]) -> str:
    return f"{item[1]}{list(item[0])}"


@dataclass(frozen=True)
class Step:
    """One transition of N environments, as `loops.stepping` hands it over (arrays of the environment's kind).

    Attributes:
        obs: (N, ...) observation in which the action was chosen.
        action: (N, A) executed action in [-1, 1].
        reward: (N,) float32.
        next_obs: (N, ...) true successor, never a reset observation.
        terminated: (N,) bool, true end: no bootstrap.
        truncated: (N,) bool, cut by a limit: bootstrap from `next_obs`.
        current: (N, ...) observation to act on next: `next_obs`, or the reset observation where an episode ended.
        valid: (N,) bool; False on rows that are no transition (the row after a next-step autoreset).
        intervened: (N,) bool: a human chose this action.
        proposed: (N, A) what the policy asked for.
        info: the environment's info dictionary, e.g. "success": (N,) bool.
    """

    obs: Obs
    action: Array
    reward: Array
    next_obs: Obs
    terminated: Array
    truncated: Array
    current: Obs
    valid: Array
    intervened: Array
    proposed: Array
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Transitions:
    """What TD learners read; a window batch is the same class with (B, L) in place of (B,).

    Attributes:
        obs: observations.
        action: (B, A) or (B, H, A): EXECUTED, in [-1, 1].
        reward: (B,) sum of gamma^i r over the k primitive steps that the row spans.
        discount: (B,) gamma^k * (1 - terminated): the only bootstrap multiplier.
        next_obs: true successor, never a reset observation.
        terminated: (B,) bool.
        truncated: (B,) bool.
        intervened: (B,) bool: a human chose this action.
        mask: (B,) bool, or (B, H): valid entries.
        extras: logp, proposed action, return_to_go, group ids ... documented by their writer.
    """

    obs: Obs
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Obs
    terminated: Tensor
    truncated: Tensor
    intervened: Tensor
    mask: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """What on-policy learners read: T steps of N environments, time first.

    Attributes:
        obs: (T, N, ...) observations acted on.
        action: (T, N, A) the policy's sample, before clipping to [-1, 1].
        logp: (T, N) of that sample under the policy that acted.
        value: (T, N) of `obs`.
        reward: (T, N).
        next_value: (T, N) of the true successor; read only where `boundary`.
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        boundary: (T, N) bool: terminated, truncated or the last row.
        valid: (T, N) bool.
        extras: further columns, documented by their writer.
    """

    obs: Obs
    action: Tensor
    logp: Tensor
    value: Tensor
    reward: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    boundary: Tensor
    valid: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LogFacts:
    """What a learner from logs may know of its data before the first batch, rewards after their transformation.

    Attributes:
        state_mean: (n,) of the observation "state".
        state_std: (n,).
        reward_low: smallest reward.
        reward_high: largest reward.
        gamma: discount per step.
        horizon: steps of the longest episode.
        return_low: smallest undiscounted return of an episode; NaN where it is not known.
        return_high: largest.
        reward_scale: what the log's rewards were multiplied by; the environment still gives those before it.
        reward_bias: what was added behind it.
        derived: mean and standard deviation of the columns that a learner's frozen `reader` made of the log, by name.
    """

    state_mean: np.ndarray
    state_std: np.ndarray
    reward_low: float
    reward_high: float
    gamma: float
    horizon: int
    return_low: float = float("nan")
    return_high: float = float("nan")
    reward_scale: float = 1.0
    reward_bias: float = 0.0
    derived: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def return_bound(self) -> float:
        """Largest possible size of a discounted return."""
        largest = max(abs(self.reward_low), abs(self.reward_high))
        return largest / (1.0 - self.gamma) if self.gamma < 1.0 else largest * self.horizon


@dataclass(frozen=True)
class Episode:
    """One episode in NumPy: the unit on disk and on the wire.

    Attributes:
        obs: (T + 1, ...) every observation, the final one included.
        action: (T, A) executed.
        proposed: (T, A) what the policy asked for.
        reward: (T,).
        terminated: of the last step; at most one of the two is True, both False = cut recording.
        truncated: of the last step.
        intervened: (T,) bool.
        stamp: (T + 1,) seconds, monotonic clock.
        meta: task, instruction, seed, IOSpec, versions.
    """

    obs: dict[str, np.ndarray]
    action: np.ndarray
    proposed: np.ndarray
    reward: np.ndarray
    terminated: bool
    truncated: bool
    intervened: np.ndarray
    stamp: np.ndarray
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = len(self.action)
        for name, value, expected in (
            ("proposed", self.proposed, steps),
            ("reward", self.reward, steps),
            ("intervened", self.intervened, steps),
            ("stamp", self.stamp, steps + 1),
            *((f"obs['{key}']", value, steps + 1) for key, value in self.obs.items()),
        ):
            if len(value) != expected:
                raise ValueError(f"Episode.{name} has {len(value)} rows, expected {expected} ({steps} actions)")
        if self.terminated and self.truncated:
            raise ValueError("Episode is both terminated and truncated; expected at most one of the two")

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Action:
    """What a policy answers.

    Attributes:
        value: (B, A) in [-1, 1], to execute now.
        logp: (B,) under the behaviour policy, or None.
        extras: e.g. "value": (B,) the critic's estimate, "raw": (B, A) the sample before clipping.
    """

    value: Array
    logp: Array | None = None
    extras: dict[str, Array] = field(default_factory=dict)


@runtime_checkable
class Policy(Protocol):
    """Anything that acts: network, teleoperator, script, remote VLA.

    Two further methods are called where a policy has them: `executed(action (N, A))` by training and trials, what was
    done in the last tick; `earned(reward (N,))` by evaluation, what it brought (return-conditioned policies).
    """

    io: IOSpec

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory and chunks of these rows ((N,) bool mask); None means all."""
        ...

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions for a batch; NumPy in, NumPy out, torch in, torch out."""
        ...


class TrainedPolicy(Policy, Protocol):
    """A policy with weights: what a checkpoint's policy.pt holds."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors only."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        ...


class Learner(Protocol[Data_contra]):
    """Turns data into a better policy; one class per file in policies/.

    Constructors: `Learner(io: IOSpec, *, seed: int, device: str, gamma: float, **method options)`.

    Attributes:
        policy: what acts; its `state_dict` holds tensors only.
        consumes: which loop feeds it: "transitions" (replay; the learner then has `batch_size`), "rollout" (on-policy),
            "episodes" (on-policy with a person in the loop: all steps since the last update in order, then steps to
            imitate, see `loops.hil_episodes`; the learner then has `rollout_steps` and `batch_size`),
            "environment" (it brings its own loop: `attach(env)`, `run(total_steps, hook)`, `env_steps`).
            "device_transitions" and "device_rollout" (the same on a device: `loops.device`, `loops.device_on_policy`).
        fine_tunes: (optional) what it consumes when `robot-rl train init=...` goes on with a learner from a log, if
            that is another loop, e.g. "rollout".
        reads: (optional) extras that a learner from logs wants: "next_action", "return_to_go", "episode", "step",
            or info columns of the log by name.
        return_gamma: (optional) discount of "return_to_go" where it is not that of the run; 1 for undiscounted returns.
        return_bootstrap: (optional) True: "return_to_go" goes on behind a cut, see `data.LogDataset`.
        window: (optional) steps per sample: batches are then windows, fields (B, window) for (B,); `chunks.chunk_rows`
            makes decisions of them.
        keeps: (optional) name -> shape of further columns that the buffer keeps; the loop itself provides
            "previous_action", the action executed before (zeros after a reset), and "decision_start" (1,), 1 on the
            first tick of a decision: of a `ChunkedPolicy`, and before it acts, of random actions held for the
            learner's `decision_interval` ticks.
        prepare: (optional) `prepare(facts: LogFacts)`, called once before the first update on a log.
        relabel_goals: (optional) options of `data.goals.GoalDataset`, for a learner that wants extras["goal"].
        goal_pictures: (optional) options of `data.goal_pictures.GoalPictures`, for one that reads goals as pictures.
    """

    consumes: str

    @property
    def policy(self) -> TrainedPolicy:
        """What acts."""
        ...

    def update(self, batches: Iterator[Data_contra], /) -> Metrics:
        """Draw as many batches as the method needs (UTD, epochs) and improve the policy."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on: weights, optimisers, generators, counters; tensors and numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place: optimisers keep their parameters."""
        ...


class Sampler(Protocol):
    """A source of batches: ReplayBuffer, Mix, LogDataset."""

    def batches(self, size: int) -> Iterator[Transitions]:
        """Endless batches of `size` rows."""
        ...

    def __len__(self) -> int: ...


class Critic(Protocol):
    """State-action values, every member separately; the learner decides min, mean or subset."""

    def __call__(self, obs: Obs, action: Tensor) -> Tensor:
        """Values (E, B)."""
        ...


class ProgressCritic(Protocol):
    """VLA critic: video and instruction to progress."""

    def score(self, clip: Tensor, instruction: Sequence[str]) -> Tensor:
        """(B, T, H, W, 3) uint8 -> (B, T) in [0, 1]."""
        ...


class Tracker(Protocol):
    """Where metrics go. Names: rollout/return, train/critic_loss, eval/success, time/sps."""

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row of metrics at an environment step."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


class Stateful(Protocol):
    """Anything whose exact continuation a checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, arrays and plain values only."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue exactly as the saved object would have."""
        ...
