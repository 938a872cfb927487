"""A world's observation and action terms on measured joints: what a policy trained in a world needs on the robot.

The same `observe` and `control` that ran in training run here, on a view that is filled from measurements. Nothing is
simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import array_api_compat.numpy as xp
import numpy as np

from robot_rl.sim.eyes import Feeling, tool_pose
from robot_rl.sim.interface import world_io
from robot_rl.sim.mujoco_physics import mujoco, sensors
from robot_rl.sim.scene import Sensors
from robot_rl.sim.tool import addresses, load
from robot_rl.sim.world import View, World, parts_of
from robot_rl.types import IOSpec

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

OBJECTS = "objects"
"""Name of the variable that holds the positions of all joints that are not the robot's (poses of free bodies)."""


class Window:
    """A `View` of one robot, filled from MuJoCo data or from measurements.

    Args:
        model: of the world.
        world: the world.

    Attributes:
        view: what the world's terms read.
        free: indices into qpos of the joints that are no hinge or slide.
    """

    def __init__(self, model: MjModel, world: World) -> None:
        self._world, self._sensordata = world, np.zeros((1, model.nsensordata))
        actions = len(world.action_names)
        self.view: Any = View(  # arrays here are NumPy, whatever the contract allows
            xp=xp,
            qpos=np.zeros((1, model.nq)),
            qvel=np.zeros((1, model.nv)),
            ctrl=np.zeros((1, model.nu)),
            sensors=Sensors(sensors(model, self._sensordata)),
            action=np.zeros((1, actions), np.float32),
            previous_action=np.zeros((1, actions), np.float32),
            step=np.zeros(1, np.int64),
        )
        kinds = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)
        self.free = np.setdiff1d(np.arange(model.nq), model.jnt_qposadr[np.isin(model.jnt_type, kinds)])

    def external(self, joints: Sequence[str]) -> tuple[str, ...]:
        """Names of what the joints alone do not tell: drawn goals (the world's markers) and `objects`."""
        goals = tuple(dict.fromkeys(parts_of(self._world).markers.values()))
        return (*goals, OBJECTS) if len(self.free) else goals

    def read(self, data: MjData) -> None:
        """Copy positions, velocities, controls and sensor values of MuJoCo data."""
        self.view.qpos[0], self.view.qvel[0], self.view.ctrl[0] = data.qpos, data.qvel, data.ctrl
        self._sensordata[0] = data.sensordata


class WorldPort:
    """Observation and action terms of a world for one robot.

    Args:
        world: what it was trained in, or one like it.
        joints: names of the robot's joints, in the order of measurements and commands.
        io: of the checkpoint; must fit the world.
        proprio: what of the state its policy sees, as in `robot_rl.sim.eyes.Feeling`: goals and objects, which nobody
            tells then, are hidden, and "tool" is told where the world moves it in metres. None: the whole state.

    Raises:
        ValueError: the checkpoint was made for another interface, or the world commands joints that the robot has not.

    Attributes:
        io: the world's interface.
        external: names of the variables that come from perception (`goal`, `objects`).
        cameras: none; pictures are of the robot's own cameras (`robot_rl.real.port.SightedPort`).
    """

    cameras: tuple[str, ...] = ()

    def __init__(self, world: World, joints: Sequence[str], io: IOSpec | None = None,
                 *, proprio: Sequence[str] | str | None = None) -> None:  # fmt: skip
        self.world = world
        _, model = load(self.world.mjcf())
        self._model = model
        self._data = mujoco.MjData(model)
        self._qpos, self._dof = addresses(mujoco, model, joints)
        self._window = Window(model, self.world)
        self._feeling = Feeling(world, proprio)
        self.external = self._window.external(joints) if proprio is None else ()
        self._tool = {"tool": ((4,), "float32")} if self._feeling.tool else {}
        names = self._feeling.names
        self.io = world_io(world, names, {"state": ((len(names),), "float32")} | self._tool)
        if io is not None:
            io.check(self.io)
        names = [model.joint(int(model.actuator_trnid[i, 0])).name for i in range(model.nu)]
        missing = [name for name in joints if name not in names]
        if missing:
            raise ValueError(f"world {self.world.name} has no actuator for {', '.join(missing)}; it has {names}")
        self._columns = np.array([names.index(name) for name in joints], int)
        adopt = parts_of(self.world).adopt
        if adopt is None:
            raise ValueError(f"world {self.world.name} has no adopt(view); it cannot start from a measured state")
        self._adopt = adopt

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Take the measured robot as the start: commands begin where it is.

        Args:
            position: (J,) measured [rad].
            velocity: (J,) measured [rad/s].
            task: values of `external`.
        """
        from robot_rl.sim.draw import Streams

        view = self._window.view
        start = self.world.reset(Streams(1, 0).draw(np.arange(1)), 1, view.xp)
        view.qpos[:], view.qvel[:], view.ctrl[:] = start.qpos, start.qvel, start.ctrl
        view.ctrl[0, self._columns] = position  # what the world leaves alone, such as fingers, stays where it is
        view.task = {name: np.array(value) for name, value in start.task.items()}
        view.action[:], view.previous_action[:], view.step[:] = 0.0, 0.0, 0
        self._fill(position, velocity, task)
        self._adopt(view)

    def observe(
        self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Observation of a policy, once per decision: {"state": (1, S) float32}, and "tool" (1, 4) beside it."""
        view = self._window.view
        self._fill(position, velocity, task)
        self.world.update(view)
        obs = {"state": self._feeling.of(np.asarray(self.world.observe(view), np.float32))}
        return obs | ({"tool": tool_pose(self.world, view)} if self._feeling.tool else {})

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) action in [-1, 1] -> (J,) position targets [rad], in the order of the robot's joints."""
        view = self._window.view
        view.previous_action[:] = view.action
        control = np.asarray(self.world.control(view, np.asarray(action, np.float32)))
        view.action[:], view.ctrl[:] = action, control
        view.step[:] += 1
        return control[0, self._columns].astype(float)

    def _fill(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        view, data = self._window.view, self._data
        view.qpos[0, self._qpos], view.qvel[0, self._dof] = position, velocity
        for name in self.external:
            value = np.asarray(task[name], float)
            if name == OBJECTS:
                view.qpos[0, self._window.free] = value
            else:
                view.task[name][0] = value
        if self._model.nsensor:
            data.qpos[:], data.qvel[:], data.ctrl[:] = view.qpos[0], view.qvel[0], view.ctrl[0]
            mujoco.mj_forward(self._model, data)
            self._window.read(data)
