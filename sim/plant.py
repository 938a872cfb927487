"""A MuJoCo model as a robot that is commanded joint by joint: the physics behind the bridge's simulated robot."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import array_api_compat.numpy as xp
import numpy as np

from robot_rl.legs import Trunk
from robot_rl.sim.tool import addresses, bodies_below, load
from robot_rl.sim.world import World, parts_of

if TYPE_CHECKING:
    from mujoco import MjModel

    from robot_rl.sim.render import Cameras


class ModelPlant:
    """Joints of an MJCF or URDF model under position, velocity or effort commands.

    Position commands go to a PD law with the gains of the model's own position actuators where it has them (which, as
    they are, shake light links once their force is cut), else with those given here; velocity commands to a damping
    law; efforts are applied as they are. Of the first two gravity is taken, as controllers of arms do: one that stands
    still is within a milliradian of its command. Damping is implicit in MuJoCo's integrator as far as it belongs to the
    model.

    Args:
        model: path or MJCF text.
        joints: names, in the order of all vectors here.
        mode: `position`, `velocity` or `effort`.
        kp: (J,) gain of the PD law [N m/rad].
        kd: (J,) its damping, and the gain of the velocity law [N m s/rad].
        effort: (J,) largest effort of these laws [N m].
        timestep: longest of the physics [s]; None = the model's.
        home: (J,) first position; None keeps the model's.

    Raises:
        ValueError: a joint that the model has not, or a position mode without actuators and gains.

    Attributes:
        blocked: (J,) joints that do not move whatever is commanded.
        trunk: of a robot on legs, see `robot_rl.sim.legs_plant`.
    """

    trunk: Trunk | None = None
    keeps_servos = False

    def __init__(
        self,
        model: str,
        joints: Sequence[str],
        *,
        mode: str = "position",
        kp: Sequence[float] = (),
        kd: Sequence[float] = (),
        effort: Sequence[float] = (),
        timestep: float | None = None,
        home: Sequence[float] | None = None,
    ) -> None:
        mujoco, compiled = self._mujoco, self._model = _load_apart(model, joints, home)
        self._longest = float(timestep or compiled.opt.timestep)
        compiled.opt.timestep = self._longest
        self.names, self.mode = tuple(joints), mode
        self._data = mujoco.MjData(compiled)
        self._qpos, self._dof = addresses(mujoco, compiled, joints)
        self._carried = sorted(bodies_below(compiled, [int(compiled.dof_bodyid[self._dof[-1]])]))
        count = len(self.names)
        self._kp, self._kd = _row(kp, count, 0.0), _row(kd, count, 0.0)
        self._effort = _row(effort, count, np.inf)
        self._actuator = self._position_actuators()
        self._find_law()
        self._mass = np.zeros((compiled.nv, compiled.nv))
        self.blocked = np.zeros(count, bool)
        self._home = None if home is None or not len(home) else np.array(home, float)
        self._goal = np.zeros(count)
        self.reset(0)

    @property
    def position(self) -> np.ndarray:
        """(J,) [rad or m]."""
        return self._data.qpos[self._qpos].copy()

    @property
    def velocity(self) -> np.ndarray:
        """(J,) [rad/s or m/s]."""
        return self._data.qvel[self._dof].copy()

    @property
    def effort(self) -> np.ndarray:
        """(J,) of actuators and laws [N m or N]."""
        return self._data.qfrc_actuator[self._dof] + self._data.qfrc_applied[self._dof]

    @property
    def wrench(self) -> np.ndarray:
        """(6,) force [N] and torque [N m] of contacts on what the last joint carries, at its link and in its axes.

        So tells a sensor at the flange whose tool is tared.
        """
        data, link = self._data, self._carried[0]
        self._mujoco.mj_rnePostConstraint(self._model, data)
        torque, force = np.split(data.cfrc_ext[self._carried].sum(0), 2)  # about the centre of mass of all that moves
        arm = data.xpos[link] - data.subtree_com[self._model.body_rootid[link]]
        turn = data.xmat[link].reshape(3, 3)
        return np.concatenate([force @ turn, (torque - np.cross(arm, force)) @ turn])

    @property
    def time(self) -> float:
        """Simulated seconds."""
        return float(self._data.time)

    @property
    def task(self) -> dict[str, np.ndarray]:
        """What a perception would have to tell a policy, by name; a bare model has nothing."""
        return {}

    @property
    def success(self) -> bool:
        """Whether a task is done; a bare model has none."""
        return False

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the model's cameras."""
        return tuple(self._model.camera(i).name for i in range(self._model.ncam))

    def scene(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Positions and drawn variables of this moment, for a photographer."""
        return self._data.qpos.copy()[None], {}

    def photographer(self, height: int, width: int) -> Cameras:
        """Renderer for scenes of this plant; made, used and closed in one thread.

        Raises:
            RuntimeError: no renderer works.
        """
        from robot_rl.sim.render import Cameras  # OpenGL only for those who look

        return Cameras(copy.copy(self._model), width, height, self._markers())

    def _markers(self) -> Mapping[str, str]:
        return {}

    def reset(self, seed: int) -> None:
        """Back to the first position, at rest."""
        self._mujoco.mj_resetData(self._model, self._data)
        if self._home is not None:
            self._data.qpos[self._qpos] = self._home
        self._mujoco.mj_forward(self._model, self._data)
        self.hold()

    def renew_task(self) -> None:
        """Draw a new task and leave the robot where it is."""

    def hold(self) -> None:
        """Command the present position, or zero velocity or effort."""
        self.command(self.position if self.mode == "position" else np.zeros(len(self.names)))

    def command(self, value: np.ndarray) -> None:
        """Take (J,) positions, velocities or efforts from now on."""
        self._goal = np.array(value, float)

    def release(self) -> None:
        """Nothing hangs."""

    def hang(self, lift: float, sway: float) -> None:
        """Nothing hangs."""

    def push(self, offset: np.ndarray) -> None:
        """Displace the joints by (J,) [rad], as somebody leaning on the arm would."""
        self._data.qpos[self._qpos] += offset

    def step(self, seconds: float) -> None:
        """Advance by just that time, in equal physics steps of at most the longest."""
        count = max(math.ceil(seconds / self._longest - 1e-6), 1)
        self._model.opt.timestep = seconds / count
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        self._drive()
        held = self._data.qpos[self._qpos].copy() if self.blocked.any() else None
        self._mujoco.mj_step(self._model, self._data)
        if held is not None:
            self._data.qpos[self._qpos[self.blocked]] = held[self.blocked]
            self._data.qvel[self._dof[self.blocked]] = 0.0

    def _drive(self) -> None:
        if self._law is None:  # servos of a world, as they were in training
            self._data.ctrl[self._actuator] = self._goal
            return
        q, v = self._data.qpos[self._qpos], self._data.qvel[self._dof]
        if self._law == "position":
            force = self._implicit(self._kp * (self._goal - q) - self._kd * v, self._kp)
        elif self._law == "velocity":
            force = self._implicit(self._kd * (self._goal - v), 0.0)
        else:
            force = self._goal
        # What the joint's own controller compensates (gravity, Coriolis), as those of xArm, FR3 and ros2_control robots
        # do, but for what a model says to be compensated already.
        bias = self._data.qfrc_bias[self._dof] - self._data.qfrc_gravcomp[self._dof] if self._law != "effort" else 0.0
        self._data.qfrc_applied[self._dof] = np.clip(force + bias, -self._effort, self._effort)

    def _implicit(self, force: np.ndarray, kp: np.ndarray | float) -> np.ndarray:
        """(J,) force of a linear law at the end of this physics step: at its beginning light links would swing.

        Source: Tan, Liu and Turk, Stable Proportional-Derivative Controllers, 2011.
        """
        dt, mass = self._model.opt.timestep, self._mass
        self._mujoco.mj_fullM(self._model, self._data, mass)
        own = mass[np.ix_(self._dof, self._dof)]
        stiff = np.diag(dt * (self._kd + dt * kp))
        # a = inverse(M + stiff) (force - dt kp v), and what makes that acceleration
        return own @ np.linalg.solve(own + stiff, force - dt * kp * self._data.qvel[self._dof])

    def _position_actuators(self) -> np.ndarray | None:
        """(J,) index of each joint's position actuator, None unless every joint has one."""
        model, mujoco = self._model, self._mujoco
        servos = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
        servos &= model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_AFFINE)
        servos &= model.actuator_biasprm[:, 1] < 0.0
        own = [np.flatnonzero(servos & (model.actuator_trnid[:, 0] == model.joint(name).id)) for name in self.names]
        return np.array([found[0] for found in own], int) if all(map(len, own)) else None

    def _find_law(self) -> None:
        model, joint = self._model, int(self._mujoco.mjtTrn.mjTRN_JOINT)
        self._law: str | None = self.mode
        if self.mode == "position" and self._actuator is not None and self.keeps_servos:
            self._law = None
        else:
            if self.mode == "position" and self._actuator is not None:
                self._take_gains(self._actuator)
            for i in np.flatnonzero(model.actuator_trntype == joint):
                if model.jnt_dofadr[model.actuator_trnid[i, 0]] in self._dof:  # it must not work against the law
                    model.actuator_gainprm[i] = model.actuator_biasprm[i] = 0.0
        if self._law == "position" and not (self._kp > 0.0).all():
            raise ValueError("the model has no position actuators; give every joint of the RobotSpec kp and kd")
        if self._law == "velocity" and not (self._kd > 0.0).all():
            raise ValueError("velocity commands need kd > 0 for every joint of the RobotSpec")

    def _take_gains(self, servos: np.ndarray) -> None:
        """The law of the model's own position servos."""
        model = self._model
        gear = model.actuator_gear[servos, 0]
        self._kp, self._kd = (
            -(gear**2) * model.actuator_biasprm[servos, 1],
            -(gear**2) * model.actuator_biasprm[servos, 2],
        )
        cut = model.actuator_forcelimited[servos].astype(bool)
        sides = np.abs(model.actuator_forcerange[servos])
        most = np.abs(gear) * np.where(sides, sides, np.inf).min(axis=1)  # one that pushes to one side has one
        self._effort = np.where(cut, np.minimum(self._effort, most), self._effort)


class WorldPlant(ModelPlant):
    """The robot of a world of `sim/worlds`, with the world's reset, task and success.

    Args:
        world: what it stands in.
        joints: names of the commanded joints; others keep the control of the world's reset.
        mode: command mode.
        seed: of resets and tasks.
        kp: see `ModelPlant`.
        kd: see `ModelPlant`.
        effort: see `ModelPlant`.
        timestep: see `ModelPlant`.
        home: see `ModelPlant`; () starts where the world's reset puts the robot.
    """

    keeps_servos = True  # policies were trained on them

    def __init__(
        self,
        world: World,
        joints: Sequence[str],
        *,
        seed: int = 0,
        **rest: Any,
    ) -> None:
        from robot_rl.sim.draw import Streams  # torch comes with the worlds' types: only those who ask for one pay
        from robot_rl.sim.port import Window

        self.world = world
        self._streams = Streams(1, seed)
        self._started = False
        super().__init__(self.world.mjcf(), joints, **rest)
        self._window = Window(self._model, self.world)
        self._external = self._window.external(joints)
        self._started = True
        self.reset(seed)

    @property
    def task(self) -> dict[str, np.ndarray]:
        """The variables that a perception would tell: goals that are drawn, and poses of free objects."""
        found = {name: self._window.view.task[name][0] for name in self._external if name != "objects"}
        if "objects" in self._external:
            found["objects"] = self._data.qpos[self._window.free]
        return {name: np.array(value, float) for name, value in found.items()}

    @property
    def success(self) -> bool:
        """The world's own judgement of the present state."""
        self._window.read(self._data)
        return bool(np.asarray(self.world.success(self._window.view))[0])

    def reset(self, seed: int) -> None:
        """A new episode of the world; seeds below 0 continue the stream."""
        if not self._started:
            self._mujoco.mj_forward(self._model, self._data)
            return
        if seed >= 0:
            self._streams.seed(seed)
        start = self.world.reset(self._streams.draw(np.arange(1)), 1, xp)
        self._mujoco.mj_resetData(self._model, self._data)
        self._told = 0.0  # when the world's own variables were last brought up to date [s]
        self._data.qpos[:], self._data.qvel[:] = start.qpos[0], start.qvel[0]
        self._data.ctrl[:] = start.ctrl[0]
        if self._home is not None:
            self._data.qpos[self._qpos] = self._home
        self._window.view.task = {name: np.array(value) for name, value in start.task.items()}
        self._mujoco.mj_forward(self._model, self._data)
        self._refresh()
        self.hold()

    def scene(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Positions and drawn goals of this moment, for a photographer."""
        return super().scene()[0], {name: np.array(value) for name, value in self._window.view.task.items()}

    def _markers(self) -> Mapping[str, str]:
        return parts_of(self.world).markers

    def renew_task(self) -> None:
        """Draw a new goal; objects and robot stay where they are."""
        start = self.world.reset(self._streams.draw(np.arange(1)), 1, xp)
        for name in self._external:
            if name in start.task:
                self._window.view.task[name] = np.array(start.task[name])
        self._refresh()

    def _step(self) -> None:
        """One of the physics, and the world's own variables at its own rate."""
        super()._step()
        if self.time - self._told >= 1.0 / self.world.control_hz - 1e-6:
            self._told = self.time
            self._refresh()

    def _refresh(self) -> None:
        self._window.read(self._data)
        self.world.update(self._window.view)


def _load_apart(model: str, joints: Sequence[str], home: Sequence[float] | None) -> tuple[ModuleType, MjModel]:
    """As `tool.load`; links that overlap where the robot begins do not touch: capsules around the meshes of a base and
    of the link that turns on it would hold the joint. Floors, tables and what lies on them stay as they are."""
    mujoco, compiled = load(model)
    data, (qpos, dof) = mujoco.MjData(compiled), addresses(mujoco, compiled, joints)
    if home is not None and len(home):
        data.qpos[qpos] = home
    mujoco.mj_forward(compiled, data)
    links: set[int] = set()
    for body in compiled.dof_bodyid[dof].tolist():
        links |= {int(compiled.body_parentid[body]), body}
    links = bodies_below(compiled, links - {0})
    touching = compiled.geom_bodyid[data.contact.geom].tolist()
    pairs = {(first, second) for first, second in touching if {first, second} <= links}
    if not pairs:
        return mujoco, compiled
    from robot_rl.sim import robot_model

    text = model.lstrip().startswith("<")
    spec = mujoco.MjSpec.from_string(model) if text else robot_model.load(model).spec
    for i, body in enumerate(spec.bodies):
        body.name = body.name or f"body_{i}"  # as robot_model.load does: what is kept apart is so by name
    names = [body.name for body in spec.bodies]
    for first, second in sorted(pairs):
        spec.add_exclude(bodyname1=names[first], bodyname2=names[second])
    return mujoco, spec.compile()


def _row(values: Sequence[float], count: int, default: float) -> np.ndarray:
    row = np.array(values, float) if len(values) else np.full(count, default)
    if row.shape != (count,):
        raise ValueError(f"gains have {row.size} entries, expected {count}: one per joint")
    return row
