"""An arm with a gripper from a card that picks a cube off the floor, and places from which it can."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import array_api_compat
import numpy as np

from robot_rl.sim.arrays import constant
from robot_rl.sim.card_arm import JOINT_SPEED
from robot_rl.sim.card_hand import CardHand, find_free, lean_of, places_before
from robot_rl.sim.downward_ik import DownwardIk
from robot_rl.sim.hand_grip import GRASP
from robot_rl.sim.kinematics import Chain
from robot_rl.sim.robot_model import digest, mujoco
from robot_rl.types import Array
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjModel

_TRIES, _FEWEST = 1500, 40


class CardPick(CardHand):
    """`CardHand` that opens and closes its fingers, a share of the card's range as the last action.

    Args:
        card: of the robot.
        action: "ee" (three moves and the fingers) or "joint".
        control_hz: decisions per second.
        half: half the edge of the cube on the floor, whose free joint comes last in qpos [m].

    Raises:
        ValueError: the card has no gripper, or hardly any place on the floor can be grasped from above.
    """

    def __init__(self, card: Card, *, action: str, control_hz: float, half: float) -> None:
        super().__init__(card, action=action, control_hz=control_hz)
        assert card.gripper is not None
        model = self._point(self._take(half), GRASP, 7)
        for name, value in zip(card.gripper.joints, self._opened):
            self._neutral[int(model.joint(name).qposadr[0])] = value
        follow(model, self._neutral)
        speed, joint_speeds = self.steps[0] * control_hz, tuple(step * control_hz for step in self.steps)
        if action == "ee":  # no faster than the other action moves them: what is held slips from a hand that hurries
            self._velocity = joint_speeds = tuple(min(JOINT_SPEED, limit) for limit in card.limit("velocity"))
        self._describe(action, control_hz, True, False, False, (speed, 0.0), joint_speeds)
        self.action_high = (*self.steps, 1.0)
        self.action_units = (*self.action_units[:-1], "1")
        self.grasps = _grasps(self._text, self.xml, digest(card.model.path))
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
        floor, goal = (self.chain.forward(pose)[0] for pose in (on_floor, there))
        blank = xp.zeros_like(joints[:, :1])
        # The cube lies as the fingers will stand there: square to the hand of an arm that cannot turn it.
        turn = 0.1 * (2.0 * xp.astype(unit[:, 3:4], joints.dtype) - 1.0)
        if self.count < 6:
            rotation = self.chain.forward(on_floor)[1]
            turn = turn + xp.atan2(rotation[:, 1, 0], rotation[:, 0, 0])[:, None]
        cube = [floor[:, :2], blank + half, xp.cos(0.5 * turn), blank, blank, xp.sin(0.5 * turn)]
        robot, task = self._rest(joints, self.chain.forward(joints)[0])
        qpos = xp.concat([robot, *cube], axis=1)
        fingers = blank + constant(self._opened, joints)
        return qpos, self.still(qpos), xp.concat([joints, fingers], axis=1), {**task, "goal": goal}


def follow(model: MjModel, qpos: np.ndarray) -> None:
    """Put joints that equalities tie to others where those put them: (nq,) positions, changed in place."""
    for k in range(model.neq):
        follower, leader = int(model.eq_obj1id[k]), int(model.eq_obj2id[k])
        if int(model.eq_type[k]) == int(mujoco.mjtEq.mjEQ_JOINT) and leader >= 0:
            at, there = (int(model.jnt_qposadr[joint]) for joint in (leader, follower))
            powers = (qpos[at] - model.qpos0[at]) ** np.arange(5)  # both count from the pose of the model
            qpos[there] = float(model.qpos0[there] + model.eq_data[k, :5] @ powers)


@lru_cache(8)
def _grasps(text: str, xml: str, now: str) -> np.ndarray:
    """(K, J) poses with the tool pointing down over the floor before the robot, touching nothing; `now` is a key."""
    card = Card.model_validate_json(text)
    model = mujoco.MjModel.from_xml_string(xml)
    random = np.random.default_rng(0)
    places = places_before(card, random, _TRIES)
    assert card.workspace is not None
    height = random.uniform(0.016, max(0.25, 0.5 * float(card.workspace.upper[2])), _TRIES)
    wanted = np.concatenate([places, height[:, None]], axis=1)
    joints, good = DownwardIk(Chain(model, GRASP), card.home).search(wanted, lean_of(card), 0.002)
    reached = joints[good]
    kept = reached[find_free(model, card, reached)]
    if len(kept) < _FEWEST:
        raise ValueError(
            f"{card.name} can hardly grasp from above: of {_TRIES} places on the floor before it {len(reached)} are "
            f"reached with the tool pointing down and {len(kept)} without a contact; check tool and home of its card"
        )
    return kept
