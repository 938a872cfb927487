"""What the tasks of an arm share: reach, pick, insert."""

from __future__ import annotations

from robot_rl.sim.arm import Arm
from robot_rl.sim.world import View
from robot_rl.types import Array


class ArmTask:
    """An arm that moves as asked, and an episode that may end at success.

    Args:
        arm: whose actions and state the task has.
        beside: names of what the state tells behind the arm's own.
        seconds: length of an episode.
        reward: "dense" or "sparse".
        terminate_on_success: end the episode at success.

    Raises:
        ValueError: another reward.
    """

    def __init__(
        self, arm: Arm, *, beside: tuple[str, ...], seconds: float, reward: str, terminate_on_success: bool
    ) -> None:
        if reward not in ("dense", "sparse"):
            raise ValueError(f"reward is '{reward}', expected 'dense' or 'sparse'")
        self._arm, self._dense, self._terminate = arm, reward == "dense", terminate_on_success
        self.control_hz, self.episode_steps = arm.control_hz, round(seconds * arm.control_hz)
        self.action_names, self.action_units = arm.action_names, arm.action_units
        self.action_low, self.action_high = arm.action_low, arm.action_high
        self.proprio, self.obs_names = arm.state_names, (*arm.state_names, *beside)
        self.cameras = arm.cameras

    def mjcf(self) -> str:
        """The arm and what the task puts around it."""
        return self._arm.xml

    def adopt(self, view: View) -> None:
        """Begin at the measured joints in `view.qpos`, with the command there."""
        self._arm.adopt(view)

    def control(self, view: View, action: Array) -> Array:
        """Position targets of joints and fingers."""
        return self._arm.control(view, action)

    def update(self, view: View) -> None:
        """The tip's pose and speed."""
        self._arm.update(view)

    def tool(self, view: View) -> dict[str, Array]:
        """Place and limits of the axes that actions move; see `Arm.tool`."""
        return self._arm.tool(view)

    def success(self, view: View) -> Array:
        """(N,) whether the task is done now."""
        raise NotImplementedError

    def terminated(self, view: View) -> Array:
        """Success, when asked to end there."""
        done = self.success(view)
        return done if self._terminate else view.xp.zeros_like(done)

    def _goal_place(self, view: View) -> Array:
        """Where the goal is."""
        return view.task["goal"]
