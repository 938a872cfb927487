"""Insert: put the square peg in the hand into a square hole that is 1 mm wider on every side."""

from __future__ import annotations

import math
from types import ModuleType
from typing import ClassVar

import array_api_compat

from robot_rl.sim.arm import Arm, ArmOptions, norm, scene, span, time_cost
from robot_rl.sim.arm_cameras import Aim
from robot_rl.sim.arm_task import ArmTask
from robot_rl.sim.world import Draw, Reset, View
from robot_rl.types import Array
from robot_rl.types.options import Positive

_LOW, _HIGH = (0.30, -0.22, 0.006), (0.60, 0.22, 0.24)
_ARM = ArmOptions(
    low=_LOW, high=_HIGH, yaw=True, speed=0.1, turn_speed=1.0, joint_speed=0.6, leash=0.02, site="peg_end"
)
CLEARANCE = 0.001
"""Metres between peg and hole on each side when the peg is centred."""
DEPTH = 0.03
"""Metres from the mouth of the hole to its floor."""
_PEG = 0.010  # half the width of the peg
_TOP = 0.04  # height of the socket's upper face above the table
_HOLE, _OUT = _PEG + CLEARANCE, 0.04  # half the width of hole and socket
_OFFSET = 0.03  # metres per unit of the vector in the state
_GENTLE = 0.06  # m/s of the expert's way down
_TURN = 0.3  # radians per unit of the angle in the state

_AIM = Aim(middle=(0.46, 0.0, 0.06), fovy=26.0, tip=0.167, wrist_fovy=46.0)

# The socket stands where its three joints are; they are so heavy and damped that no push of the arm moves them.
_WALL, _HEIGHT = 0.5 * (_OUT - _HOLE), 0.5 * DEPTH
_MIDDLE = _TOP - _HEIGHT
_SOCKET = f"""
<body name="socket">
  <joint name="socket_x" type="slide" axis="1 0 0" armature="1000" damping="1e9"/>
  <joint name="socket_y" type="slide" axis="0 1 0" armature="1000" damping="1e9"/>
  <joint name="socket_yaw" type="hinge" axis="0 0 1" armature="1000" damping="1e9"/>
  <geom name="wall_1" type="box" size="{_WALL} {_OUT} {_HEIGHT}" pos="{_HOLE + _WALL} 0 {_MIDDLE}" {{wall}} mass="0.5"/>
  <geom name="wall_2" type="box" size="{_WALL} {_OUT} {_HEIGHT}" pos="{-_HOLE - _WALL} 0 {_MIDDLE}" {{wall}}/>
  <geom name="wall_3" type="box" size="{_HOLE} {_WALL} {_HEIGHT}" pos="0 {_HOLE + _WALL} {_MIDDLE}" {{wall}}/>
  <geom name="wall_4" type="box" size="{_HOLE} {_WALL} {_HEIGHT}" pos="0 {-_HOLE - _WALL} {_MIDDLE}" {{wall}}/>
  <geom name="floor_of_hole" type="box" size="{_OUT} {_OUT} {0.5 * (_TOP - DEPTH)}" pos="0 0 {0.5 * (_TOP - DEPTH)}"
        {{wall}}/>
</body>
""".format(wall='contype="0" conaffinity="12" rgba="0.25 0.45 0.70 1" friction="0.3 0.005 0.0001"')
_HELD = f"""
<geom name="peg" type="box" size="0.0585 {_PEG} {_PEG}" pos="0.1085 0 0" mass="0.05" rgba="0.90 0.75 0.20 1" contype="8"
      conaffinity="1" friction="0.3 0.005 0.0001" priority="1" solref="0.01 1" solimp="0.95 0.99 0.001"/>
<site name="peg_end" pos="0.167 0 0" quat="0 0.7071067811865476 0 0.7071067811865476" size="0.003" group="4"/>
"""


class Insert(ArmTask):
    """Held peg into a hole at a random place and angle; success 25 mm deep.

    The peg is fixed to the hand and meets the socket with real contact: beside the hole it stops on top. "tip" in the
    state is the end of the peg.

    Args:
        action: "ee" (moves of the peg's end and its turn about the vertical, 4 actions) or "joint" (6 actions).
        control_hz: decisions per second: 10, 12.5, 20, 25, 40 or 50.
        seconds: length of an episode.
        reward: "dense", in [0, 1] per step and 1 with the peg in the hole, or "sparse", 1 where successful.
        terminate_on_success: end the episode at success. The dense reward is then lowered by 1, so that every step
            costs and finishing early never loses reward.
        start_pose: the state also tells where the tip was at the start (action "ee"), for `human/relative_frame`.

    Raises:
        ValueError: an option outside these values.
    """

    name: str = "insert"
    cameras: tuple[str, ...] = ("front", "side", "wrist")
    policy_cameras: ClassVar[tuple[str, ...]] = ("front", "wrist")  # a millimetre has to be seen from near
    success_depth = 0.025
    goal_lift = 0.025  # the mouth is what is seen of a hole

    def __init__(
        self,
        action: str = "ee",
        control_hz: Positive = 10.0,
        seconds: Positive = 6.0,
        reward: str = "dense",
        terminate_on_success: bool = False,
        start_pose: bool = False,
    ) -> None:
        super().__init__(
            Arm(_ARM, action=action, control_hz=control_hz, model=self.mjcf(), start_pose=start_pose),
            beside=("tip_to_hole_x", "tip_to_hole_y", "tip_to_hole_z", "yaw_to_hole"),
            seconds=seconds,
            reward=reward,
            terminate_on_success=terminate_on_success,
        )

    def mjcf(self) -> str:
        """The arm with a peg in its hand, and the socket."""
        return scene(_SOCKET, hand=_HELD, aim=_AIM)

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Socket anywhere in front of the arm; peg within 6 cm of the hole's axis, 3 to 9 cm above it."""
        unit = draw.uniform(7)
        socket = span(unit[:, :3], (0.40, -0.10, -0.4), (0.52, 0.10, 0.4))
        aside = span(unit[:, 3:6], (-0.06, -0.06, _TOP + 0.03), (0.06, 0.06, _TOP + 0.09))
        tip = xp.concat([socket[:, :2] + aside[:, :2], aside[:, 2:]], axis=1)
        yaw = span(unit[:, 6:], (-0.3,), (0.3,))[:, 0]
        robot, task = self._arm.start(tip, yaw, 2 * _PEG)
        qpos = xp.concat([robot, socket], axis=1)
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
        socket = view.qpos[:, 8:11]
        top = view.xp.zeros_like(socket[:, :1]) + _TOP
        return {"goal": view.xp.concat([socket[:, :2], top, socket[:, 2:]], axis=1)}

    def expert(self, state: Array) -> Array:
        """Over the hole first, then straight down."""
        xp = array_api_compat.array_namespace(state)
        offset, turn = state[:, -4:-1] * _OFFSET, state[:, -1] * _TURN
        aside = norm(offset[:, :2])
        inside = (offset[:, 2] > 0.002) & (aside < 2 * CLEARANCE)
        aligned = inside | ((aside < 0.6 * CLEARANCE) & (xp.abs(turn) < 0.03))
        # Until it is aligned the peg waits 8 mm above the mouth, and comes down to there as it gets closer.
        height = xp.where(aligned, xp.zeros_like(aside) - DEPTH, 0.008 + 0.5 * aside)
        # Slowly into the hole: the joints' servos differ, and at full speed their lags push the peg off its line.
        down = xp.where(aligned, xp.zeros_like(aside) - _GENTLE / self.control_hz, xp.zeros_like(aside) - 1.0)
        lift = xp.maximum(offset[:, 2] + height, down)
        move = xp.concat([offset[:, :2], lift[:, None]], axis=1)
        return self._arm.act(state, move, turn=turn)

    def _to_hole(self, view: View) -> tuple[Array, Array]:
        """(N, 3) from the peg's end to the middle of the mouth in m, and (N,) rad to turn, least of four sides."""
        xp = view.xp
        socket = view.qpos[:, 8:11]
        top = xp.zeros_like(socket[:, :1]) + _TOP
        turn = xp.remainder(socket[:, 2] - view.task["yaw"] + 0.25 * math.pi, 0.5 * math.pi) - 0.25 * math.pi
        return xp.concat([socket[:, :2], top], axis=1) - view.task["tip"], turn
