"""Any arm with a card in our tasks: its scene, its two ways of being commanded, and places that it can reach.

Servos, limits, home and workspace are the card's; masses and shapes are the model's. Gravity is compensated, as robot
controllers do. Starts and targets are the tool's places in poses that touch nothing, so each of them can be reached.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING

import array_api_compat
import numpy as np

from robot_rl.sim.arm import TIMESTEP, Arm, check_command, shorten
from robot_rl.sim.arrays import constant
from robot_rl.sim.kinematics import Chain
from robot_rl.sim.model_text import write_xml
from robot_rl.sim.robot_model import (
    add_floor,
    add_joint,
    add_servo,
    add_sky,
    calm_springs,
    digest,
    hold_others,
    load,
    mujoco,
    strip,
)
from robot_rl.sim.robot_probe import RobotProbe
from robot_rl.sim.world import View
from robot_rl.types import Array
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjsElement, MjSpec

TOOL = "robot_rl_tool"
CAMERAS = {"front": 0.0, "side": 0.5 * np.pi}
"""About the vertical, from where the first one stands [rad]: two at a right angle, which together show depth."""
_POSES = 3000
_TAKEN = ("goal", "cube", "peg")
_SPEED, JOINT_SPEED, _REACH = 0.4, 1.5, 0.8  # m/s and rad/s at action 1 of an arm that reaches so far [m]


class CardArm(Arm):
    """An arm as `Arm` describes it, of the robot that a card tells of.

    "ee" moves the tool's point and leaves its direction to the joints, which drift towards home where they are free.

    Args:
        card: of the robot.
        action: "ee" or "joint".
        control_hz: decisions per second; 1 / (control_hz * 5 ms) must be whole.
        start_pose: the state also tells where the tip was at the start ("ee").

    Raises:
        ValueError: the model cannot be read, does not have what the card names, or hardly reaches the workspace.

    Attributes:
        scale: of what is in proportion to the arm, 1 where it reaches 0.8 m or further.
    """

    grasping = False
    cameras = tuple(CAMERAS)

    def __init__(self, card: Card, *, action: str, control_hz: float, start_pose: bool = False) -> None:
        check_command(action, control_hz, start_pose)
        if card.workspace is None:
            raise ValueError(f"the card of {card.name} has no workspace, from which targets are drawn; write one")
        stored = card.model_dump_json(), digest(card.model.path)
        self.card, self.xml = card, _scene(*stored, self.grasping)
        model = mujoco.MjModel.from_xml_string(self.xml)
        self.chain = Chain(model, TOOL)
        names = tuple(joint.name for joint in card.joints)
        if self.chain.joints != names:
            raise ValueError(
                f"the card of {card.name} lists the joints {', '.join(names)}; those from base to {card.tool} in the "
                f"model are {', '.join(self.chain.joints)}"
            )
        self.first = int(model.joint(names[0]).qposadr[0])
        self.low, self.high, self.home = card.workspace.lower, card.workspace.upper, card.home
        self._neutral, self._others = np.array(model.qpos0), model.nv
        fingers = card.gripper.joints if card.gripper is not None else ()
        self._held = [float(model.qpos0[model.joint(name).qposadr[0]]) for name in fingers]
        self._poses, tips = _reachable(*stored)
        self._velocity = card.limit("velocity")
        reach = float(np.linalg.norm(tips, axis=1).max())
        self.scale = min(1.0, reach / _REACH)
        speed = _SPEED * self.scale
        self.leash = 1.5 * speed / 10.0
        joint_speeds = tuple(min(JOINT_SPEED, limit) for limit in self._velocity)
        self._describe(action, control_hz, False, False, start_pose, (speed, 0.0), joint_speeds)

    def begin(self, start: Array, goal: Array) -> tuple[Array, Array, dict[str, Array], Array]:
        """Rest in one reachable pose, and the tool's place in another.

        Args:
            start: (n,) in [0, 1), which pose.
            goal: (n,) in [0, 1), which other one.

        Returns:
            (n, nq) positions, (n, nu) controls, the arm's variables for `view.task`, (n, 3) goal [m].
        """
        xp = array_api_compat.array_namespace(start)
        # In double precision: the joints that are commanded are kept so.
        poses, held = (constant(values, start, dtype=xp.float64) for values in (self._poses, self._held))
        rows = [xp.astype(unit * poses.shape[0], xp.int64) for unit in (start, goal)]
        joints = xp.take(poses, rows[0], axis=0)
        both, _ = self.chain.forward(xp.concat([joints, xp.take(poses, rows[1], axis=0)], axis=0))
        qpos, task = self._rest(joints, both[: start.shape[0]])
        fingers = xp.zeros_like(joints[:, :1]) + held
        return qpos, xp.concat([joints, fingers], axis=1), task, both[start.shape[0] :]

    def _rest(self, joints: Array, tip: Array) -> tuple[Array, dict[str, Array]]:
        """(n, robot) positions at rest in (n, J) joints with the tip at (n, 3), and the arm's variables."""
        xp = array_api_compat.array_namespace(joints)
        blank, neutral = xp.zeros_like(joints[:, :1]), constant(self._neutral, joints)
        qpos = [blank + neutral[: self.first], joints, blank + neutral[self.first + self.count :]]
        return xp.concat(qpos, axis=1), self._variables(joints, tip, blank[:, 0])

    def still(self, qpos: Array) -> Array:
        """(n, nv) zero velocities."""
        xp = array_api_compat.array_namespace(qpos)
        return xp.zeros((qpos.shape[0], self._others), dtype=qpos.dtype, device=array_api_compat.device(qpos))

    def _move_tip(self, view: View, delta: Array) -> Array:
        command = view.task["command"]
        linearised = self.chain.jacobian(command)
        target = self._target(view, linearised[0] + delta)
        home = constant(self.home, command)
        joints = self.chain.approach(command, linearised, target, home)
        return self._toward(view, self.chain.approach(joints, self.chain.jacobian(joints), target, home))

    def _toward(self, view: View, joints: Array) -> Array:
        """(N, J) commanded joints on the way to these, all by one factor: none too fast, nor too far ahead of the arm.

        Cut one by one, those of an arm that lags would take the tip where nobody asked, out of its box too.
        """
        xp, command = view.xp, view.task["command"]
        delta = joints - command
        most = constant(self._velocity, command) / self.control_hz
        room = self.joint_leash - xp.sign(delta) * (command - self.measure(view))
        # A joint that something holds does not keep the others from moving on.
        return self._joints(view, command + shorten(delta, xp.minimum(most, xp.maximum(room, 0.1 * most))))

    def _solve(self, command: Array, measured: Array, move: Array, turn: Array | None) -> Array:
        target = self.chain.forward(measured)[0] + move
        joints, home = command, constant(self.home, command)
        for _ in range(3):
            joints = self.chain.approach(joints, self.chain.jacobian(joints), target, home)
        return joints


@lru_cache(8)
def _scene(text: str, now: str, grasps: bool = False) -> str:
    """The robot of a card on a floor, with its goal as a ball, as MJCF text.

    Args:
        text: of the card.
        now: SHA-256 of its model, so that a file that changes is read again.
        grasps: whether its fingers touch with the hulls of their meshes.

    Raises:
        ValueError: the model cannot be read, or does not have what the card names.
    """
    card = Card.model_validate_json(text)
    if card.model.sha256 and now and now != card.model.sha256:
        sys.stderr.write(
            f"the model of {card.name}, {card.model.path}, has changed since its card was stored (SHA-256 {now[:12]}, "
            f"then {card.model.sha256[:12]}): what was learned with it may not hold\n"
        )
    spec = load(card.model.path, hand=card.joints[-1].name if grasps else "").spec
    strip(spec, spec.actuators, spec.keys, spec.sensors, spec.lights, spec.cameras)
    names = {joint.name for joint in card.joints}
    last = spec.joint(card.joints[-1].name)
    if last is not None:  # the hand's own joints stay; wheels, heads and second arms are held
        names |= {joint.name for joint in last.parent.find_all(mujoco.mjtObj.mjOBJ_JOINT)}
        hold_others(spec, names)
    _surroundings(spec, card)
    for body in spec.bodies:
        body.gravcomp = 1.0
    for joint in card.joints:
        add_joint(spec, card.name, joint)
    if card.gripper is not None:
        for name in card.gripper.joints:
            add_servo(spec, card.name, name, (card.gripper.kp, card.gripper.kd), card.gripper.effort)
    site = spec.site(card.tool)
    body = site.parent if site is not None else spec.body(card.tool)
    if body is None:
        raise ValueError(f"the model of {card.name} has no site or body '{card.tool}', the card's tool")
    made = body.add_site(name=TOOL)
    if site is not None:
        made.pos, made.quat, made.alt = site.pos, site.quat, site.alt
    for first, second in card.ignore:
        spec.add_exclude(bodyname1=first, bodyname2=second)
    try:
        calm_springs(spec)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"the card of {card.name} does not fit its model: {error}") from error
    return write_xml(spec)


def _surroundings(spec: MjSpec, card: Card) -> None:
    """Physics options, floor, light, camera, goal."""
    for item in (*spec.bodies, *spec.geoms):  # a file's own must not clash with what tasks add
        item.name = _own(item.name)
    for item in spec.excludes:
        item.bodyname1, item.bodyname2 = _own(item.bodyname1), _own(item.bodyname2)
    for item in spec.pairs:
        item.geomname1, item.geomname2 = _own(item.geomname1), _own(item.geomname2)
    for item in spec.equalities:
        if item.objtype == mujoco.mjtObj.mjOBJ_BODY:
            item.name1, item.name2 = _own(item.name1), _own(item.name2)
    option = spec.option
    option.timestep, option.integrator = TIMESTEP, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.iterations, option.ls_iterations = 20, 10
    add_floor(spec)
    spec.worldbody.add_light(pos=[1.0, -1.5, 3.0], dir=[-0.3, 0.45, -0.85], diffuse=[0.6, 0.6, 0.6])
    assert card.workspace is not None
    low, high = np.array(card.workspace.lower), np.array(card.workspace.upper)
    centre, size = 0.5 * (low + high) * np.array([0.7, 0.7, 0.85]), float(np.abs([low, high]).max())
    away = np.array([0.95, -1.15, 0.75]) * 1.2 * size
    for name, turn in CAMERAS.items():
        aim(spec.worldbody.add_camera(name=name, fovy=46.0), centre, away, turn)
    goal = spec.worldbody.add_body(name="goal", mocap=True)
    goal.add_geom(
        name="goal", type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.02, 0.0, 0.0], contype=0, conaffinity=0,
        rgba=[0.15, 0.8, 0.35, 0.6],
    )  # fmt: skip
    add_sky(spec)


def _own(name: str) -> str:
    return f"own_{name}" if name in _TAKEN else name


def aim(camera: MjsElement, centre: np.ndarray, away: np.ndarray, turn: float) -> None:
    """Look at (3,) centre from (3,) `away` of it [m], turned by `turn` [rad] about the vertical."""
    sine, cosine = np.sin(turn), np.cos(turn)
    away = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]]) @ away
    side = np.cross([0.0, 0.0, 1.0], away)
    up = np.cross(away, side)
    camera.pos = centre + away
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = [*(side / np.linalg.norm(side)), *(up / np.linalg.norm(up))]


@lru_cache(8)
def _reachable(text: str, now: str) -> tuple[np.ndarray, np.ndarray]:
    """(K, J) poses around home that touch nothing with the tool in the workspace, and (K, 3) where it is.

    Raises:
        ValueError: hardly any pose is so.
    """
    card = Card.model_validate_json(text)
    model = mujoco.MjModel.from_xml_string(_scene(text, now))
    probe = RobotProbe(model, [model.joint(joint.name).id for joint in card.joints], TOOL)
    poses, tips = probe.cloud(np.array(card.home), _POSES)
    assert card.workspace is not None
    tips = tips.reshape(-1, 3)  # also where there are none
    inside = ((tips >= card.workspace.lower) & (tips <= card.workspace.upper)).all(axis=1)
    if inside.sum() < 50:
        raise ValueError(
            f"of {_POSES} poses around the home of {card.name} only {int(inside.sum())} are free of contacts with the "
            "tool in its workspace; widen workspace, or choose another home"
        )
    return poses[inside], tips[inside]
