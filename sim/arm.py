"""The desk arm that the manipulation worlds share: its model, its two ways of being commanded, and its own state.

Either way the answer is joint position targets, so a policy runs on any arm that takes those. Moves are added to the
last command, not to the measured pose, so that an arm that sags under load does not creep; a leash keeps the command
near the measured pose, which bounds the force of a push.
"""

from __future__ import annotations

from types import ModuleType
from xml.etree import ElementTree

import array_api_compat

from robot_rl.sim.arm_cameras import Aim, place_cameras
from robot_rl.sim.arrays import constant
from robot_rl.sim.kinematics import Chain
from robot_rl.sim.tool import load
from robot_rl.sim.world import View, asset
from robot_rl.types import Array, Options
from robot_rl.types.options import Number, Positive

TIMESTEP = 0.005
HOME = (0.0, 0.1, 0.9, 0.0, 0.57, 0.0)
"""Joint positions above the middle of the table, tool pointing down; where inverse kinematics starts."""
STROKE = 0.08
"""Metres between the open fingers."""

_YAW = 1.2  # rad either way
FAR = 0.1  # m that far wishes are cut to, so that inverse kinematics stays near its start

# Scales that bring the state to about unit size; learners see it as it is.
_TIP, _SPEED, _LAG, _JOINT, _JOINT_LAG = 0.15, 0.3, 0.02, 0.5, 0.1


def scene(objects: str = "", *, hand: str = "", aim: Aim | None = None) -> str:
    """The arm's model with more bodies in it, as one MJCF string.

    Args:
        objects: elements for the world body.
        hand: elements fixed to the hand; its x axis is the direction of the tool.
        aim: of the cameras; None leaves `front` and `wrist` where the model has them, and there is no `side`.
    """
    root = ElementTree.fromstring(asset("arm/arm.xml"))
    if aim is not None:
        place_cameras(root, aim)
    for parent, text in ((root.find("worldbody"), objects), (root.find(".//body[@name='link6']"), hand)):
        if parent is not None:
            parent.extend(ElementTree.fromstring(f"<group>{text}</group>"))
    return ElementTree.tostring(root, encoding="unicode")


class ArmOptions(Options):
    """Where a world's arm moves, and how fast."""

    low: tuple[Number, Number, Number]
    """Lower corner of the box that the commanded tip stays in ("ee"), m."""
    high: tuple[Number, Number, Number]
    """Its upper corner, m."""
    gripper: bool = False
    """Whether the last action opens and closes the fingers; otherwise they stay as they started."""
    yaw: bool = False
    """Whether "ee" also turns the tool about the vertical."""
    speed: Positive = 0.4
    """m/s along each axis at action 1."""
    turn_speed: Positive = 1.5
    """rad/s of the yaw at action 1."""
    joint_speed: Positive = 1.5
    """rad/s at action 1."""
    leash: Positive = 0.06
    """m that the commanded tip may be ahead of the measured one ("ee")."""
    site: str = "tip"
    """What counts as the tip; its z axis is the direction of the tool."""


class Arm:
    """Six joints and two fingers, commanded by joint moves or by moves of the tool tip.

    Its part of `qpos` and of the controls comes first: six joints, two fingers. Its variables in `view.task` are
    "command" (N, count) joint targets in rad, "tip" (N, 3) in m, "tip_velocity" (N, 3) in m/s, the mean over the last
    control step, "tip_lag" (N, 3) in m, command minus measured, and "yaw" (N,) in rad.

    Args:
        options: where and how fast it moves.
        action: "ee" for moves of the tool tip, which keeps pointing down, or "joint" for moves of the six joints.
        control_hz: decisions per second; 1 / (control_hz * 5 ms) must be whole.
        model: MJCF of the scene; None is the bare arm.
        start_pose: the state also tells where the tip was at the start, for policies that think in that frame ("ee").

    Raises:
        ValueError: unknown action, or a rate that does not divide the physics rate.

    Attributes:
        home: (count,) joint positions about which the state is measured.
        first: index of its first joint in qpos and qvel.
        count: joints.
        joint_leash: how far the command of a joint may be ahead of it, rad.
        xml: MJCF of the scene that it is in.
        cameras: names of those that may be rendered.
    """

    home: tuple[float, ...] = HOME
    first = 0
    cameras: tuple[str, ...] = ("front", "side", "wrist")

    def __init__(
        self,
        options: ArmOptions,
        *,
        action: str,
        control_hz: float,
        model: str | None = None,
        start_pose: bool = False,
    ) -> None:
        check_command(action, control_hz, start_pose)
        o = options
        self.xml = model or scene()
        self.chain = Chain(load(self.xml)[1], o.site)
        self.low, self.high, self.leash = o.low, o.high, o.leash
        self._describe(action, control_hz, o.gripper, o.yaw, start_pose, (o.speed, o.turn_speed), (o.joint_speed,) * 6)

    def _describe(
        self,
        action: str,
        control_hz: float,
        gripper: bool,
        yaw: bool,
        start_pose: bool,
        speeds: tuple[float, float],
        joint_speeds: tuple[float, ...],
    ) -> None:
        """Names and sizes of what goes in and out, for the chain at hand."""
        self.mode, self.control_hz = action, float(control_hz)
        self.count = len(self.chain.joints)
        self.gripper, self.yaw, self._start_pose = gripper, yaw, start_pose
        if action == "ee":
            names = ("tip_dx", "tip_dy", "tip_dz") + ("tip_dyaw",) * yaw
            steps = (speeds[0] / control_hz,) * 3 + (speeds[1] / control_hz,) * yaw
            units = ("m", "m", "m") + ("rad",) * yaw
        else:
            names = tuple(f"{joint}_delta" for joint in self.chain.joints)
            steps = tuple(speed / control_hz for speed in joint_speeds)
            units = tuple("rad" if hinge else "m" for hinge in self.chain.hinges)
        self.steps = steps
        self.joint_leash = 0.1 + max(steps)
        self.action_names = names + ("gripper_opening",) * gripper
        self.action_low = tuple(-step for step in steps) + (0.0,) * gripper
        self.action_high = steps + (STROKE,) * gripper
        self.action_units = units + ("m",) * gripper
        self.state_names = tuple(f"{name}_{axis}" for name in ("tip", "tip_velocity", "tip_lag") for axis in "xyz")
        self.state_names += ("opening",) * gripper + ("yaw",) * yaw
        if start_pose:
            self.state_names += ("start_x", "start_y", "start_z") + ("start_yaw",) * yaw
        if action == "joint":
            self.state_names += tuple(f"{name}_position" for name in self.chain.joints)
            self.state_names += tuple(f"{name}_lag" for name in self.chain.joints)

    def start(self, tip: Array, yaw: Array, opening: float) -> tuple[Array, dict[str, Array]]:
        """Rest with the tool pointing down.

        Args:
            tip: (n, 3) position of the tip, m.
            yaw: (n,) rad.
            opening: distance of the fingers, m.

        Returns:
            (n, 8) positions, which are the controls as well, and the arm's variables for `view.task`.
        """
        xp = array_api_compat.array_namespace(tip)
        home = constant(HOME, tip)
        joints = self.chain.solve(xp.zeros_like(tip[:, :1]) + home, tip, downward(yaw), iterations=12)
        reached, _ = self.chain.forward(joints)
        fingers = xp.zeros_like(tip[:, :2]) + 0.5 * opening
        return xp.concat([joints, fingers], axis=1), self._variables(joints, reached, yaw)

    def _variables(self, joints: Array, tip: Array, yaw: Array) -> dict[str, Array]:
        """Those of `view.task` at rest: (n, count) joints, (n, 3) tip and (n,) yaw."""
        xp = array_api_compat.array_namespace(tip)
        zero = xp.zeros_like(tip)
        task = {"command": joints, "tip": tip, "tip_velocity": zero, "tip_lag": zero + 0.0, "yaw": yaw}
        if self._start_pose:
            task["start"] = xp.concat([tip, yaw[:, None]], axis=1)
        return task

    def adopt(self, view: View) -> None:
        """Take the joints in `view.qpos` as commanded and measured pose: an episode begins at a measured robot."""
        view.task["command"][...] = self.measure(view)
        self.update(view)
        task = view.task
        task["tip_velocity"][...] = 0.0
        if self._start_pose:
            task["start"][...] = view.xp.concat([task["tip"], task["yaw"][:, None]], axis=1)

    def control(self, view: View, action: Array) -> Array:
        """Advance the command by (N, A) actions in [-1, 1] and return (N, nu) position targets."""
        xp = view.xp
        command = view.task["command"]
        action = xp.astype(action, command.dtype)
        delta = action[:, : len(self.steps)] * constant(self.steps, command)
        joints = self._move_tip(view, delta) if self.mode == "ee" else self._joints(view, command + delta)
        command[...] = joints
        fingers = self._fingers(action) if self.gripper else xp.astype(view.ctrl[:, self.count :], command.dtype)
        return xp.concat([joints, fingers], axis=1)

    def _move_tip(self, view: View, delta: Array) -> Array:
        """(N, count) commanded joints after (N, D) moves of the tip [m, rad]."""
        xp, command = view.xp, view.task["command"]
        linearised = self.chain.jacobian(command)
        target = self._target(view, linearised[0] + delta[:, :3])
        yaw = xp.zeros_like(delta[:, 0])
        if self.yaw:
            yaw = xp.clip(_yaw(xp, linearised[1]) + delta[:, 3], -_YAW, _YAW)
        turn = downward(yaw)
        joints = self.chain.correct(command, linearised, target, turn)
        return self.chain.solve(joints, target, turn, iterations=1)

    def _fingers(self, action: Array) -> Array:
        """(N, fingers) position targets of (N, A) actions, whose last is the opening."""
        finger = (action[:, -1:] + 1.0) * (0.25 * STROKE)
        return array_api_compat.array_namespace(action).concat([finger, finger], axis=1)

    def measure(self, view: View) -> Array:
        """(N, count) joint positions, rad."""
        return view.qpos[:, self.first : self.first + self.count]

    def _target(self, view: View, wanted: Array) -> Array:
        """The commanded tip: near the measured one, and in the box."""
        xp, measured = view.xp, view.task["tip"]
        target = xp.minimum(xp.maximum(wanted, measured - self.leash), measured + self.leash)
        return xp.minimum(xp.maximum(target, constant(self.low, wanted)), constant(self.high, wanted))

    def _joints(self, view: View, wanted: Array) -> Array:
        """The commanded joints: near the measured ones, and within their limits."""
        xp, measured = view.xp, self.measure(view)
        leash = self.joint_leash
        joints = xp.minimum(xp.maximum(wanted, measured - leash), measured + leash)
        return xp.minimum(xp.maximum(joints, constant(self.chain.low, wanted)), constant(self.chain.high, wanted))

    def update(self, view: View) -> None:
        """Recompute the tip's variables in `view.task` after a control step."""
        xp, task = view.xp, view.task
        count = view.qpos.shape[0]
        measured = xp.astype(self.measure(view), task["command"].dtype)
        # One pass over measured and commanded joints: the fixed cost of an array operation is what counts here.
        position, turn = self.chain.forward(xp.concat([measured, task["command"]], axis=0))
        tip = position[:count]
        task["tip_velocity"][...] = (tip - task["tip"]) * self.control_hz
        task["tip_lag"][...] = position[count:] - tip
        task["tip"][...] = tip
        task["yaw"][...] = _yaw(xp, turn[:count])

    def state(self, view: View) -> list[Array]:
        """The arm's part of "state" in the order of `state_names`, scaled, each (N, d)."""
        xp, task = view.xp, view.task
        tip = task["tip"]
        centre = constant([0.5 * (low + high) for low, high in zip(self.low, self.high)], tip)
        parts = [(tip - centre) / _TIP, task["tip_velocity"] / _SPEED, task["tip_lag"] / _LAG]
        if self.gripper:
            parts.append(xp.astype(self.opening(view) * (2.0 / STROKE) - 1.0, tip.dtype)[:, None])
        if self.yaw:
            parts.append(task["yaw"][:, None])
        if self._start_pose:
            parts.append((task["start"][:, :3] - centre) / _TIP)
            if self.yaw:
                parts.append(task["start"][:, 3:])
        if self.mode == "joint":
            measured = xp.astype(self.measure(view), tip.dtype)
            home = constant(self.home, tip)
            parts += [(measured - home) / _JOINT, (task["command"] - measured) / _JOINT_LAG]
        return parts

    def tool(self, view: View) -> dict[str, Array]:
        """Where the axes of the actions that are moves stand, for a safety layer outside the simulation.

        Returns:
            "position" and "velocity" (N, D), "low" and "high" (D,): tip and yaw [m, rad], or the six joints [rad]; with
            a gripper "gripper" (N, 1), its opening in units of the action.
        """
        xp, task = view.xp, view.task
        grip = {"gripper": (self.opening(view) * (2.0 / STROKE) - 1.0)[:, None]} if self.gripper else {}
        if self.mode == "joint":
            low, high = (constant(limit, view.qpos) for limit in (self.chain.low, self.chain.high))
            velocity = view.qvel[:, self.first : self.first + self.count]
            return {"position": self.measure(view), "velocity": velocity, "low": low, "high": high, **grip}
        position, velocity = [task["tip"]], [task["tip_velocity"]]
        if self.yaw:
            position.append(task["yaw"][:, None])
            velocity.append(xp.zeros_like(task["yaw"])[:, None])
        limits = (*self.low, *(-_YAW,) * self.yaw), (*self.high, *(_YAW,) * self.yaw)
        low, high = (constant(limit, task["tip"]) for limit in limits)
        position, velocity = xp.concat(position, axis=1), xp.concat(velocity, axis=1)
        return {"position": position, "velocity": velocity, "low": low, "high": high, **grip}

    def _state_joints(self, state: Array) -> tuple[Array, Array]:
        """(N, count) measured and commanded joints that a "state" observation tells (action "joint")."""
        first = len(self.state_names) - 2 * self.count
        home = constant(self.home, state)
        measured = state[:, first : first + self.count] * _JOINT + home
        return measured, measured + state[:, first + self.count : first + 2 * self.count] * _JOINT_LAG

    def told_lag(self, state: Array) -> Array:
        """(N, 3) commanded minus measured tip [m] that a "state" observation tells."""
        return state[:, 6:9] * _LAG

    def opening(self, view: View) -> Array:
        """(N,) distance of the finger pads, m."""
        return view.qpos[:, 6] + view.qpos[:, 7]

    def act(self, state: Array, move: Array, *, opening: Array | None = None, turn: Array | None = None) -> Array:
        """The action of a scripted controller that wants the commanded tip at measured tip + `move`.

        Args:
            state: (N, S) "state" observation.
            move: (N, 3) m.
            opening: (N,) distance of the fingers, m; needed when the gripper is an action.
            turn: (N,) rad to turn about the vertical; when the tool has a yaw.

        Returns:
            (N, A) in [-1, 1]; moves that are too long keep their direction.
        """
        xp = array_api_compat.array_namespace(state)
        steps = constant(self.steps, state)
        if self.mode == "ee":
            parts = [shorten((move - self.told_lag(state)) / steps[:3])]
            if turn is not None:
                parts.append((turn / self.steps[3])[:, None])
        else:
            measured, command = self._state_joints(state)
            parts = [shorten((self._solve(command, measured, move, turn) - command) / steps)]
        if opening is not None:
            parts.append((opening * (2.0 / STROKE) - 1.0)[:, None])
        return xp.clip(xp.concat(parts, axis=1), -1.0, 1.0)

    def _solve(self, command: Array, measured: Array, move: Array, turn: Array | None) -> Array:
        """(N, count) joints from the commanded ones that bring the tip to measured tip + `move`; see `act`."""
        xp = array_api_compat.array_namespace(measured)
        tip, rotation = self.chain.forward(measured)
        yaw = xp.zeros_like(tip[:, 0]) if turn is None else _yaw(xp, rotation) + turn
        return self.chain.solve(command, tip + cut(move, FAR), downward(yaw), iterations=3)


def check_command(action: str, control_hz: float, start_pose: bool) -> None:
    """Refuse a way of commanding an arm that there is not.

    Raises:
        ValueError: unknown action, a rate that does not divide the physics rate, or `start_pose` with moves of joints.
    """
    if start_pose and action != "ee":
        raise ValueError("start_pose goes with action='ee': moves of joints have no frame at the tip")
    if action not in ("ee", "joint"):
        raise ValueError(f"action is '{action}', expected 'ee' (moves of the tool tip) or 'joint' (joint moves)")
    substeps = 1.0 / (control_hz * TIMESTEP) if control_hz > 0 else 0.0
    if not 10 <= control_hz <= 50 or abs(substeps - round(substeps)) > 1e-6:
        raise ValueError(
            f"control_hz is {control_hz:g}, expected 10 to 50 with a whole number of {TIMESTEP * 1e3:g} ms physics "
            "steps per decision: 10, 12.5, 20, 25, 40 or 50"
        )


def downward(yaw: Array) -> Array:
    """(N, 3, 3) rotation of a tool that points down, turned by `yaw` (N,) in rad about the vertical."""
    xp = array_api_compat.array_namespace(yaw)
    sine, cosine, zero = xp.sin(yaw), xp.cos(yaw), xp.zeros_like(yaw)
    rows = [xp.stack(row, axis=-1) for row in ((cosine, sine, zero), (sine, -cosine, zero), (zero, zero, zero - 1.0))]
    return xp.stack(rows, axis=-2)


def marker(size: float) -> str:
    """A translucent ball of radius `size` m, as a mocap body "goal": pictures show it at `view.task["goal"]`."""
    return f'<body name="goal" mocap="true"><geom name="goal" size="{size}" material="goal"/></body>'


def span(unit: Array, low: tuple[float, ...], high: tuple[float, ...]) -> Array:
    """(n, d) float64 numbers in a box from (n, d) numbers in [0, 1)."""
    xp = array_api_compat.array_namespace(unit)
    first, last = (constant(corner, unit, dtype=xp.float64) for corner in (low, high))
    return first + xp.astype(unit, xp.float64) * (last - first)


def norm(x: Array) -> Array:
    """(N, ...) Euclidean length along the last axis."""
    xp = array_api_compat.array_namespace(x)
    return xp.sqrt(xp.sum(x * x, axis=-1))


def cut(vectors: Array, most: float) -> Array:
    """(N, d) vectors, none longer than that."""
    xp = array_api_compat.array_namespace(vectors)
    length = norm(vectors) / most
    return vectors / xp.maximum(length, xp.ones_like(length))[:, None]


def shorten(wish: Array, most: Array | float = 1.0) -> Array:
    """(N, d) rows scaled so that no entry exceeds `most`, () or (d,)."""
    xp = array_api_compat.array_namespace(wish)
    excess = xp.max(xp.abs(wish) / most, axis=1, keepdims=True)
    return wish / xp.maximum(excess, xp.ones_like(excess))


def time_cost(like: Array) -> dict[str, Array]:
    """The term "time" (N,) of a reward: -1 in every step, so that finishing early never loses reward."""
    return {"time": 0.0 * like - 1.0}


def _yaw(xp: ModuleType, turn: Array) -> Array:
    return xp.atan2(turn[:, 1, 0], turn[:, 0, 0])
