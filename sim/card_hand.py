"""An arm with a gripper from a card, its tool pointing down: places to grasp from, and fingers as a share of open."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

import array_api_compat
import numpy as np

from robot_rl.sim.arm import STROKE, Arm, downward, norm, shorten
from robot_rl.sim.arrays import constant, solve_definite
from robot_rl.sim.card_arm import JOINT_SPEED, TOOL, CardArm
from robot_rl.sim.hand_grip import CUBE, GRASP, Grip, HandTrial, bodies_below, servo_of
from robot_rl.sim.hand_shapes import slice_meshes
from robot_rl.sim.kinematics import Chain, rotation_error
from robot_rl.sim.robot_model import digest, end_link, mujoco
from robot_rl.sim.robot_probe import RobotProbe
from robot_rl.sim.world import View
from robot_rl.types import Array
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjModel

_TRIES, _FEWEST = 1500, 40
_TILT, _TILT_FIVE = 0.25, 0.6  # rad that a grasping pose may lean, and of an arm of five joints or less
_MARGIN = 0.1  # rad that joints of an arm that has some to spare keep to their limits in it
_AHEAD = 0.01  # m by which a tool frame has to be in front of the last joint to say where ahead is
_FAR, _TURN = 0.1, 0.3  # m and rad that a step of inverse kinematics goes at most
_DAMPING = 1e-2  # of the direction, squared [rad per rad]: what little freedom is left must not throw the arm about
_TOWARD_HOME = 0.1  # share of the way home that an arm with joints to spare goes in a step


class CardHand(CardArm):
    """`CardArm` that also opens and closes the fingers, and keeps the direction in which they grasp pointing down.

    Arms of five joints meet the place exactly and the direction as far as the rest of their freedom goes.

    Args:
        card: of the robot.
        action: "ee" (three moves and the fingers) or "joint".
        control_hz: decisions per second.
        half: half the edge of the cube on the floor, whose free joint comes last in qpos [m].

    Raises:
        ValueError: the card has no gripper, or hardly any place on the floor can be grasped from above.
    """

    grasping = True

    def __init__(self, card: Card, *, action: str, control_hz: float, half: float) -> None:
        if card.gripper is None:
            raise ValueError(
                f"the card of {card.name} has no gripper, and this task grasps; take a model with fingers (robot-rl "
                "robot new finds them beyond the last joint of the arm), write gripper into the card, or train "
                "env=reach, which needs none"
            )
        super().__init__(card, action=action, control_hz=control_hz)
        self.xml, self.grip = _with_hand(card.model_dump_json(), self.xml, half)
        model = mujoco.MjModel.from_xml_string(self.xml)
        self.chain = Chain(model, GRASP)
        self._closed = np.array(card.gripper.closed)
        self._opened = self._closed + self.grip.opened * (np.array(card.gripper.open) - self._closed)
        self._finger = int(model.joint(card.gripper.joints[0]).qposadr[0])
        self.robot_size = robot = model.nq - 7
        self._neutral, self._others = np.array(model.qpos0[:robot]), model.nv
        self._open_all(model, card.gripper.joints)
        speed, joint_speeds = self.steps[0] * control_hz, tuple(step * control_hz for step in self.steps)
        if action == "ee":  # no faster than the other action moves them: what is held slips from a hand that hurries
            self._velocity = joint_speeds = tuple(min(JOINT_SPEED, limit) for limit in card.limit("velocity"))
        self._describe(action, control_hz, True, False, False, (speed, 0.0), joint_speeds)
        self.action_high = (*self.steps, 1.0)
        self.action_units = (*self.action_units[:-1], "1")
        self.grasps = _grasps(card.model_dump_json(), self.xml, digest(card.model.path))
        tips = np.asarray(self.chain.forward(self.grasps)[0])
        heights = {"start": tips[:, 2] > 0.12, "cube": tips[:, 2] < 0.06, "goal": tips[:, 2] > 0.08}
        self._rows = {name: np.flatnonzero(rows) for name, rows in heights.items()}
        if min(map(len, self._rows.values())) < 5:
            counts = [len(rows) for rows in self._rows.values()]
            raise ValueError(
                f"of {len(tips)} places that {card.name} reaches with its tool down, {counts[0]} are above 12 cm "
                f"(starts), {counts[1]} below 6 cm (cubes) and {counts[2]} above 8 cm (goals), expected 5 of each: "
                "check tool, home and workspace of its card, and how high its base stands"
            )
        low, high = tips.min(axis=0), tips.max(axis=0)
        self.low, self.high = tuple(map(float, low)), tuple(map(float, high))

    def _open_all(self, model: MjModel, joints: tuple[str, ...]) -> None:
        """Fingers that follow by constraints open with those that are commanded."""
        for name, value in zip(joints, self._opened):
            self._neutral[int(model.joint(name).qposadr[0])] = value
        for k in range(model.neq):
            if int(model.eq_type[k]) == int(mujoco.mjtEq.mjEQ_JOINT):
                follower, leader = int(model.eq_obj1id[k]), int(model.eq_obj2id[k])
                if leader >= 0:
                    at = self._neutral[int(model.jnt_qposadr[leader])]
                    powers = at ** np.arange(5)
                    self._neutral[int(model.jnt_qposadr[follower])] = float(model.eq_data[k, :5] @ powers)

    def toward(self, joints: Array, target: Array, iterations: int = 2) -> Array:
        """(N, J) joints that bring the grasp to (N, 3) target [m], pointing down as far as the place leaves freedom.

        Source: Nakamura, Hanafusa, Yoshikawa, Task-priority based redundancy control of robot manipulators (1987).
        """
        xp = array_api_compat.array_namespace(joints)
        turn = downward(xp.zeros_like(target[:, 0]))
        low, high = constant(self.chain.low, joints), constant(self.chain.high, joints)
        none = xp.zeros_like(joints)
        for _ in range(iterations):
            place, rotation, jacobian = self.chain.jacobian(joints)
            linear, angular = jacobian[:, :3], jacobian[:, 3:]
            # Far wishes are cut: a step is as good as its Jacobian, which holds near where the arm is.
            far, error = _cut(target - place, _FAR), _cut(rotation_error(rotation, turn), _TURN)
            if self.count < 6:  # the turn about the vertical counts least: pointing down may need its joint
                error = error * constant((1.0, 1.0, 0.2), joints)
                angular = angular * constant(((1.0,), (1.0,), (0.2,)), joints)
            wish = joints + self._step(far, error, linear, angular, joints)
            # What a joint at its limit cannot do, the others do: clipped alone, the arm would stand still there.
            at = xp.minimum(xp.maximum(wish, low), high)
            held, fixed = at != wish, xp.where(at != wish, at - joints, none)[..., None]
            far, error = far - (linear @ fixed)[..., 0], error - (angular @ fixed)[..., 0]
            rest = xp.astype(~held, joints.dtype)[:, None, :]
            step = fixed[..., 0] + self._step(far, error, linear * rest, angular * rest, joints) * rest[:, 0]
            joints = xp.minimum(xp.maximum(joints + shorten(step, _TURN), low), high)
        return joints

    def _step(self, far: Array, error: Array, linear: Array, angular: Array, joints: Array) -> Array:
        """(N, J) step that closes (N, 3) `far` first, then `error`, and goes home in what freedom is left."""
        xp = array_api_compat.array_namespace(joints)
        eye = constant(np.eye(3), joints)
        across = xp.permute_dims(linear, (0, 2, 1))
        inverse = linear @ across + 1e-5 * eye
        first = across @ solve_definite(inverse, far[..., None])
        # What turns the hand without moving the place: its Jacobian in the null space of the first task.
        free = angular - (angular @ across) @ _solve_columns(xp, inverse, linear)
        back = xp.permute_dims(free, (0, 2, 1))
        second = first + back @ solve_definite(free @ back + _DAMPING * eye, error[..., None] - angular @ first)
        if self.count < 7:
            return second[..., 0]
        home = _TOWARD_HOME * (constant(self.home, joints) - joints)[..., None]
        home = home - across @ solve_definite(inverse, linear @ home)
        return (second + home - back @ solve_definite(free @ back + _DAMPING * eye, angular @ home))[..., 0]

    def begin_pick(self, unit: Array, half: float) -> tuple[Array, Array, Array, dict[str, Array]]:
        """Rest above the floor with the fingers open; a cube and a goal elsewhere, both where the grasp can be.

        Args:
            unit: (n, 9) in [0, 1).
            half: half the cube's edge [m].

        Returns:
            (n, nq) positions, (n, nv) velocities, (n, nu) controls, variables for `view.task` with "goal" (n, 3) [m].
        """
        xp = array_api_compat.array_namespace(unit)
        device = array_api_compat.device(unit)
        poses = constant(self.grasps, unit, dtype=xp.float64)
        joints, on_floor, there = (
            xp.take(
                poses, xp.take(xp.asarray(rows, device=device), xp.astype(unit[:, k] * len(rows), xp.int64)), axis=0
            )
            for k, rows in enumerate(self._rows.values())
        )
        tip, floor, goal = (self.chain.forward(pose)[0] for pose in (joints, on_floor, there))
        blank, zero = xp.zeros_like(joints[:, :1]), xp.zeros_like(tip)
        # The cube lies as the fingers will stand there: square to the hand of an arm that cannot turn it.
        turn = 0.1 * (2.0 * xp.astype(unit[:, 3:4], joints.dtype) - 1.0)
        if self.count < 6:
            rotation = self.chain.forward(on_floor)[1]
            turn = turn + xp.atan2(rotation[:, 1, 0], rotation[:, 0, 0])[:, None]
        cube = [floor[:, :2], blank + half, xp.cos(0.5 * turn), blank, blank, xp.sin(0.5 * turn)]
        neutral = constant(self._neutral, joints)
        rest = [blank + neutral[: self.first], joints, blank + neutral[self.first + self.count :]]
        qpos = xp.concat([*rest, *cube], axis=1)
        qvel = xp.zeros((qpos.shape[0], self._others), dtype=qpos.dtype, device=device)
        task = {"command": joints, "tip": tip, "tip_velocity": zero, "tip_lag": zero + 0.0, "yaw": blank[:, 0]}
        return qpos, qvel, xp.concat([joints, blank + constant(self._opened, joints)], axis=1), {**task, "goal": goal}

    def control(self, view: View, action: Array) -> Array:
        """Advance the command by (N, A) actions in [-1, 1] and return (N, nu) position targets."""
        xp = view.xp
        command = view.task["command"]
        action = xp.astype(action, command.dtype)
        delta = action[:, :-1] * constant(self.steps, command)
        if self.mode == "ee":
            target = self._target(view, self.chain.forward(command)[0] + delta)
            delta = self._shortened(view, self.toward(command, target) - command)
        command[...] = self._joints(view, command + delta)
        share = 0.5 * (action[:, -1:] + 1.0)
        opened, closed = constant(self._opened, command), constant(self._closed, command)
        return xp.concat([command, closed + share * (opened - closed)], axis=1)

    def opening(self, view: View) -> Array:
        """(N,) share of open of the first finger, times `STROKE`, so that worlds scale it as the desk arm's."""
        first = view.qpos[:, self._finger]
        return (first - float(self._closed[0])) * (STROKE / float(self._opened[0] - self._closed[0]))

    def act(self, state: Array, move: Array, *, opening: Array | None = None, turn: Array | None = None) -> Array:
        """The action of a scripted controller that wants the tip at measured tip + `move` (N, 3) m; see `Arm.act`."""
        if self.mode == "ee":
            return Arm.act(self, state, move, opening=opening, turn=turn)
        xp = array_api_compat.array_namespace(state)
        measured, command = self._told(state)
        move = move / xp.maximum(norm(move) / 0.1, xp.ones_like(move[:, 0]))[:, None]
        wish = self.toward(command, self.chain.forward(measured)[0] + move, 3) - command
        parts = [shorten(wish / constant(self.steps, state))]
        if opening is not None:
            parts.append((opening * (2.0 / STROKE) - 1.0)[:, None])
        return xp.clip(xp.concat(parts, axis=1), -1.0, 1.0)


def _cut(vectors: Array, most: float) -> Array:
    """(N, 3) vectors, none longer than that."""
    length = norm(vectors) / most
    xp = array_api_compat.array_namespace(vectors)
    return vectors / xp.maximum(length, xp.ones_like(length))[:, None]


def _solve_columns(xp: ModuleType, matrix: Array, right: Array) -> Array:
    """matrix^-1 right for (N, 3, J) right."""
    return xp.concat([solve_definite(matrix, right[:, :, j : j + 1]) for j in range(right.shape[2])], axis=2)


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
    pose = dict(zip(names, card.home))
    grip = HandTrial(spec, card.gripper, pose, half).find()
    if isinstance(grip, str):  # the hull of a jaw that is not convex fills the gap
        slice_meshes(spec, model, data, {hand, *bodies_below(model, [hand])}, along)
        grip = HandTrial(spec, card.gripper, pose, half).find()
    if isinstance(grip, str):
        raise ValueError(
            f"{card.name} cannot pick: {grip}. Check tool and gripper (open, closed, effort) of its card; robot-rl "
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
    return spec.to_xml(), grip


@lru_cache(8)
def _grasps(text: str, xml: str, now: str) -> np.ndarray:
    """(K, J) poses with the tool pointing down over the floor before the robot, touching nothing; `now` is a key."""
    card = Card.model_validate_json(text)
    model = mujoco.MjModel.from_xml_string(xml)
    arm = CardHand.__new__(CardHand)
    arm.chain = Chain(model, GRASP)
    arm.count, arm.home = len(card.joints), card.home
    assert card.workspace is not None
    middle, size = 0.5 * (np.array(card.workspace.lower) + card.workspace.upper), np.array(card.workspace.upper)
    reach = float(np.linalg.norm(middle[:2]))
    random = np.random.default_rng(0)
    distance, angle = random.uniform(0.6, 1.6, _TRIES) * reach, random.uniform(-0.4, 0.4, _TRIES)
    angle += float(np.arctan2(middle[1], middle[0]))
    height = random.uniform(0.016, max(0.25, 0.5 * float(size[2])), _TRIES)
    wanted = np.stack([distance * np.cos(angle), distance * np.sin(angle), height], axis=1)
    tilt = _TILT if arm.count > 5 else _TILT_FIVE
    margin = (arm.count > 6) * np.minimum(0.05 * (np.asarray(arm.chain.high) - arm.chain.low), _MARGIN)
    joints, good = np.tile(np.array(card.home), (_TRIES, 1)), np.zeros(_TRIES, bool)
    for _ in range(3):
        if good.any():  # what was not found from home is looked for from the nearest place that was
            apart = np.linalg.norm(wanted[~good][:, None] - wanted[good][None], axis=2)
            joints[~good] = joints[good][apart.argmin(axis=1)]
        joints[~good] = np.asarray(arm.toward(joints[~good], wanted[~good], 40))
        place, rotation = (np.asarray(part) for part in arm.chain.forward(joints))
        good = (np.linalg.norm(place - wanted, axis=1) < 0.002) & (rotation[:, 2, 2] < -np.cos(tilt))
        good &= ((joints >= arm.chain.low + margin) & (joints <= arm.chain.high - margin)).all(axis=1)
        if good.all():
            break
    probe = RobotProbe(model, [model.joint(joint.name).id for joint in card.joints], GRASP)
    kept = np.array([pose for pose, fine in zip(joints, good) if fine and _free(probe, pose)])
    if len(kept) < _FEWEST:
        raise ValueError(
            f"{card.name} can hardly grasp from above: of {_TRIES} places on the floor before it {int(good.sum())} are "
            f"reached with the tool pointing down and {len(kept)} without a contact; check tool and home of its card"
        )
    return kept


def _free(probe: RobotProbe, pose: np.ndarray) -> bool:
    """Whether nothing but the object, which lies elsewhere, touches."""
    probe.place(pose)
    return not {pair for pair in probe.touching() if "cube" not in pair}
