"""What an environment sees: pictures of its cameras with their calibration, and what the robot feels of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import array_api_compat.numpy as xp
import numpy as np

from robot_rl.sim.arm import downward
from robot_rl.sim.draw import Streams
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_physics import mujoco
from robot_rl.sim.world import View, World, parts_of
from robot_rl.types import Array
from robot_rl.types.camera import Calibration

if TYPE_CHECKING:
    from mujoco import MjModel

    from robot_rl.sim.render import Cameras

OWN = "own"
"""Stands for the cameras that a world takes for a policy, and for all that its robot feels of itself."""


def chosen_cameras(world: World, cameras: Sequence[str] | str) -> tuple[str, ...]:
    """Names of the cameras to observe.

    Raises:
        ValueError: `own` of a world that takes none, or a single name that is no list.
    """
    if not isinstance(cameras, str):
        return tuple(cameras)
    own = parts_of(world).policy_cameras
    if cameras != OWN:
        raise ValueError(f"cameras is '{cameras}', expected a list such as [{cameras}], or own")
    if not own:
        raise ValueError(f"world '{world.name}' takes no cameras of its own; name some: cameras={list(world.cameras)}")
    return own


class Feeling:
    """The part of a world's state that its robot feels of itself: goals and objects are hidden.

    Args:
        world: of which.
        chosen: names of components, or of vectors ("tip" for "tip_x", "tip_y" and "tip_z"); "own" for all that the
            robot feels; None for the whole state, goals and objects included.

    Attributes:
        columns: of the state that are seen, or None for all.
        names: of them.
        tool: whether the pose of the tool is observed too, in metres and radians.

    Raises:
        ValueError: a name that the robot does not feel.
    """

    def __init__(self, world: World, chosen: Sequence[str] | str | None) -> None:
        self.names, self.columns = tuple(world.obs_names), None
        self.tool = chosen is not None and tool_moves(world)
        if chosen is None:
            return
        own, known = list(parts_of(world).proprio), list(world.obs_names)
        if not own:
            raise ValueError(
                f"world '{world.name}' does not say which components of its state the robot feels, so that goals and "
                "objects cannot be hidden; leave proprio out, or give the world an attribute proprio"
            )
        if isinstance(chosen, str) and chosen != OWN:
            raise ValueError(f"proprio is '{chosen}', expected a list such as [{chosen}], or own")
        picked: list[str] = []
        for item in own if isinstance(chosen, str) else chosen:
            found = [name for name in own if name == item or (name[:-2] == item and name[-2:] in ("_x", "_y", "_z"))]
            if not found:
                hidden = " (that is of the task, and hidden)" if any(x.startswith(item) for x in known) else ""
                raise ValueError(f"proprio names '{item}'{hidden}; the robot of '{world.name}' feels {own}")
            picked += [name for name in found if name not in picked]
        self.columns = [known.index(name) for name in picked]
        self.names = tuple(picked)

    def of(self, state: np.ndarray) -> np.ndarray:
        """(N, F) of the state (N, S), a copy."""
        return state.copy() if self.columns is None else state[:, self.columns]


class Privileged:
    """What critics and teachers may read of a simulation: more than any robot feels.

    The whole state without noise, what the world declares as privileged, and what randomisation has drawn (factors of
    masses, friction, damping and strength; latency in physics steps).

    Args:
        world: of which.
        options: what is hidden from the policy, and what is randomised.
        sizes: name of a factor -> how many there are.

    Attributes:
        names: of the P components.

    Raises:
        ValueError: the policy sees all of it.
    """

    def __init__(self, world: World, options: EngineOptions, sizes: Mapping[str, int]) -> None:
        parts = parts_of(world)
        self._tell = parts.privileged
        told = tuple(parts.privileged_names()) if parts.privileged_names else ()
        drawn = {} if options.randomize is None else {name: sizes[name] for name in options.randomize.factor_ranges}
        if options.randomize is not None and options.randomize.latency is not None:
            drawn["latency"] = 1
        noisy = options.randomize is not None and options.randomize.noisy
        hides = bool(options.cameras) or options.proprio is not None or noisy
        if not (told or drawn or hides):
            raise ValueError(
                f"world '{world.name}' shows its policy all that it knows: it declares nothing privileged, and no "
                "proprio, pictures, noise or randomisation hides anything, so that a critic or a teacher could read no "
                "more. Leave critic_state out, or hide something first: env.proprio=own where the world says what its "
                "robot feels, cameras=own, or for example 'env.randomize={friction: [0.5, 1.25]}'"
            )
        self._factors = tuple(sorted(drawn))
        factors = (f"{name}_factor_{i}" for name in self._factors for i in range(drawn[name]))
        self.names = (*world.obs_names, *told, *factors)

    def of(self, state: np.ndarray, view: View, factors: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, P) float32 of the state (n, S), the view of these n copies and their factors, name -> (n, ...)."""
        parts = [state] if self._tell is None else [state, np.asarray(self._tell(view), np.float32)]
        parts += [factors[name].reshape(len(state), -1).astype(np.float32) for name in self._factors]
        return np.concatenate(parts, axis=1)


def tool_moves(world: World) -> bool:
    """Whether a world tells where its tool is, in metres."""
    return parts_of(world).tool is not None and tuple(world.action_units[:3]) == ("m", "m", "m")


def tool_pose(world: World, view: View) -> np.ndarray:
    """(N, 4) float32 place of the tip [m] and turn of the tool about the vertical [rad]; 0 where it does not turn."""
    tell = parts_of(world).tool
    assert tell is not None
    found = np.asarray(tell(view)["position"], np.float32)
    out = np.zeros((len(found), 4), np.float32)
    out[:, : min(found.shape[1], 4)] = found[:, :4]
    return out


def calibrate(world: World, model: MjModel, cameras: Sequence[str], size: tuple[int, int]) -> dict[str, Calibration]:
    """ "image.<name>" -> where points fall in the pictures of a camera.

    A camera that a moving body carries is taken to be fixed to the tool, which points down; of a world that does not
    tell where its tool is such a camera is left out.

    Args:
        world: of which.
        model: its compiled model.
        cameras: names.
        size: (height, width) of the pictures in pixels.
    """
    data = mujoco.MjData(model)
    start = world.reset(Streams(1, 0).draw(np.arange(1)), 1, xp)
    data.qpos[:] = np.asarray(start.qpos)[0]
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    base = np.eye(4)
    if tool_moves(world):
        zeros = np.zeros((1, len(world.action_names)), np.float32)
        view = View(
            xp=xp,
            qpos=np.asarray(start.qpos),
            qvel=np.asarray(start.qvel),
            ctrl=np.asarray(start.ctrl),
            sensors={},
            action=zeros,
            previous_action=zeros,
            step=np.zeros(1, np.int64),
            task=start.task,
        )
        pose = tool_pose(world, view)[0].astype(float)
        base[:3, :3], base[:3, 3] = np.asarray(downward(pose[3:]))[0], pose[:3]
    found = {}
    for name in cameras:
        index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
        carried = int(model.cam_bodyid[index]) != 0
        if carried and not tool_moves(world):
            continue
        here = np.eye(4)  # MuJoCo's cameras look along -z with y up
        here[:3, :3] = data.cam_xmat[index].reshape(3, 3) @ np.diag([1.0, -1.0, -1.0])
        here[:3, 3] = data.cam_xpos[index]
        pose = np.linalg.inv(base) @ here if carried else here
        focal = float(0.5 * size[0] / np.tan(0.5 * np.deg2rad(float(model.cam_fovy[index]))))
        found[f"image.{name}"] = Calibration(
            height=size[0],
            width=size[1],
            focal=(focal, focal),
            centre=(0.5 * size[1], 0.5 * size[0]),
            mount="tool" if carried else "world",
            position=tuple(float(x) for x in pose[:3, 3]),
            rotation=tuple(float(x) for x in pose[:3, :3].ravel()),
        )
    return found


class Painters:
    """The renderers of an environment, one for each size and quality; made when they are first asked for."""

    def __init__(self, model: MjModel, markers: Mapping[str, str]) -> None:
        self._model, self._markers = model, markers
        self._made: dict[tuple[tuple[int, int], str], Cameras] = {}

    def paint(
        self,
        qpos: np.ndarray,
        task: Mapping[str, Array],
        cameras: Sequence[str | None],
        size: tuple[int, int],
        *,
        quality: str = "full",
        supersample: int = 1,
    ) -> dict[str | None, np.ndarray]:
        """Pictures of n copies.

        Args:
            qpos: (n, nq).
            task: variables of these copies, for markers.
            cameras: names; None is a free camera.
            size: (height, width) in pixels.
            quality: full or fast.
            supersample: each pixel is the mean of so many times so many drawn ones.

        Returns:
            Camera -> (n, height, width, 3) uint8.
        """
        drawn = size[0] * supersample, size[1] * supersample
        if (drawn, quality) not in self._made:
            from robot_rl.sim.render import Cameras  # OpenGL only for those who look

            self._made[drawn, quality] = Cameras(self._model, drawn[1], drawn[0], self._markers, quality=quality)
        found = self._made[drawn, quality].render(qpos, cameras, task)
        if supersample == 1:
            return found
        return {name: shrink(value, supersample) for name, value in found.items()}

    def show(self, model: MjModel) -> None:
        """Draw another model from now on; see `Cameras.show`."""
        self._model = model
        for renderer in self._made.values():
            renderer.show(model)

    def close(self) -> None:
        """Free the renderers."""
        for renderer in self._made.values():
            renderer.close()
        self._made.clear()


def shrink(pictures: np.ndarray, by: int) -> np.ndarray:
    """(n, H / by, W / by, 3) uint8: means of blocks of (n, H, W, 3) uint8 pictures, rounded."""
    n, height, width, channels = pictures.shape
    blocks = pictures.reshape(n, height // by, by, width // by, by, channels)
    total = np.zeros((n, height // by, width // by, channels), np.uint32)
    for row in range(by):  # sums of strided slices: a mean over two axes takes several times as long
        for column in range(by):
            total += blocks[:, :, row, :, column]
    return ((total + by * by // 2) // (by * by)).astype(np.uint8)
