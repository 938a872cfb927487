"""Labels in hindsight: in an episode that ended in success the tool has been at every place that matters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BESIDE = 0.03
"""Metres from a place to the two points that tell how it is turned."""
_CLOSED = 0.1
"""Share of the fingers' way that may be left where they count as closed."""


@dataclass(frozen=True)
class Places:
    """Which points a robot's successes teach, from what it can do.

    Attributes:
        grips: it has a gripper: the first point is the object, which moves with the tool once it is held.
        turns: the tool turns about the vertical: two points beside the goal, along the tool's own x axis, tell how the
            goal is turned.
        lift: metres above the tip that the goal is taken to be; the mouth of a hole is above the end of what is in it.
    """

    grips: bool
    turns: bool
    lift: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the points, in order."""
        return ("object",) * self.grips + ("goal",) + ("goal_before", "goal_behind") * self.turns

    @property
    def still(self) -> slice:
        """Which of them stand still for a whole episode."""
        return slice(int(self.grips), None)

    def label(self, tool: np.ndarray, opening: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Where the points were in every frame of an episode that ended in success.

        Args:
            tool: (T, 4) tip [m] and turn [rad]; of T frames, the last is where success was seen.
            opening: (T,) of the fingers, in any unit, more is wider; needed with a gripper.

        Returns:
            (T, P, 3) m, and (T, P) bool: known. An object is not known before the fingers let it go for the last time.
        """
        count, end = len(tool), tool[-1].astype(np.float64)
        points = np.zeros((count, len(self.names), 3))
        known = np.ones((count, len(self.names)), bool)
        goal = end[:3] + np.array([0.0, 0.0, self.lift])
        points[:, self.still] = goal
        if self.turns:
            along = BESIDE * np.array([np.cos(end[3]), np.sin(end[3]), 0.0])
            points[:, -2], points[:, -1] = goal + along, goal - along
        if self.grips:
            if opening is None:
                raise ValueError("a gripper's successes tell where the object was by the opening of its fingers")
            closed = opening <= opening[-1] + _CLOSED * (opening.max() - opening[-1]) + 1e-6
            grasp = count - int(np.argmin(closed[::-1])) if not closed.all() else 0
            before = np.flatnonzero(closed[:grasp])
            points[:, 0] = tool[:, :3]
            points[:grasp, 0] = tool[min(grasp, count - 1), :3]
            if len(before):  # it was held before and let go: where it lay until then was another place
                known[: before[-1] + 1, 0] = False
        return points, known
