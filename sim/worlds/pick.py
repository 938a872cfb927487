"""Pick: grasp a cube on the table and hold it at a random point in the air."""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import array_api_compat

from robot_rl.sim.arm import STROKE, Arm, ArmOptions, marker, norm, scene, span, time_cost
from robot_rl.sim.arm_cameras import Aim
from robot_rl.sim.arm_task import ArmTask
from robot_rl.sim.world import Draw, Reset, View, WorldGoals
from robot_rl.types import Array, Goals
from robot_rl.types.card import Card
from robot_rl.types.options import Positive

if TYPE_CHECKING:
    from robot_rl.sim.card_pick import CardPick

_LOW, _HIGH = (0.28, -0.22, 0.016), (0.58, 0.22, 0.34)
_ARM = ArmOptions(low=_LOW, high=_HIGH, gripper=True)
_HALF = 0.02  # half the cube's edge, m
_GRIP = 2 * math.sqrt(2.0) * _HALF + 0.001  # widest opening of fingers that hold it, m: by two of its edges
_CUBE, _GOAL = 0.1, 0.15  # metres per unit of the two vectors in the state
_AIM = Aim(middle=(0.44, 0.0, 0.12))
_OBJECTS = f"""
<body name="cube" pos="0.45 0 {_HALF}">
  <freejoint name="cube"/>
  <geom name="cube" type="box" size="{_HALF} {_HALF} {_HALF}" mass="0.06" rgba="0.85 0.22 0.20 1"
        contype="2" conaffinity="1" friction="1 0.01 0.0001"/>
</body>
{marker(0.015)}
"""


class Pick(ArmTask):
    """Cube from a random place on the table to a random point in the air; success within 3 cm, held.

    Args:
        action: "ee" (moves of the tip and the fingers, 4 actions) or "joint" (moves of the joints and the fingers, 7).
        control_hz: decisions per second: 10, 12.5, 20, 25, 40 or 50.
        seconds: length of an episode.
        reward: "dense", in [0, 1] per step and near 1 at the goal, or "sparse", 1 where successful.
        terminate_on_success: end the episode at success. The dense reward is then lowered by 1, so that every step
            costs and finishing early never loses reward.
        start_pose: the state also tells where the tip was at the start (action "ee"), for `human/relative_frame`.
        robot: the card of another arm with a gripper (robot=<card> on the command line); null is the desk arm.

    Raises:
        ValueError: an option outside these values, or a card that does not fit its model or has no gripper.
    """

    name: str = "pick"
    markers: ClassVar[dict[str, str]] = {"goal": "goal"}
    policy_cameras: ClassVar[tuple[str, ...]] = ("front", "side")  # one ray: no depth
    radius = 0.03

    def __init__(
        self,
        action: str = "ee",
        control_hz: Positive = 10.0,
        seconds: Positive = 5.0,
        reward: str = "dense",
        terminate_on_success: bool = False,
        start_pose: bool = False,
        robot: Card | None = None,
    ) -> None:
        self._hand: CardPick | None = None
        if robot is None:
            model = scene(_OBJECTS, aim=_AIM)
            arm = Arm(_ARM, action=action, control_hz=control_hz, model=model, start_pose=start_pose)
        else:
            from robot_rl.sim.card_pick import CardPick  # loads MuJoCo, which other engines do without

            if start_pose:
                raise ValueError("start_pose goes with the desk arm, not with robot=")
            card = Card.model_validate(robot)
            arm = self._hand = CardPick(card, action=action, control_hz=control_hz, half=_HALF)
        vectors = tuple(f"{name}_{axis}" for name in ("tip_to_cube", "cube_to_goal") for axis in "xyz")
        super().__init__(arm, beside=vectors, seconds=seconds, reward=reward, terminate_on_success=terminate_on_success)
        # Fingers of another hand swing as they close: what counts as open, and as at the cube, is wider there.
        self._around, self._near = _GRIP, 0.03
        if self._hand is not None:
            held = self._hand.grip.held / self._hand.grip.opened
            self._around, self._near = STROKE * min(held + 0.13, 0.9), 0.035
        self._cube = 8 if self._hand is None else self._hand.robot_size
        ends = self._met if terminate_on_success else None
        terms = Goals(3, 4, self._show, self._pay, ends)  # the dense reward depends on more than the goal
        self.goals = None if self._dense else WorldGoals(self._achieved_goal, self._goal_place, terms)

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Tip above the table, fingers open; cube on the table, turned by at most 0.2 rad; goal 8 to 25 cm high."""
        unit = draw.uniform(9)
        if self._hand is not None:
            qpos, qvel, ctrl, task = self._hand.begin_pick(unit, _HALF)
            return Reset(qpos=qpos, qvel=qvel, ctrl=ctrl, task=task)
        tip = span(unit[:, :3], (0.36, -0.12, 0.12), (0.50, 0.12, 0.24))
        place = span(unit[:, 3:5], (0.36, -0.14), (0.52, 0.14))
        half_turn = span(unit[:, 5:6], (-0.1,), (0.1,))
        goal = span(unit[:, 6:9], (0.36, -0.14, 0.08), (0.52, 0.14, 0.25))
        robot, task = self._arm.start(tip, xp.zeros_like(tip[:, 0]), STROKE)
        zero = xp.zeros_like(half_turn)
        cube = xp.concat([place, zero + _HALF, xp.cos(half_turn), zero, zero, xp.sin(half_turn)], axis=1)
        qpos = xp.concat([robot, cube], axis=1)
        return Reset(qpos=qpos, qvel=xp.zeros_like(qpos[:, 1:]), ctrl=robot, task={**task, "goal": goal})

    def observe(self, view: View) -> Array:
        """The arm, the vector from tip to cube and the one from cube to goal."""
        cube = view.qpos[:, self._cube : self._cube + 3]
        vectors = [(cube - view.task["tip"]) / _CUBE, (view.task["goal"] - cube) / _GOAL]
        return view.xp.astype(view.xp.concat([*self._arm.state(view), *vectors], axis=1), view.xp.float32)

    def reward(self, view: View) -> Array:
        """Dense: 0.3 for the tip at the cube, 0.1 for fingers on it, 0.2 for lifting 0.4 for its way to the goal."""
        xp = view.xp
        if not self._dense:
            return view.total({"success": xp.astype(self.success(view), xp.float32)})
        cube = view.qpos[:, self._cube : self._cube + 3]
        near = norm(cube - view.task["tip"])
        far = norm(view.task["goal"] - cube)
        around = xp.astype(near < 0.02, near.dtype)
        closed = around * xp.clip((STROKE - self._arm.opening(view)) / (STROKE - 2 * _HALF), 0.0, 1.0)
        held = xp.astype(self._is_held(view), near.dtype)
        on_the_way = 1.0 - 0.5 * xp.tanh(far / 0.2) - 0.5 * xp.tanh(far / 0.04)
        terms = {"near": 0.3 * (1.0 - xp.tanh(near / 0.1)), "grasp": 0.1 * closed}
        terms |= {"lift": 0.2 * held, "carry": 0.4 * held * on_the_way}
        return view.total(terms | time_cost(near) if self._terminate else terms)

    def success(self, view: View) -> Array:
        """Cube within 3 cm of the goal and between the fingers."""
        return self._is_held(view) & (norm(view.task["goal"] - view.qpos[:, self._cube : self._cube + 3]) < self.radius)

    def stages(self, view: View) -> dict[str, Array]:
        """Whether the tip is at the cube, and whether the cube is held."""
        near = norm(view.qpos[:, self._cube : self._cube + 3] - view.task["tip"]) < self._near
        return {"reached": near, "held": self._is_held(view)}

    def landmarks(self, view: View) -> dict[str, Array]:
        """(N, 4) cube and goal; the turn of the cube is not told."""
        xp, goal = view.xp, view.task["goal"]
        zero = xp.zeros_like(goal[:, :1])
        cube = view.qpos[:, self._cube : self._cube + 3]
        return {"object": xp.concat([cube, zero], axis=1), "goal": xp.concat([goal, zero], axis=1)}

    def expert(self, state: Array) -> Array:
        """Down a funnel onto the cube, close, carry to the goal."""
        xp = array_api_compat.array_namespace(state)
        cube, goal = state[:, -6:-3] * _CUBE, state[:, -3:] * _GOAL
        opening = (state[:, 9] + 1.0) * (0.5 * STROKE)
        aside = norm(cube[:, :2])
        # The further aside, the higher above the cube: open fingers come down around it, never on it.
        above = xp.clip(4.0 * (aside - 0.008), 0.0, 0.07)
        to_cube = xp.concat([cube[:, :2], (cube[:, 2] + above)[:, None]], axis=1)
        grasped = (opening < self._around) & (norm(cube) < self._near)
        close = grasped | (norm(cube) < 0.012)
        move = xp.where(grasped[:, None], goal, to_cube)
        return self._arm.act(state, move, opening=xp.where(close, xp.zeros_like(aside), xp.zeros_like(aside) + STROKE))

    def _is_held(self, view: View) -> Array:
        """(N,) cube off the table, between fingers no further apart than it is wide across its edges."""
        cube, opening = view.qpos[:, self._cube : self._cube + 3], self._arm.opening(view)
        near = norm(cube - view.task["tip"]) < self._near
        return near & (cube[:, 2] > _HALF + 0.005) & (opening < self._around)

    def _achieved_goal(self, view: View) -> Array:
        """(N, 4) where the cube is, and whether it is held."""
        cube = view.qpos[:, self._cube : self._cube + 3]
        return view.xp.concat([cube, view.xp.astype(self._is_held(view), cube.dtype)[:, None]], axis=1)

    def _met(self, reached: Array, goal: Array) -> Array:
        """(N,) cube at the goal and held; a goal at which a cube lies (none that is asked) is met without."""
        lies = goal[:, 2] < _HALF + 0.005
        return (norm(goal - reached[:, :3]) < self.radius) & ((reached[:, 3] > 0.5) | lies)

    def _pay(self, reached: Array, goal: Array) -> Array:
        xp = array_api_compat.array_namespace(reached)
        return xp.astype(self._met(reached, goal), xp.float32)

    def _show(self, state: Array, asked: Array, goal: Array) -> Array:
        xp = array_api_compat.array_namespace(state)
        return xp.concat([state[:, :-3], state[:, -3:] + (goal - asked) / _GOAL], axis=1)
