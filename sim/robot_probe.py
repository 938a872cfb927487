"""Where a robot's tool can be without touching anything: forward kinematics and contacts of its model, pose by pose."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.robot_model import FLOOR, joints_to, mujoco
from robot_rl.sim.tool import ToolFrame

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

_CORNERS = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
_TURN = math.pi
"""Joints that turn further are searched in this range either way: the rest is the same place again [rad]."""


class RobotProbe:
    """A compiled model, its chain of joints and the frame at the end.

    Args:
        model: `mujoco.MjModel`.
        chain: indices of the joints, from base to tool.
        tool: name of a site or body.
        ignore: pairs of bodies, each in alphabetical order, whose contact means nothing.

    Attributes:
        low: (J,) lower limits, at most half a turn away.
        high: (J,) upper limits.
        frame: the tool's.
    """

    def __init__(self, model: MjModel, chain: list[int], tool: str, ignore: tuple[tuple[str, str], ...] = ()) -> None:
        self.model, self.chain, self.data = model, chain, mujoco.MjData(model)
        self.qpos = np.array([int(model.jnt_qposadr[j]) for j in chain])
        self.dof = np.array([int(model.jnt_dofadr[j]) for j in chain])
        self.frame = ToolFrame(mujoco, model, tool)
        limits = np.array([limits_of(model, j) for j in chain])
        self.low, self.high = np.maximum(limits[:, 0], -_TURN), np.minimum(limits[:, 1], _TURN)
        wrong = self.low >= self.high  # a range that lies beyond one turn
        self.low[wrong], self.high[wrong] = limits[wrong, 0], limits[wrong, 1]
        self.ignore = ignore
        self._names = [model.body(index).name for index in range(model.nbody)]
        self.random = np.random.default_rng(0)

    def place(self, joints: np.ndarray) -> None:
        """Put the arm into (J,) positions; other joints stay as the model has them."""
        self.data.qpos[:] = self.model.qpos0
        self.data.qpos[self.qpos] = joints
        mujoco.mj_fwdPosition(self.model, self.data)

    def tip(self) -> np.ndarray:
        """(3,) place of the tool [m]."""
        return self.frame.position(self.data)

    def touching(self) -> set[tuple[str, str]]:
        """Pairs of bodies in contact."""
        contact = self.data.contact
        bodies = self.model.geom_bodyid[contact.geom[contact.dist < 0.0]]
        pairs = {(self._names[a], self._names[b]) for a, b in set(map(tuple, bodies.tolist()))}  # hundreds of contacts
        return {(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}

    def free(self, joints: np.ndarray) -> bool:
        """Whether nothing touches there, and the tool is above the base's plane."""
        self.place(joints)
        return self.tip()[2] > 0.02 and not self.touching() - set(self.ignore)

    def overlaps(self) -> tuple[tuple[str, str], ...]:
        """Pairs that touch in nine of ten poses: their shapes overlap where they are joined."""
        counts: dict[tuple[str, str], int] = {}
        for _ in range(100):
            self.place(self.random.uniform(self.low, self.high))
            for pair in self.touching():
                counts[pair] = counts.get(pair, 0) + 1
        return tuple(sorted(pair for pair, count in counts.items() if count >= 90))

    def overlaps_at_zero(self) -> set[tuple[str, str]]:
        """Other pairs, at most two joints apart, that touch in the model's own zero, if the robot can stand there."""
        zero = self.model.qpos0[self.qpos]
        if not ((self.low <= zero) & (zero <= self.high)).all():
            return set()
        self.place(zero)
        found = self.touching() - set(self.ignore)
        return {pair for pair in found if FLOOR not in pair and self._joints_between(pair) <= 2}

    def _joints_between(self, pair: tuple[str, str]) -> int:
        one, other = (set(joints_to(self.model, self._names.index(name))) for name in pair)
        return len(one ^ other)

    def cloud(self, home: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, J) poses around home that are free, and (n, 3) where the tool is in them."""
        home = np.clip(home, self.low, self.high)
        span = np.minimum(0.25 * (self.high - self.low), 0.7)
        low, high = np.maximum(home - span, self.low), np.minimum(home + span, self.high)
        poses, tips = [], []
        for _ in range(count):
            joints = self.random.uniform(low, high)
            if self.free(joints):
                poses.append(joints)
                tips.append(self.tip())
        return np.array(poses), np.array(tips)


def limits_of(model: MjModel, joint: int) -> tuple[float, float]:
    """Range of a joint; half a turn either way where it has none."""
    if not model.jnt_limited[joint]:
        return (-_TURN, _TURN)
    low, high = model.jnt_range[joint]
    return float(low), float(high)


def corners_of(model: MjModel, data: MjData, body: int) -> np.ndarray:
    """(P, 3) corners of a body's shapes, its origin where it has none."""
    found = [data.xpos[body][None]]
    for geom in np.flatnonzero(model.geom_bodyid == body).tolist():
        found.append(data.geom_xpos[geom] + corners_in(model, geom) @ data.geom_xmat[geom].reshape(3, 3).T)
    return np.concatenate(found[1:] or found)


def corners_in(model: MjModel, geom: int) -> np.ndarray:
    """(P, 3) corners of a shape in its own frame: those of a mesh, or of the box around another shape [m]."""
    mesh = int(model.geom_dataid[geom])
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH:  # whose box sticks out where it is turned
        first = int(model.mesh_vertadr[mesh])
        return model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])]
    return model.geom_aabb[geom, :3] + model.geom_aabb[geom, 3:] * _CORNERS
