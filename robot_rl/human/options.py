"""Numbers of the human-in-the-loop loop."""

from __future__ import annotations

from dataclasses import dataclass

from robot_rl.data.hil_record import EndReason


@dataclass(frozen=True)
class SessionOptions:
    """Numbers of the loop.

    Attributes:
        task_reward: "success" pays 1 and ends the episode when the world says success; "env" takes the world's reward
            and ends; "labels" knows only the person's keys; "classifier" pays 1 and ends when the classifier says so.
        learning_starts: own steps before the first update.
        updates_per_step: learner updates per own step.
        max_hold_steps: ticks without a driver before the episode is given up.
        hold_s: the same for a person who holds the robot: so long they may think, label, go on or take over.
        promote_success: steps of successes without help join the demonstrations.
        random_steps: own steps with uniform random proposals at the start.
        eval_every: own steps between blocks of autonomous trials, for the screen; 0 = none in mid-run.
        grip_penalty: cost of opening or closing the gripper; read by grasp critics alone, never part of the reward.
            Above 0: it also marks the steps that switch, for imitation.
    """

    task_reward: str = "success"
    learning_starts: int = 100
    updates_per_step: float = 1.0
    max_hold_steps: int = 3
    hold_s: float = 30.0
    promote_success: bool = False
    random_steps: int = 0
    eval_every: int = 0
    grip_penalty: float = 0.02

    def __post_init__(self) -> None:
        if self.task_reward not in ("success", "env", "labels", "classifier"):
            raise ValueError(f"task_reward is '{self.task_reward}', expected success, env, labels or classifier")
        if min(self.updates_per_step, self.hold_s) < 0 or self.max_hold_steps < 1:
            raise ValueError("updates_per_step and hold_s must be >= 0 and max_hold_steps >= 1")
        if not self.grip_penalty > 0.0:
            raise ValueError(f"grip_penalty is {self.grip_penalty}, expected a number above 0: it marks the switches")

    def hold_steps(self, control_hz: float, attended: bool) -> int:
        """Ticks in HOLD before the episode is given up; `attended`: a person holds it, not a script."""
        return max(self.max_hold_steps, round(self.hold_s * control_hz) if attended else 0)

    def outcome(self, reward: float, success: bool, terminated: bool, truncated: bool) -> tuple[float, EndReason]:
        """Task reward of a step and why the episode ends with it, from what the world, or the classifier, says."""
        kind = self.task_reward
        ends = EndReason.TIMEOUT if truncated else EndReason.FAILURE if terminated else EndReason.NONE
        if kind == "labels":  # what the world thinks of it does not count, its time limit does
            return 0.0, EndReason.TIMEOUT if terminated or truncated else EndReason.NONE
        if kind == "env":
            return reward, EndReason.SUCCESS if terminated and success else ends
        if kind == "classifier" and not success:  # the same
            return 0.0, EndReason.TIMEOUT if terminated or truncated else EndReason.NONE
        return (1.0, EndReason.SUCCESS) if success else (0.0, ends)
