"""Insert: put the peg in the hand into a square hole that is 1 mm wider on every side."""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING

import array_api_compat

from robot_rl.sim.arm import Arm, ArmOptions, norm, scene, span, time_cost
from robot_rl.sim.arm_cameras import Aim
from robot_rl.sim.arm_task import ArmTask
from robot_rl.sim.peg_hole import CLEARANCE, DEPTH, PEG, TOP, socket
from robot_rl.sim.world import Draw, Reset, View
from robot_rl.types import Array
from robot_rl.types.card import Card
from robot_rl.types.options import Positive

if TYPE_CHECKING:
    from robot_rl.sim.card_peg import CardPeg

_LOW, _HIGH = (0.30, -0.22, 0.006), (0.60, 0.22, 0.24)
_ARM = ArmOptions(
    low=_LOW, high=_HIGH, yaw=True, speed=0.1, turn_speed=1.0, joint_speed=0.6, leash=0.02, site="peg_end"
)
_OFFSET = 0.03  # metres per unit of the vector in the state
_GENTLE = 0.06  # m/s of the expert's way down
_WAIT, _WAIT_CARD = 0.008, 0.0015  # m above the mouth where it aligns; joints with friction stray on the way from there
_TURN = 0.3  # radians per unit of the angle in the state

_AIM = Aim(middle=(0.46, 0.0, 0.06), fovy=26.0, tip=0.167, wrist_fovy=46.0)

_HELD = f"""
<geom name="peg" type="box" size="0.0585 {PEG} {PEG}" pos="0.1085 0 0" mass="0.05" rgba="0.90 0.75 0.20 1" contype="8"
      conaffinity="1" friction="0.3 0.005 0.0001" priority="1" solref="0.01 1" solimp="0.95 0.99 0.001"/>
<site name="peg_end" pos="0.167 0 0" quat="0 0.7071067811865476 0 0.7071067811865476" size="0.003" group="4"/>
"""


class Insert(ArmTask):
    """Held peg into a hole at a random place and angle; success 25 mm deep.

    The peg is fixed to the hand and meets the socket with real contact: beside the hole it stops on top. "tip" in the
    state is the end of the peg. That of a card's arm is round, as not every arm chooses how its hand is turned; on
    arms that reach less than 0.8 m all lengths of the task are shorter in proportion.

    Args:
        action: "ee" (moves of the peg's end and, where it is square, its turn about the vertical) or "joint".
        control_hz: decisions per second: 10, 12.5, 20, 25, 40 or 50.
        seconds: length of an episode.
        reward: "dense", in [0, 1] per step and 1 with the peg in the hole, or "sparse", 1 where successful.
        terminate_on_success: end the episode at success. The dense reward is then lowered by 1, so that every step
            costs and finishing early never loses reward.
        start_pose: the state also tells where the tip was at the start (action "ee"), for `human/relative_frame`.
        robot: the card of another arm with a gripper (robot=<card> on the command line); null is the desk arm.

    Raises:
        ValueError: an option outside these values, or a card that does not fit its model, has no gripper or hardly
            reaches a hole from above.
    """

    name: str = "insert"
    success_depth = 0.025

    def __init__(
        self,
        action: str = "ee",
        control_hz: Positive = 10.0,
        seconds: Positive = 6.0,
        reward: str = "dense",
        terminate_on_success: bool = False,
        start_pose: bool = False,
        robot: Card | None = None,
    ) -> None:
        self._peg: CardPeg | None = None
        self._scale, self._socket = 1.0, 8
        self._wait = _WAIT
        self.policy_cameras: tuple[str, ...] = ("front", "wrist")  # a millimetre has to be seen from near
        if robot is None:
            model = scene(socket(), hand=_HELD, aim=_AIM)
            arm = Arm(_ARM, action=action, control_hz=control_hz, model=model, start_pose=start_pose)
        else:
            from robot_rl.sim.card_peg import CardPeg  # loads MuJoCo, which other engines do without

            if start_pose:
                raise ValueError("start_pose goes with the desk arm, not with robot=")
            arm = self._peg = CardPeg(Card.model_validate(robot), action=action, control_hz=control_hz)
            self._scale, self._socket = arm.scale, arm.robot_size
            self._wait = _WAIT_CARD
            self.policy_cameras = ("front", "side")
        self.goal_lift = 0.025 * self._scale  # the mouth is what is seen of a hole
        super().__init__(
            arm,
            beside=("tip_to_hole_x", "tip_to_hole_y", "tip_to_hole_z", "yaw_to_hole"),
            seconds=seconds,
            reward=reward,
            terminate_on_success=terminate_on_success,
        )

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Socket anywhere in front of the arm; peg within 6 cm of the hole's axis, 3 to 9 cm above it."""
        unit = draw.uniform(7)
        if self._peg is not None:
            qpos, qvel, ctrl, task = self._peg.begin_insert(unit[:, :2])
            return Reset(qpos=qpos, qvel=qvel, ctrl=ctrl, task=task)
        place = span(unit[:, :3], (0.40, -0.10, -0.4), (0.52, 0.10, 0.4))
        aside = span(unit[:, 3:6], (-0.06, -0.06, TOP + 0.03), (0.06, 0.06, TOP + 0.09))
        tip = xp.concat([place[:, :2] + aside[:, :2], aside[:, 2:]], axis=1)
        yaw = span(unit[:, 6:], (-0.3,), (0.3,))[:, 0]
        robot, task = self._arm.start(tip, yaw, 2 * PEG)
        qpos = xp.concat([robot, place], axis=1)
        return Reset(qpos=qpos, qvel=xp.zeros_like(qpos), ctrl=robot, task=task)

    def observe(self, view: View) -> Array:
        """The arm, the vector from the peg's end to the mouth of the hole, and the angle between them."""
        offset, turn = self._to_hole(view)
        parts = [*self._arm.state(view), offset / _OFFSET, turn[:, None] / _TURN]
        return view.xp.astype(view.xp.concat(parts, axis=1), view.xp.float32)

    def reward(self, view: View) -> Array:
        """Dense: 0.4 for being over the hole, 0.1 for the angle, 0.2 for coming down over it and 0.3 for depth."""
        xp = view.xp
        if not self._dense:
            return view.total({"success": xp.astype(self.success(view), xp.float32)})
        offset, turn = self._to_hole(view)
        aside, depth = norm(offset[:, :2]), offset[:, 2]
        terms = {"over": 0.2 * (1.0 - xp.tanh(aside / 0.05)) + 0.2 * (1.0 - xp.tanh(aside / 0.01))}
        terms["angle"] = 0.1 * (1.0 - xp.tanh(xp.abs(turn) / 0.2))
        over = xp.astype(aside < 0.004, aside.dtype)
        inside = xp.astype(aside < 2 * CLEARANCE, aside.dtype)
        terms["down"] = 0.2 * over * (1.0 - xp.tanh(xp.clip(-depth, 0.0, 1.0) / 0.05))
        terms["depth"] = 0.3 * inside * xp.clip(depth / self.success_depth, 0.0, 1.0)
        rest = 1.0 - (terms["over"] + terms["angle"] + terms["down"] + terms["depth"])
        terms["success"] = xp.where(self.success(view), rest, xp.zeros_like(rest))  # 1 in all
        return view.total(terms | time_cost(rest) if self._terminate else terms)

    def success(self, view: View) -> Array:
        """End of the peg 25 mm below the mouth and within the hole."""
        offset, _ = self._to_hole(view)
        return (offset[:, 2] > self.success_depth) & (norm(offset[:, :2]) < 2 * CLEARANCE)

    def landmarks(self, view: View) -> dict[str, Array]:
        """(N, 4) the mouth of the hole."""
        place = self._place(view)
        top = view.xp.zeros_like(place[:, :1]) + TOP * self._scale
        return {"goal": view.xp.concat([place[:, :2], top, place[:, 2:]], axis=1)}

    def expert(self, state: Array) -> Array:
        """Over the hole first, then straight down."""
        xp = array_api_compat.array_namespace(state)
        offset, turn = state[:, -4:-1] * _OFFSET, state[:, -1] * _TURN
        aside = norm(offset[:, :2])
        inside = (offset[:, 2] > 0.002) & (aside < 2 * CLEARANCE)
        aligned = inside | ((aside < 0.6 * CLEARANCE) & (xp.abs(turn) < 0.03))
        # Until it is aligned the peg waits above the mouth, and comes down to there as it gets closer.
        height = xp.where(aligned, xp.zeros_like(aside) - DEPTH, self._wait + 0.5 * aside)
        # Slowly into the hole: the joints' servos differ, and at full speed their lags push the peg off its line.
        down = xp.where(aligned, xp.zeros_like(aside) - _GENTLE / self.control_hz, xp.zeros_like(aside) - 1.0)
        lift = xp.maximum(offset[:, 2] + height, down)
        move = xp.concat([offset[:, :2], lift[:, None]], axis=1)
        return self._arm.act(state, self._scale * move, turn=turn if self._peg is None else None)

    def _place(self, view: View) -> Array:
        """(N, 3) x, y [m] and angle [rad] of the socket."""
        return view.qpos[:, self._socket : self._socket + 3]

    def _to_hole(self, view: View) -> tuple[Array, Array]:
        """(N, 3) from the peg's end to the middle of the mouth in m of the desk arm, and (N,) rad to turn.

        The angle is the least of four sides; a round peg fits as it is.
        """
        xp = view.xp
        place = self._place(view)
        top = xp.zeros_like(place[:, :1]) + TOP * self._scale
        offset = (xp.concat([place[:, :2], top], axis=1) - view.task["tip"]) / self._scale
        if self._peg is not None:
            return offset, xp.zeros_like(offset[:, 0])
        return offset, xp.remainder(place[:, 2] - view.task["yaw"] + 0.25 * math.pi, 0.5 * math.pi) - 0.25 * math.pi
