"""An arm with a gripper from a card, its tool pointing down: how its fingers grasp, and where."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.arm import FAR, STROKE, cut
from robot_rl.sim.arrays import constant
from robot_rl.sim.card_arm import TOOL, CardArm
from robot_rl.sim.downward_ik import DownwardIk
from robot_rl.sim.hand_grip import CUBE, GRASP, Grip, HandTrial, servo_of
from robot_rl.sim.hand_shapes import slice_meshes
from robot_rl.sim.kinematics import Chain
from robot_rl.sim.model_text import write_xml
from robot_rl.sim.robot_model import end_link, mujoco
from robot_rl.sim.robot_probe import RobotProbe
from robot_rl.sim.tool import bodies_below
from robot_rl.sim.world import View
from robot_rl.types import Array
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjModel

_AHEAD = 0.01  # m by which a tool frame has to be in front of the last joint to say where ahead is


class CardHand(CardArm):
    """`CardArm` that keeps the direction in which its fingers grasp pointing down (`DownwardIk`).

    Args:
        card: of the robot.
        action: "ee" (three moves) or "joint".
        control_hz: decisions per second.

    Raises:
        ValueError: the card has no gripper.
    """

    grasping = True

    def __init__(self, card: Card, *, action: str, control_hz: float) -> None:
        if card.gripper is None:
            raise ValueError(
                f"the card of {card.name} has no gripper, and this task needs one; take a model with fingers (robot-rl "
                "robot new finds them beyond the last joint of the arm), write gripper into the card, or train "
                "env=reach, which takes any arm"
            )
        super().__init__(card, action=action, control_hz=control_hz)
        self._text = card.model_dump_json()
        self._closed, self._opened = np.array(card.gripper.closed), np.array(card.gripper.open)

    def _take(self, half: float) -> str:
        """Find how the fingers grasp what is that wide [m]; the scene with such a cube."""
        xml, self.grip = _with_hand(self._text, self.xml, half)
        self._opened = self._closed + self.grip.opened * (self._opened - self._closed)
        return xml

    def _point(self, xml: str, site: str, others: int) -> MjModel:
        """Take a scene in which a site points down, and in which the last of qpos are not the robot's; its model."""
        self.xml, model = xml, mujoco.MjModel.from_xml_string(xml)
        assert self.card.gripper is not None
        self.chain = Chain(model, site)
        self._ik = DownwardIk(self.chain, self.home)
        self._finger = int(model.joint(self.card.gripper.joints[0]).qposadr[0])
        self.robot_size = model.nq - others
        self._neutral, self._others = np.array(model.qpos0[: self.robot_size]), model.nv
        return model

    def _move_tip(self, view: View, delta: Array) -> Array:
        command = view.task["command"]
        target = self._target(view, self.chain.forward(command)[0] + delta)
        return self._toward(view, self._ik.toward(command, target))

    def _fingers(self, action: Array) -> Array:
        opened, closed = constant(self._opened, action), constant(self._closed, action)
        return closed + 0.5 * (action[:, -1:] + 1.0) * (opened - closed)

    def opening(self, view: View) -> Array:
        """(N,) share of open of the first finger, times `STROKE`, so that worlds scale it as the desk arm's."""
        first = view.qpos[:, self._finger]
        return (first - float(self._closed[0])) * (STROKE / float(self._opened[0] - self._closed[0]))

    def _solve(self, command: Array, measured: Array, move: Array, turn: Array | None) -> Array:
        return self._ik.toward(command, self.chain.forward(measured)[0] + cut(move, FAR), 3)


@lru_cache(8)
def _with_hand(text: str, xml: str, half: float) -> tuple[str, Grip]:
    """The scene with a cube and a site where the fingers grasp it: z the way they reach, y the way they close."""
    card = Card.model_validate_json(text)
    assert card.gripper is not None
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    names = [joint.name for joint in card.joints]
    data.qpos[[int(model.joint(name).qposadr[0]) for name in names]] = card.home
    place = np.array
    seen = []
    moving = end_link(model, int(model.jnt_bodyid[model.joint(card.gripper.joints[0]).id]))
    for ends in (card.gripper.open, card.gripper.closed):
        for name, value in zip(card.gripper.joints, ends):
            data.qpos[int(model.joint(name).qposadr[0])] = value
        mujoco.mj_forward(model, data)
        seen.append(place(data.xipos[moving]))
    tool = model.site(TOOL)
    tip, frame = place(data.site_xpos[tool.id]), place(data.site_xmat[tool.id]).reshape(3, 3)
    hand = int(model.jnt_bodyid[model.joint(names[-1]).id])
    wrist = data.xanchor[model.joint(names[-1]).id]
    ahead = tip - wrist
    if np.linalg.norm(ahead) < _AHEAD:  # a tool frame in the wrist: the fingers say where ahead is
        bodies = [int(model.jnt_bodyid[model.joint(name).id]) for name in card.gripper.joints]
        ahead = np.mean(data.xipos[bodies], axis=0) - wrist
    # Along the tool's own axis where one points away from the hand, so that an offset finger tilts nothing.
    best = int(np.argmax(np.abs(frame.T @ ahead)))
    along = frame[:, best] * np.sign(frame[:, best] @ ahead)
    closing = seen[1] - seen[0]
    closing -= along * (along @ closing)
    closing /= np.linalg.norm(closing)
    turn = np.stack([np.cross(closing, along), closing, along], axis=1)
    own = data.xmat[hand].reshape(3, 3)
    spec = mujoco.MjSpec.from_string(xml)
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, (own.T @ turn).flatten())
    site = spec.body(model.body(hand).name).add_site(name=GRASP, pos=own.T @ (tip - data.xpos[hand]), quat=quat)
    spec.option.impratio = 4.0
    loops = any(tie.type in (mujoco.mjtEq.mjEQ_CONNECT, mujoco.mjtEq.mjEQ_WELD) for tie in spec.equalities)
    spec.option.noslip_iterations = 0 if loops else 4  # that pass would hold linkages
    for tie in spec.equalities:  # linkages that give way turn the fingers outwards
        tie.solimp[:2] = 0.99, 0.999
    cube = spec.worldbody.add_body(name=CUBE, pos=[100.0, 0.0, half])
    cube.add_freejoint(name=CUBE)
    cube.add_geom(
        name=CUBE, type=mujoco.mjtGeom.mjGEOM_BOX, size=[half] * 3, mass=0.06, rgba=[0.85, 0.22, 0.2, 1.0],
        priority=1, friction=[1.5, 0.02, 0.0001], solref=[0.01, 1.0], solimp=[0.95, 0.99, 0.001, 0.5, 2.0],
    )  # fmt: skip
    below = {model.body(part).name for part in (hand, *bodies_below(model, [hand]))}
    probe = RobotProbe(model, [model.joint(name).id for name in names], TOOL)
    probe.place(np.array(card.home))
    for pair in sorted(probe.touching()):  # hulls of links that overlap where they are joined
        if "" not in pair and below.issuperset(pair):
            spec.add_exclude(bodyname1=pair[0], bodyname2=pair[1])
    pose = dict(zip(names, card.home))
    grip = HandTrial(spec, card.gripper, pose, half).find()
    if isinstance(grip, str):  # the hull of a jaw that is not convex fills the gap
        slice_meshes(spec, model, data, {hand, *bodies_below(model, [hand])}, along)
        grip = HandTrial(spec, card.gripper, pose, half).find()
    if isinstance(grip, str):
        raise ValueError(
            f"{card.name} cannot grasp: {grip}. Check tool and gripper (open, closed, effort) of its card; robot-rl "
            "robot show draws them"
        )
    site.pos = site.pos + own.T @ turn @ grip.place
    for name in card.gripper.joints:
        kp, kd, armature = servo_of(card.gripper, grip.gain)
        spec.actuator(name).set_to_position(kp=kp, kv=kd)
        joint = spec.joint(name)
        joint.armature = max(armature, joint.armature)
    # the size of the scene, not of the way to where the cube waits: near clipping of cameras is a share of it
    spec.stat.extent, spec.stat.center = model.stat.extent, model.stat.center
    spec.compile()
    return write_xml(spec), grip


def places_before(card: Card, random: np.random.Generator, count: int) -> np.ndarray:
    """(count, 2) places on the floor before a robot, about as far as its workspace is [m]."""
    assert card.workspace is not None
    middle = 0.5 * (np.array(card.workspace.lower) + card.workspace.upper)
    distance, angle = random.uniform(0.6, 1.6, count) * np.linalg.norm(middle[:2]), random.uniform(-0.4, 0.4, count)
    angle += float(np.arctan2(middle[1], middle[0]))
    return np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1)


def lean_of(card: Card) -> float:
    """How far the tool may lean above its place [rad]: of an arm of five joints or less further."""
    return 0.25 if len(card.joints) > 5 else 0.6


def find_free(model: MjModel, card: Card, poses: np.ndarray) -> np.ndarray:
    """(K,) bool, in which of (K, J) poses nothing but the cube, which lies elsewhere, touches."""
    probe = RobotProbe(model, [model.joint(joint.name).id for joint in card.joints], GRASP)
    free = np.zeros(len(poses), bool)
    for i, pose in enumerate(poses):
        probe.place(pose)
        free[i] = not {pair for pair in probe.touching() if CUBE not in pair}
    return free
