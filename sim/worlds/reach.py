"""Reach: bring the tool tip to a random point in the air."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import array_api_compat

from robot_rl.sim.arm import STROKE, Arm, ArmOptions, marker, norm, scene, span, time_cost
from robot_rl.sim.arm_cameras import Aim
from robot_rl.sim.arm_task import ArmTask
from robot_rl.sim.world import Draw, Reset, View, WorldGoals, add_terms
from robot_rl.types import Array, Goals
from robot_rl.types.card import Card
from robot_rl.types.options import Positive

if TYPE_CHECKING:
    from robot_rl.sim.card_arm import CardArm

_LOW, _HIGH = (0.28, -0.22, 0.02), (0.58, 0.22, 0.34)
_ARM = ArmOptions(low=_LOW, high=_HIGH)
_AIM = Aim(middle=(0.43, 0.0, 0.18), fovy=34.0)
_DISTANCE = 0.1  # metres per unit of the vector in the state


class Reach(ArmTask):
    """Tool tip to a random point; success within 2 cm.

    Args:
        action: "ee" (moves of the tip, 3 actions) or "joint" (moves of the joints, 6 actions).
        control_hz: decisions per second: 10, 12.5, 20, 25, 40 or 50.
        seconds: length of an episode.
        reward: "dense", in [0, 1] per step and near 1 at the goal, or "sparse", 1 where successful.
        terminate_on_success: end the episode at success. The dense reward is then lowered by 1, so that every step
            costs and finishing early never loses reward.
        start_pose: the state also tells where the tip was at the start (action "ee"), for `human/relative_frame`.
        robot: the card of another arm (robot=<card> on the command line); null is the desk arm.

    Raises:
        ValueError: an option outside these values, or a card that does not fit its model.
    """

    name: str = "reach"
    markers: ClassVar[dict[str, str]] = {"goal": "goal"}
    policy_cameras: ClassVar[tuple[str, ...]] = ("front", "side")  # one ray: no depth
    radius = 0.02

    def __init__(
        self,
        action: str = "ee",
        control_hz: Positive = 10.0,
        seconds: Positive = 4.0,
        reward: str = "dense",
        terminate_on_success: bool = False,
        start_pose: bool = False,
        robot: Card | None = None,
    ) -> None:
        self._robot: CardArm | None = None
        if robot is None:
            model = scene(marker(self.radius), aim=_AIM)  # a ball where the goal is
            arm = Arm(_ARM, action=action, control_hz=control_hz, model=model, start_pose=start_pose)
        else:
            from robot_rl.sim.card_arm import CardArm  # loads MuJoCo, which other engines do without

            card = Card.model_validate(robot)
            arm = self._robot = CardArm(card, action=action, control_hz=control_hz, start_pose=start_pose)
        beside = ("tip_to_goal_x", "tip_to_goal_y", "tip_to_goal_z")
        super().__init__(arm, beside=beside, seconds=seconds, reward=reward, terminate_on_success=terminate_on_success)
        ends = self._near if terminate_on_success else None
        self.goals = WorldGoals(self._tip, self._goal_place, Goals(3, 3, self._show, self._pay, ends))

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Tip and goal anywhere in the work space, a little inside its walls; of a card's arm, where poses lead."""
        unit = draw.uniform(7)
        if self._robot is not None:
            qpos, ctrl, task, goal = self._robot.begin(unit[:, 0], unit[:, 3])
            return Reset(qpos=qpos, qvel=self._robot.still(qpos), ctrl=ctrl, task={**task, "goal": goal})
        low, high = (0.32, -0.18, 0.06), (0.54, 0.18, 0.30)
        goal = span(unit[:, 3:6], low, high)
        robot, task = self._arm.start(span(unit[:, :3], low, high), xp.zeros_like(goal[:, 0]), 0.25 * STROKE)
        return Reset(qpos=robot, qvel=xp.zeros_like(robot), ctrl=robot, task={**task, "goal": goal})

    def observe(self, view: View) -> Array:
        """The arm and the vector to the goal."""
        parts = [*self._arm.state(view), (view.task["goal"] - view.task["tip"]) / _DISTANCE]
        return view.xp.astype(view.xp.concat(parts, axis=1), view.xp.float32)

    def reward(self, view: View) -> Array:
        """Dense: half for the way (20 cm wide), half for precision (3 cm wide)."""
        return view.total(self._terms(view.task["tip"], view.task["goal"]))

    def success(self, view: View) -> Array:
        """Tip within 2 cm of the goal."""
        return self._near(view.task["tip"], view.task["goal"])

    def landmarks(self, view: View) -> dict[str, Array]:
        """(N, 4) goal."""
        goal = view.task["goal"]
        return {"goal": view.xp.concat([goal, view.xp.zeros_like(goal[:, :1])], axis=1)}

    def expert(self, state: Array) -> Array:
        """Straight to the goal."""
        return self._arm.act(state, state[:, -3:] * _DISTANCE)

    def _tip(self, view: View) -> Array:
        return view.task["tip"]

    def _near(self, tip: Array, goal: Array) -> Array:
        return norm(goal - tip) < self.radius

    def _terms(self, tip: Array, goal: Array) -> dict[str, Array]:
        xp = array_api_compat.array_namespace(tip)
        if not self._dense:
            return {"success": xp.astype(self._near(tip, goal), xp.float32)}
        distance = norm(goal - tip)
        terms = {"way": 0.5 - 0.5 * xp.tanh(distance / 0.2), "precise": 0.5 - 0.5 * xp.tanh(distance / 0.03)}
        return terms | time_cost(distance) if self._terminate else terms

    def _pay(self, tip: Array, goal: Array) -> Array:
        return add_terms(self._terms(tip, goal), array_api_compat.array_namespace(tip))

    def _show(self, state: Array, asked: Array, goal: Array) -> Array:
        xp = array_api_compat.array_namespace(state)
        return xp.concat([state[:, :-3], state[:, -3:] + (goal - asked) / _DISTANCE], axis=1)
