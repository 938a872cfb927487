"""A pose in which a robot stands on its legs, found from its model: knees bent, feet level and under the hips."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from mujoco import minimize

from robot_rl.sim.robot_model import mujoco

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

_BENT = 0.85
"""How far legs reach down, as a part of how far they can: bent enough to push and to give way."""
_PLACE, _LEVEL, _EASE = 0.01, 0.1, 3.0
"""Errors that weigh alike: of the foot's place [m], its orientation [rad], and of joints from the zero pose [rad]."""
_FLAT = 5
"""A leg of so many joints keeps its sole level; one of fewer stands on a point."""
_STARTS, _SAMPLES = 12, 2000
_AROUND = 1.6
"""Joints without nearer limits are searched in this range of their zero [rad]."""


def standing(model: MjModel, legs: list[list[int]]) -> np.ndarray:
    """The pose.

    Args:
        model: compiled `mujoco.MjModel` whose trunk is free.
        legs: joints of each leg, from the trunk to the foot.

    Returns:
        (nq,) the model's zero pose with the legs bent.

    Raises:
        ValueError: there are no legs.
    """
    if not legs:
        raise ValueError(
            "the model has a free base and no limb of two joints or more that reaches down from it, expected legs; for "
            "an arm on a base that stands still take the <freejoint/> out of the model"
        )
    data = mujoco.MjData(model)
    zero = np.array(model.qpos0)
    solved = [_Leg(model, data, leg) for leg in legs]
    height = max(leg.hip[2] - _BENT * leg.reach(zero) for leg in solved)  # all feet on one plane
    for leg in solved:
        leg.solve(zero, height)
    pose = zero.copy()
    for leg in solved:
        pose[leg.places] = leg.pose
    return pose


class _Leg:
    """One leg: where it hangs, and the search for its joints."""

    def __init__(self, model: MjModel, data: MjData, joints: list[int]) -> None:
        self.model, self.data = model, data
        self.places = np.array([int(model.jnt_qposadr[j]) for j in joints])
        limits = np.array([model.jnt_range[j] if model.jnt_limited[j] else (-_AROUND, _AROUND) for j in joints])
        middle = np.clip(0.0, limits[:, 0], limits[:, 1])
        self.low, self.high = np.maximum(limits[:, 0], middle - _AROUND), np.minimum(limits[:, 1], middle + _AROUND)
        self.foot = int(model.jnt_bodyid[joints[-1]])
        self.sole = _sole(model, self.foot)
        self.pose = middle
        mujoco.mj_resetData(model, data)
        mujoco.mj_kinematics(model, data)
        self.hip = np.array(data.xanchor[joints[0]])
        self.under, self.level = self._at(np.array(model.qpos0), None)
        self.ankle = len(joints) >= _FLAT

    def _at(self, zero: np.ndarray, pose: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(3,) place of the sole and (3, 3) orientation of the foot."""
        self.data.qpos[:] = zero
        if pose is not None:
            self.data.qpos[self.places] = pose
        mujoco.mj_kinematics(self.model, self.data)
        turn = np.array(self.data.xmat[self.foot]).reshape(3, 3)
        return self.data.xpos[self.foot] + turn @ self.sole, turn

    def reach(self, zero: np.ndarray) -> float:
        """How far below its hip the foot can be [m]."""
        poses = np.random.default_rng(0).uniform(self.low, self.high, (_SAMPLES, len(self.low)))
        return float(max(self.hip[2] - self._at(zero, pose)[0][2] for pose in [self.pose, *poses]))

    def solve(self, zero: np.ndarray, height: float) -> None:
        """Find the joints that put the foot at a height, below where it hangs in the zero pose."""
        wanted = np.array([*self.under[:2], height])

        def residual(poses: np.ndarray) -> np.ndarray:
            rows = []
            for pose in poses.T:
                place, turn = self._at(zero, pose)
                tilt = [(turn - self.level).ravel() / _LEVEL] if self.ankle else []
                rows.append(np.concatenate([(place - wanted) / _PLACE, *tilt, pose / _EASE]))
            return np.array(rows).T

        best = np.inf
        # The same starts for every leg, and the first of equals: legs of one kind bend the same way.
        for start in np.random.default_rng(0).uniform(self.low, self.high, (_STARTS, len(self.low))):
            found, _ = minimize.least_squares(
                start, residual, bounds=[self.low, self.high], verbose=minimize.Verbosity.SILENT, max_iter=50
            )
            cost = float((residual(found[:, None]) ** 2).sum())
            if cost < 0.999 * best:
                best, self.pose = cost, found


def _sole(model: MjModel, body: int) -> np.ndarray:
    """(3,) lowest point, in the zero pose, of the shapes that are welded to a foot, in the foot's frame."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    welded = [b for b in range(body, model.nbody) if int(model.body_weldid[b]) == int(model.body_weldid[body])]
    place = lowest(model, data, welded) if any(int(model.body_geomnum[b]) for b in welded) else data.xpos[body]
    return np.array(data.xmat[body]).reshape(3, 3).T @ (place - data.xpos[body])


def lowest(model: MjModel, data: MjData, bodies: Iterable[int]) -> np.ndarray:
    """(3,) lowest point of the boxes around the shapes of bodies, below the middle of its box [m].

    Raises:
        ValueError: they have no shapes.
    """
    points = []
    for body in bodies:
        for g in range(int(model.body_geomadr[body]), int(model.body_geomadr[body]) + int(model.body_geomnum[body])):
            turn, box = np.array(data.geom_xmat[g]).reshape(3, 3), model.geom_aabb[g]
            middle = data.geom_xpos[g] + turn @ box[:3]
            points.append([*middle[:2], middle[2] - np.abs(turn[2]) @ box[3:]])
    if not points:
        raise ValueError("the model has no shapes, so that nothing says where it stands: its links need <collision>")
    return np.array(min(points, key=lambda point: point[2]))
