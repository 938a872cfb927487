"""Whether a world's cameras, markers and sensors are those of its model: said at the start, not at a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from robot_rl.sim.mujoco_physics import mujoco
from robot_rl.sim.world import Reset, World, parts_of
from robot_rl.types import Array

if TYPE_CHECKING:
    from mujoco import MjModel

CONTROL = ": one control per environment and actuator of the model"
STATE = ": one column per name in obs_names"


def check_scene(world: World, model: MjModel) -> None:
    """Compare what the world names with its compiled model.

    Raises:
        ValueError: a camera that the model has not, or a marker that is no mocap body of it.
    """
    cameras = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_CAMERA, i) or "" for i in range(model.ncam)]
    missing = [name for name in world.cameras if name not in cameras]
    if missing:
        raise ValueError(f"world '{world.name}' names the cameras {missing}; its model has {cameras}")
    for body in parts_of(world).markers:
        mocap(model, body)


def check_returned(world: World, what: str, value: Any, expected: tuple[int, ...], why: str = "") -> None:
    """Check the shape of what a method of the world returned.

    Raises:
        ValueError: it is another than expected.
    """
    if tuple(np.shape(value)) != tuple(expected):
        raise ValueError(f"{world.name}.{what} shape {tuple(np.shape(value))}, expected {tuple(expected)}{why}")


def check_reset(world: World, start: Reset, count: int, model: MjModel, before: Mapping[str, object]) -> None:
    """Check the state in which `count` episodes begin, and that the world's variables are those of `before`, if any.

    Raises:
        ValueError: an array has another shape than the model says, or a variable is missing or new.
    """
    for name, width in (("qpos", model.nq), ("qvel", model.nv), ("ctrl", model.nu)):
        check_returned(world, f"reset returned {name} of", vars(start)[name], (count, width))
    if not before:
        check_markers(world, start.task)
    elif before.keys() != start.task.keys():
        raise ValueError(
            f"{world.name}.reset returned the variables {sorted(start.task)}, before {sorted(before)}; return the same "
            "ones every time"
        )


def check_markers(world: World, variables: Iterable[str]) -> None:
    """Compare the variables at which markers are drawn with those that `reset` returned.

    Raises:
        ValueError: a marker is drawn at a variable that there is not.
    """
    known = sorted(variables)
    for body, key in parts_of(world).markers.items():
        if key not in known:
            raise ValueError(
                f"{world.name}.markers draws '{body}' at the variable '{key}', and reset returned {known}; return "
                f"Reset(..., {{'{key}': (n, 3) positions}})"
            )


def mocap(model: MjModel, body: str) -> int:
    """Index of a mocap body.

    Raises:
        ValueError: there is no such body, or it is none.
    """
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, body)
    found = int(model.body_mocapid[index]) if index >= 0 else -1
    if found < 0:
        raise ValueError(f"marker '{body}' is not a mocap body of the model; give it <body name='{body}' mocap='true'>")
    return found


class Sensors(dict[str, Array]):
    """Sensor values by name; a name that the model has not is answered with those that it has."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        super().__init__(values)

    def __missing__(self, key: str) -> NoReturn:
        raise ValueError(f"the model has no sensor '{key}'; it has {sorted(self)}")
