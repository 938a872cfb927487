"""What travels: steps, batches, rollouts, episodes and the facts of a log.

Letters, everywhere: B batch, N environments, T time, K turns, L window, H chunk, A action, E ensemble, C H W image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import numpy as np

from robot_rl.types.state import StateDict

if TYPE_CHECKING:  # the processes of a robot that acts without torch load none
    from torch import Generator, Tensor

Array: TypeAlias = Union[np.ndarray, "Tensor"]
Obs = dict[str, Any]
"""Observation batch: "state": (B, S) float32; "image.<camera>": (B, H, W, 3) uint8; "instruction": tokens."""
Metrics = dict[str, float]


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

    def columns(self) -> dict[str, Tensor]:
        """What there is of every row besides its observations and extras, by name."""
        return {
            "action": self.action, "reward": self.reward, "discount": self.discount, "terminated": self.terminated,
            "truncated": self.truncated, "intervened": self.intervened, "mask": self.mask,
        }  # fmt: skip


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

    def columns(self) -> dict[str, np.ndarray]:
        """What there is of every step besides its observation, by name."""
        return {
            "action": self.action, "proposed": self.proposed, "reward": self.reward, "intervened": self.intervened,
            "stamp": self.stamp,
        }  # fmt: skip


class Sampler(Protocol):
    """A source of batches: ReplayBuffer, Mix, LogDataset."""

    def batches(self, size: int) -> Iterator[Transitions]:
        """Endless batches of `size` rows."""
        ...

    def __len__(self) -> int: ...

    def state_dict(self) -> StateDict:
        """What the next batches depend on, besides rows that are stored elsewhere."""
        ...

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue exactly as the saved one would have."""
        ...


class Batches(Iterator[Transitions]):
    """Endless batches of one size.

    Args:
        sample: rows wanted -> a batch.
        size: rows of every batch.
        generators: what the drawing consumes; a CUDA graph has to know them.

    Raises:
        ValueError: the size is below 1.
    """

    def __init__(self, sample: Callable[[int], Transitions], size: int, *generators: Generator) -> None:
        if size < 1:
            raise ValueError(f"the batch size is {size}, expected at least 1")
        self._sample, self._size, self.generators = sample, size, generators

    def __next__(self) -> Transitions:
        return self._sample(self._size)


def all_finite(value: np.ndarray) -> bool:
    """Whether no number of an array is NaN or infinite.

    Counting takes half the time of `isfinite().all()` on small arrays. A dot product with itself would take as little,
    but BLAS splits one of more than some 10,000 numbers over threads, which then wait for more work in a busy loop and
    take the processors from the simulation (1,024 copies on two threads: 1.65 times the time of the physics).
    """
    return np.count_nonzero(np.isfinite(value)) == value.size
