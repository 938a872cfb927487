"""An arm with a gripper from a card that holds a peg, and places where it can put that into a hole."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import array_api_compat
import numpy as np

from robot_rl.sim.arm import norm
from robot_rl.sim.arrays import constant
from robot_rl.sim.card_arm import CAMERAS, JOINT_SPEED, aim
from robot_rl.sim.card_hand import CardHand, find_free, lean_of, places_before
from robot_rl.sim.downward_ik import DownwardIk
from robot_rl.sim.hand_grip import CUBE, GRASP
from robot_rl.sim.kinematics import Chain
from robot_rl.sim.model_text import write_xml
from robot_rl.sim.peg_hole import DEPTH, PEG, TOP, socket
from robot_rl.sim.robot_model import FLOOR, digest, mujoco
from robot_rl.types import Array
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjModel, MjSpec

_END = "peg_end"
_BACK, _AHEAD = 0.02, 0.06  # m from where the fingers grasp to the two ends of the peg, of an arm of scale 1
_SPEED, _JOINT_SPEED, _LEASH = 0.1, 0.6, 0.02  # those of the desk arm with its peg: m/s, rad/s, m
_WIDE, _TRIES, _FEWEST = 400, 1000, 40
_AREA = 0.1  # m to either side of their middle that holes lie in, of an arm of scale 1
_ASIDE, _ABOVE = 0.06, (0.03, 0.09)  # m where the peg starts, from the mouth
_TILT, _WITHIN = 0.01, 2e-4  # rad and m that poses may be off: with more the peg would not go to the floor of the hole
_CLOSE, _SHARE = 0.005, 0.3  # m of the scripted controller, of an arm of scale 1, and of what is missing per decision
_FAR, _FOVY = 0.9, 28.0  # m and degrees of the cameras, of an arm of scale 1


class CardPeg(CardHand):
    """`CardHand` with a round peg fixed where its fingers grasp, and a socket, whose joints come last in qpos.

    Nothing touches but peg, socket and floor. All lengths are the desk arm's times `scale`.

    Args:
        card: of the robot.
        action: "ee" (three moves of the peg's end, which stays upright) or "joint".
        control_hz: decisions per second.

    Raises:
        ValueError: the card has no gripper, its hand does not hold the peg, or it hardly reaches a hole from above.
    """

    def __init__(self, card: Card, *, action: str, control_hz: float) -> None:
        super().__init__(card, action=action, control_hz=control_hz)
        assert card.gripper is not None
        scale, xml = self.scale, self._take(PEG * self.scale)
        fingers = self._closed + self.grip.held * (np.array(card.gripper.open) - self._closed)
        found = _with_peg(self._text, xml, digest(card.model.path), scale, tuple(map(float, fingers)), self.grip.beside)
        self._point(found.xml, _END, 3)
        self._neutral, self._on_peg, self.starts, self.holes = found.rest, fingers, found.starts, found.holes
        joint_speeds = tuple(min(_JOINT_SPEED, limit) for limit in self._velocity)
        self._velocity = tuple(min(JOINT_SPEED, limit) for limit in self._velocity)
        self.leash = _LEASH * scale
        self._describe(action, control_hz, False, False, False, (_SPEED * scale, 0.0), joint_speeds)
        low, high = self.holes.min(axis=0) - _ASIDE * scale, self.holes.max(axis=0) + _ASIDE * scale
        self.low = (float(low[0]), float(low[1]), 0.006 * scale)
        self.high = (float(high[0]), float(high[1]), (TOP + _ABOVE[1] + 0.02) * scale)

    def begin_insert(self, unit: Array) -> tuple[Array, Array, Array, dict[str, Array]]:
        """Rest with the peg near a hole that it can be put into from there.

        Args:
            unit: (n, 2) in [0, 1): which start, and the socket's angle.

        Returns:
            (n, nq) positions, (n, nv) velocities, (n, nu) controls, variables for `view.task`.
        """
        xp = array_api_compat.array_namespace(unit)
        starts, holes = (constant(table, unit, dtype=xp.float64) for table in (self.starts, self.holes))
        rows = xp.astype(unit[:, 0] * starts.shape[0], xp.int64)
        joints = xp.take(starts, rows, axis=0)
        robot, task = self._rest(joints, self.chain.forward(joints)[0])
        turn = 0.8 * xp.astype(unit[:, 1:2], joints.dtype) - 0.4
        qpos = xp.concat([robot, xp.take(holes, rows, axis=0), turn], axis=1)
        fingers = xp.zeros_like(turn) + constant(self._on_peg, joints)
        return qpos, self.still(qpos), xp.concat([joints, fingers], axis=1), task

    def act(self, state: Array, move: Array, *, opening: Array | None = None, turn: Array | None = None) -> Array:
        """The action of a scripted controller that wants the tip at measured tip + `move` (N, 3) m; see `Arm.act`.

        Close above the place the command itself moves on by what is missing: joints with friction stand off theirs.
        """
        xp = array_api_compat.array_namespace(state)
        beside = move[:, :2]
        close = norm(beside)[:, None] < _CLOSE * self.scale
        beside = xp.where(close, _SHARE * beside + self.told_lag(state)[:, :2], beside)
        return super().act(state, xp.concat([beside, move[:, 2:]], axis=1), opening=opening, turn=turn)


class _PegScene(NamedTuple):
    """xml: MJCF text; rest: (robot_size,) positions with the fingers on the peg; starts: (K, J); holes: (K, 2) [m]."""

    xml: str
    rest: np.ndarray
    starts: np.ndarray
    holes: np.ndarray


@lru_cache(8)
def _with_peg(text: str, xml: str, now: str, scale: float, fingers: tuple[float, ...], beside: float) -> _PegScene:
    """The scene of a hand, with a peg and a socket in place of the cube; `now` is a key."""
    card = Card.model_validate_json(text)
    assert card.gripper is not None
    hand, spec = mujoco.MjModel.from_xml_string(xml), mujoco.MjSpec.from_string(xml)
    spec.option.noslip_iterations, spec.option.impratio = 0, 1.0  # for fingers that hold by friction
    spec.delete(spec.body(CUBE))
    spec.delete(spec.body("goal"))
    for geom in spec.geoms:
        geom.contype, geom.conaffinity = 0, 8 * (geom.parent.name == FLOOR)
    _hold(spec, scale, beside)
    child = mujoco.MjSpec.from_string(f"<mujoco><worldbody>{socket(scale)}</worldbody></mujoco>")
    spec.worldbody.add_frame().attach_body(child.body("socket"), "insert_", "")
    model = spec.compile()
    starts, holes = _starts(DownwardIk(Chain(model, _END), card.home), hand, card, scale)
    middle = np.array([*holes.mean(axis=0), 2.0 * TOP * scale])
    for name, turn in CAMERAS.items():
        away = _FAR * scale * np.array([0.58, -0.69, 0.42])
        camera = spec.camera(name)
        camera.fovy = _FOVY
        aim(camera, middle, away, turn + float(np.arctan2(middle[1], middle[0])))
    data = mujoco.MjData(model)
    for joint, value in zip((*(j.name for j in card.joints), *card.gripper.joints), (*starts[0], *fingers)):
        data.qpos[int(model.joint(joint).qposadr[0])] = data.ctrl[model.actuator(joint).id] = value
    for _ in range(round(1.0 / model.opt.timestep)):  # links that follow the fingers by loops find their places
        mujoco.mj_step(model, data)
    spec.compile()
    return _PegScene(write_xml(spec), np.array(data.qpos[: model.nq - 3]), starts, holes)


def _hold(spec: MjSpec, scale: float, beside: float) -> None:
    """Fix a peg between the fingers, along the way that they point; changed in place."""
    site = spec.site(GRASP)
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, site.quat)
    _, closing, along = turn.reshape(3, 3).T
    middle, body = site.pos - beside * closing, site.parent
    body.add_geom(
        name="peg", type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[PEG * scale, 0.5 * (_AHEAD + _BACK) * scale, 0.0],
        pos=middle + 0.5 * (_AHEAD - _BACK) * scale * along, quat=site.quat, mass=0.05 * scale**3, contype=8,
        conaffinity=0, rgba=[0.9, 0.75, 0.2, 1.0], friction=[0.3, 0.005, 0.0001], priority=1, solref=[0.01, 1.0],
        solimp=[0.95, 0.99, 0.001, 0.5, 2.0],
    )  # fmt: skip
    body.add_site(name=_END, pos=middle + _AHEAD * scale * along, quat=site.quat, group=4)


def _starts(ik: DownwardIk, hand: MjModel, card: Card, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(K, J) poses with the peg upright near (K, 2) holes, from which it can be moved over and down into them.

    All of them touch nothing at the start, over the mouth and at the floor of the hole.
    """
    random, floor = np.random.default_rng(0), (TOP - DEPTH) * scale
    wide = places_before(card, random, _WIDE)
    good = ik.search(np.insert(wide, 2, floor, axis=1), _TILT, _WITHIN)[1]
    told = f"{card.name} can hardly put a peg into a hole"
    where = "check tool and home of its card, and how high its base stands"
    if good.sum() < 0.02 * _WIDE:
        raise ValueError(
            f"{told}: of {_WIDE} places on the floor before it {int(good.sum())} are reached with the peg upright; "
            + where
        )
    # Holes lie around the middle, in distance and in angle, of all places that are reached.
    distance = float(np.median(np.linalg.norm(wide[good], axis=1)))
    angle = float(np.median(np.arctan2(wide[good][:, 1], wide[good][:, 0])))
    middle = distance * np.array([np.cos(angle), np.sin(angle)])
    holes = middle + random.uniform(-_AREA, _AREA, (_TRIES, 2)) * scale
    aside, above = random.uniform(-_ASIDE, _ASIDE, (_TRIES, 2)), random.uniform(*_ABOVE, _TRIES)
    wanted = np.insert(holes, 2, floor, axis=1)
    joints, good = ik.search(wanted, _TILT, _WITHIN)
    poses = [joints]
    # Where it starts the peg may lean, and be a little elsewhere.
    over, start = (holes, TOP + 0.01, _TILT, _WITHIN), (holes + aside * scale, TOP + above, lean_of(card), 0.002)
    for place, height, tilt, within in (over, start):
        wanted = np.concatenate([place, np.broadcast_to(height * scale, _TRIES)[:, None]], axis=1)
        joints = np.asarray(ik.toward(joints, wanted, 40))
        good &= ik.meets(joints, wanted, tilt, within)
        poses.append(joints)
    for joints in poses:
        good[good] = find_free(hand, card, joints[good])
    if good.sum() < _FEWEST:
        raise ValueError(
            f"{told}: of {_TRIES} holes around ({middle[0]:.2f}, {middle[1]:.2f}) m {int(good.sum())} are reached with "
            f"the peg upright and without a contact; {where}"
        )
    return poses[-1][good], holes[good]
