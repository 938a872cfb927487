"""What steps: N copies of a world behind one interface; a robot is one with N = 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from robot_rl.types.data import Array, Obs
from robot_rl.types.io import IOSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Goals:
    """What an environment with goals says of them, so that a step can be replayed as if another goal had been asked.

    Every step's info then holds "achieved_goal" (N, R), what its true successor has reached, and "desired_goal" (N, G),
    what was asked. A goal that was reached is the first G of those R numbers; the others are facts that the reward
    reads, such as whether an object is held. All functions are of rows, in NumPy.

    Attributes:
        width: G.
        reached: R, at least G.
        show: ("state" (B, S), asked (B, G), goal (B, G)) -> (B, S) the same state where `goal` is asked instead.
        reward: (achieved (B, R), goal (B, G)) -> (B,) what the step that led there earns under that goal.
        ends: the same -> (B,) bool, whether the episode terminates because of it; None: reaching a goal ends nothing.
    """

    width: int
    reached: int
    show: Callable[[np.ndarray, np.ndarray, np.ndarray], Array]
    reward: Callable[[np.ndarray, np.ndarray], Array]
    ends: Callable[[np.ndarray, np.ndarray], Array] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.reached:
            raise ValueError(
                f"a goal of {self.width} numbers cannot be taken from the first of {self.reached} that tell what was "
                "reached; expected at least one, and no more than those"
            )


@dataclass(frozen=True)
class EnvParts:
    """What an environment offers beyond stepping, fixed when it is made; None, False or empty where it does not.

    A wrapper hands on its inner environment's, and hides one with `replace(env.parts, instructions=None)`.

    Attributes:
        expert: observations -> (N, A) actions of a scripted controller, in [-1, 1].
        mistaken: (observations, draw (N,) in [0, 1)) -> (N, S) states as if something else were asked; NaN: as it is.
        instructions: () -> N sentences, what is asked of each copy now; once an episode has begun.
        task_names: of several tasks in one scene, in the order in which `info["task"]` counts them.
        asked_tasks: which of them are drawn at all.
        tool: () -> where the commanded axes stand, for a safety layer: "position" and "velocity" (N, D), "low" and
            "high" (D,) of the first D actions, which are moves; "gripper" (N, G) where there are some.
        place: () -> (N, P) where the robots are [m].
        stages: () -> "reached", "held" (N,) bool: how far a task with an object has come in each copy.
        way_out: (A,) an action that leads out of where the robot is stuck, None in it is any number.
        saves: `state_dict()` and `load_state_dict(state)` are there.
        goals: what steps would earn under other goals, where the observation is a "state" alone that shows the goal.
        dialogues: `begin(seeds)` and `say(rows, utterances)` are there: texts, of which the caller chooses the task.
        device: of the tensors that it hands over; None: NumPy arrays.
        notes: what whoever trains in it should know, in sentences.
    """

    expert: Callable[[Obs], Array] | None = None
    mistaken: Callable[[Obs, np.ndarray], np.ndarray] | None = None
    instructions: Callable[[], list[str]] | None = None
    task_names: tuple[str, ...] = ()
    asked_tasks: tuple[int, ...] = ()
    tool: Callable[[], dict[str, np.ndarray]] | None = None
    place: Callable[[], np.ndarray] | None = None
    stages: Callable[[], dict[str, np.ndarray]] | None = None
    way_out: tuple[float | None, ...] | None = None
    saves: bool = False
    goals: Goals | None = None
    dialogues: bool = False
    device: torch.device | None = None
    notes: tuple[str, ...] = ()


class StepEnv(Protocol):
    """What a loop needs of an environment: copies that step, and what they are."""

    @property
    def io(self) -> IOSpec:
        """Names, shapes, bounds and units of what goes in and out."""
        ...

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def parts(self) -> EnvParts:
        """What it offers beyond stepping."""
        ...

    def reset(self, *, seed: Any = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        """First observation of (N, ...) arrays, and info."""
        ...

    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Execute (N, A) actions in [-1, 1]: observation, reward, terminated, truncated (N,) each, info."""
        ...


class VecEnv(StepEnv, Protocol):
    """Gymnasium's `VectorEnv` with a passport: what our engines, robots and their wrappers are."""

    def render(self) -> Any:
        """(H, W, 3) uint8 pictures, one a copy; None where none were asked for."""
        ...

    def close(self) -> None:
        """Let go of simulators and windows."""
        ...
