"""A world's whole task on measured joints: what its reward and success say of a real robot or of one behind topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from robot_rl.sim.port import WorldPort
from robot_rl.sim.world import World, parts_of

if TYPE_CHECKING:
    from robot_rl.types import Array


class WorldTask(WorldPort):
    """`WorldPort` that also judges; arguments are those of `WorldPort`."""

    def judge(self) -> tuple[float, bool, bool]:
        """Reward, true end and success of the state that was observed last."""
        view, world = self._window.view, self.world
        parts = (world.reward(view), world.terminated(view), world.success(view))
        reward, terminated, success = (np.asarray(part)[0] for part in parts)
        return float(reward), bool(terminated), bool(success)

    def expert(self, obs: Mapping[str, Array]) -> np.ndarray:
        """(1, A) action of the world's scripted controller for an observation with "state" (1, S)."""
        return np.clip(np.asarray(parts_of(self.world).ask_expert(obs["state"]), np.float32), -1.0, 1.0)


def world_task(
    make_world: Callable[[Mapping[str, object]], World],
    world: str = "reach",
    options: Mapping[str, object] | None = None,
    proprio: tuple[str, ...] | Literal["own"] | None = None,
) -> Callable[[Sequence[str]], WorldPort]:
    """Maker of the task of a world for the joints of a robot.

    Args:
        make_world: makes the world of a node with `name` and options.
        world: name of a file in sim/worlds.
        options: arguments of the world.
        proprio: what the robot feels of itself, or "own" for all of it: goal and objects are hidden then, as where
            a policy learns from pictures. Nobody knows what a state is worth without them: a person or a classifier
            says success.
    """

    def make(joints: Sequence[str]) -> WorldPort:
        made = make_world({"name": world, **dict(options or {})})
        return WorldTask(made, joints) if proprio is None else WorldPort(made, joints, proprio=proprio)

    return make
