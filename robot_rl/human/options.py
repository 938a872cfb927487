"""Numbers of the human-in-the-loop loop."""

from __future__ import annotations

from typing import Literal

from robot_rl.data.hil_record import EndReason
from robot_rl.types.options import Count, NotNegative, Options, Positive, Share, Whole


class SessionOptions(Options):
    """Numbers of the loop."""

    task_reward: Literal["success", "env", "labels", "classifier"] = "success"
    """What pays: success (1 and the end when the world says so), the world's reward, labels (the person's keys alone)
    or a classifier (1 and the end when it says so)."""
    success_s: NotNegative = 0.5
    """Seconds that a success has to last before it pays and ends an episode of learning, so that coming to rest there
    is learned, too; trials end at the first, and so do episodes that the world ends itself."""
    learning_starts: Whole = 100
    """Own steps before the first update."""
    updates_per_step: NotNegative = 1.0
    """Learner updates per own step."""
    max_hold_steps: Count = 3
    """Ticks without a driver before the episode is given up."""
    hold_s: NotNegative = 30.0
    """A person may hold the robot so long, to think, label, go on or take over, before the episode is given up."""
    promote_success: bool = False
    """Unaided successes join the demonstrations."""
    random_steps: Whole = 0
    """Own steps with random proposals, at the start."""
    eval_every: Whole = 0
    """Own steps between evaluation blocks; 0 = only at the end."""
    grip_penalty: Positive = 0.02
    """Cost of opening or closing the gripper; read by grasp critics alone, never part of the reward. Above 0: it also
    marks the steps that switch, for imitation."""

    scene: Literal["free", "ask", "check"] = "free"
    """Before every episode: nothing (free), wait until the person says that the scene is put back (ask), and refuse
    that while it looks otherwise than at a good start (check); both tell what differs."""
    scene_tolerance: Share = 0.02
    """Largest share of a camera's picture that may look otherwise; for scene=check."""

    def hold_steps(self, control_hz: float, attended: bool) -> int:
        """Ticks in HOLD before the episode is given up; `attended`: a person holds it, not a script."""
        return max(self.max_hold_steps, round(self.hold_s * control_hz) if attended else 0)

    def outcome(
        self, reward: float, success: bool, terminated: bool, truncated: bool, *, lasts: bool = True
    ) -> tuple[float, EndReason]:
        """Task reward of a step and why the episode ends with it, from what the world, or the classifier, says.

        Args:
            reward: of the world.
            success: it, or the classifier, sees one.
            terminated: the world ended the episode.
            truncated: its time is over.
            lasts: the success has lasted for `success_s`.
        """
        kind = self.task_reward
        ends = EndReason.TIMEOUT if truncated else EndReason.FAILURE if terminated else EndReason.NONE
        if kind == "labels":  # what the world thinks of it does not count, its time limit does
            return 0.0, EndReason.TIMEOUT if terminated or truncated else EndReason.NONE
        if kind == "env":
            return reward, EndReason.SUCCESS if terminated and success else ends
        success = success and (lasts or terminated or truncated)
        if kind == "classifier" and not success:  # the same
            return 0.0, EndReason.TIMEOUT if terminated or truncated else EndReason.NONE
        return (1.0, EndReason.SUCCESS) if success else (0.0, ends)
