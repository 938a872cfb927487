"""What acts, and what judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from robot_rl.types.data import Array, Obs
from robot_rl.types.io import IOSpec
from robot_rl.types.state import StateDict

if TYPE_CHECKING:
    from torch import Tensor


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


OF_ACTING = ("acted", "generator", "held", "noise0", "noise1", "plan")
"""Entries of a policy's `state_dict` that are of its own acting, not of what was learned: whoever sends weights to a
copy that acts elsewhere leaves them out, or the copy would draw the same noise again after every message, explore as if
it had never acted, and forget what it was about to do."""


@dataclass(frozen=True)
class Recurrence:
    """A policy with a memory as a function: what it remembers goes in and comes out, and no noise is drawn.

    Attributes:
        start: name -> (1, ...) float32, what it remembers at the begin of an episode.
        step: (observations, memory (B, ...)) -> best actions (B, A) and the memory behind them, in torch alone.
    """

    start: dict[str, Tensor]
    step: Callable[[Obs, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class PolicyParts:
    """What a policy offers beyond acting, fixed by its class and options; None where it does not.

    Attributes:
        executed: (action (N, A)): training and trials tell what was done in the last tick.
        earned: (reward (N,)): evaluation tells what it brought (return-conditioned policies).
        log_prob: (observations, actions (B, A)) -> (B,) log-density, before the bounds; for off-policy evaluation.
        reseed: (seed): begin the noise anew.
        save: () -> what acting depends on beside the weights: chunks under way, noise generators.
        restore: (what `save` gave): continue.
        meter: a `chunks.ChunkMeter` of its decisions.
        seeds: policies side by side in one.
        activate: (index): which of them acts.
        use_student: (bool): let the student decide, or the teacher.
        set_target_return: (return): ask for another one, from the next episode on.
        look: observations -> (N, W) what `act` would record of them as `Action.extras["sight"]`, without acting: of the
            last observation of an episode nobody asks for an action.
        features: observations -> (N, F) what its method sees of them behind an encoder, as if it had acted.
        remembers: its action depends on more than the observation, so estimators of single states refuse it.
        at_interval: (steps) -> the same policy, asked every that many ticks.
        graph: (observations as tensors) -> (B, A) the best action in torch alone, of a policy whose `act` leaves torch.
        recurrence: of a policy that remembers, its step with the memory in the open, where torch alone can compute it.
        set_dither: (share) -> the one of before: how much of its noise stays in what it does "deterministically", as a
            function of what it sees; a graph has none.
    """

    executed: Callable[[np.ndarray], None] | None = None
    earned: Callable[[Array], None] | None = None
    log_prob: Callable[[Obs, Tensor], Tensor] | None = None
    reseed: Callable[[int], None] | None = None
    save: Callable[[], dict[str, object]] | None = None
    restore: Callable[[dict[str, object]], None] | None = None
    meter: Any = None
    seeds: int = 1
    activate: Callable[[int], None] | None = None
    use_student: Callable[[bool], None] | None = None
    set_target_return: Callable[[float], None] | None = None
    look: Callable[[Obs], Array] | None = None
    features: Callable[[Obs], np.ndarray] | None = None
    remembers: bool = False
    at_interval: Callable[[int], Policy] | None = None
    graph: Callable[[Obs], Tensor] | None = None
    recurrence: Recurrence | None = None
    set_dither: Callable[[float], float] | None = None

    def around(self, executed: Callable[[np.ndarray], None] | None) -> PolicyParts:
        """Parts of a policy around the one of these: without those that ask what the inner one would do by itself."""
        return PolicyParts(
            executed=executed,
            reseed=self.reseed,
            save=self.save,
            restore=self.restore,
            remembers=self.remembers,
            set_dither=self.set_dither,
        )


@runtime_checkable
class Policy(Protocol):
    """Anything that acts: network, teleoperator, script, remote VLA."""

    io: IOSpec

    @property
    def parts(self) -> PolicyParts:
        """What it offers beyond acting."""
        ...

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory and chunks of these rows ((N,) bool mask); None means all."""
        ...

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions for a batch; NumPy in, NumPy out, torch in, torch out.

        Args:
            obs: of all rows.
            deterministic: the same action for the same observation: the best, or near it (`parts.set_dither`).
        """
        ...


class Port(Protocol):
    """What a policy sees and does on a robot; `robot_rl.sim.port.WorldPort` takes the terms from a world."""

    io: IOSpec
    external: tuple[str, ...]
    cameras: tuple[str, ...]

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Take the measured robot (J,) as the start."""
        ...

    def observe(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> Obs:
        """Observation for a policy, with a batch axis of 1."""
        ...

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) action in [-1, 1] -> (J,) command in the mode of the robot."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A trained policy as the policy node of a robot gets it from its loader.

    Attributes:
        policy: in [-1, 1] of its own interface.
        io: of the checkpoint.
        make_port: (names of the joints) -> port of the world that it was trained in; None: in something else.
        identity: for recordings, such as "reach_ros@15000".
        known: what the checkpoint says of its actions beside the interface: "normalised", "stated" or nothing.
        files: that it was read from and that make it what it is, for recordings.
    """

    policy: Policy
    io: IOSpec
    make_port: Callable[[tuple[str, ...]], Port] | None
    identity: str
    known: str | None = None
    files: tuple[str, ...] = ()


@runtime_checkable
class TrainedPolicy(Policy, Protocol):
    """A policy with weights: what a checkpoint's policy.pt holds."""

    def state_dict(self) -> StateDict:
        """Tensors only."""
        ...

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        ...


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
