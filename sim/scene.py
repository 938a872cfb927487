"""Whether a world's cameras, markers and sensors are those of its model: said at the start, not at a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from robot_rl.sim.mujoco_physics import mujoco
from robot_rl.sim.world import World, parts_of
from robot_rl.types import Array

if TYPE_CHECKING:
    from mujoco import MjModel


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
