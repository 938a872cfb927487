"""Batched forward kinematics, Jacobian and damped-least-squares inverse kinematics of one serial chain.

The chain is read from a compiled MuJoCo model, so simulation, GPU engines and a real arm use the same constants.
All functions act on (N, J) joint positions in NumPy or torch and answer in the same kind; nothing loops over N.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import array_api_compat
import numpy as np

from robot_rl.sim.arrays import cross, solve_definite
from robot_rl.types import Array

if TYPE_CHECKING:
    from mujoco import MjModel

_DRIFT = 0.05
"""Part of the way to the resting posture that one step of `approach` goes."""


class _Link(NamedTuple):
    """One joint: where it sits in the link before, its axis and anchor there, its range, and its position there."""

    name: str
    offset: np.ndarray
    axis: np.ndarray
    anchor: np.ndarray
    hinge: bool
    limits: tuple[float, float]
    ref: float


class Chain:
    """The hinge and slide joints between the world and one site of a compiled model.

    Every link transform is affine in (sin q, cos q) for a hinge and in q for a slide, so it is kept as constant 4 x 4
    matrices: one broadcast gives all links of all environments, then J small matrix products give their frames.

    Args:
        model: `mujoco.MjModel`.
        site: the site at the end of the chain.

    Attributes:
        joints: names of the J joints, base first.
        low: (J,) lower joint limits in rad or m; -inf where the model sets none.
        high: (J,) upper joint limits.
        hinges: J bools, whether a joint turns; others slide.

    Raises:
        ValueError: no such site, no joint on the way to it, or one that is no hinge or slide.
    """

    def __init__(self, model: MjModel, site: str) -> None:
        names = [model.site(i).name for i in range(model.nsite)]
        if site not in names:
            raise ValueError(f"no site '{site}' in the model, which has {sorted(names)}")
        end = names.index(site)
        body = int(model.site_bodyid[end])
        above = [body]
        while above[-1] > 0:
            above.append(int(model.body_parentid[above[-1]]))
        offset = np.eye(4)
        links: list[_Link] = []
        for body in reversed(above[:-1]):
            offset = offset @ _matrix(model.body_pos[body], model.body_quat[body])
            for j in range(int(model.body_jntadr[body]), int(model.body_jntadr[body]) + int(model.body_jntnum[body])):
                kind, name = int(model.jnt_type[j]), model.joint(j).name
                if kind not in (2, 3):  # mjJNT_SLIDE, mjJNT_HINGE
                    raise ValueError(f"joint '{name}' is no hinge or slide")
                limited = bool(model.jnt_limited[j])
                low, high = (float(x) for x in model.jnt_range[j]) if limited else (-math.inf, math.inf)
                ref = float(model.qpos0[model.jnt_qposadr[j]])
                links.append(_Link(name, offset, model.jnt_axis[j], model.jnt_pos[j], kind == 3, (low, high), ref))
                offset = np.eye(4)
        if not links:
            raise ValueError(f"no joint lies between the world and site '{site}', expected at least one")
        last = offset @ _matrix(model.site_pos[end], model.site_quat[end])
        self.joints = tuple(link.name for link in links)
        self._axis = [link.axis / np.linalg.norm(link.axis) for link in links]
        self._anchor = [np.array(link.anchor) for link in links]
        self.hinges, self._ref = [link.hinge for link in links], [link.ref for link in links]
        self.low, self.high = (np.array([link.limits[side] for link in links]) for side in (0, 1))
        self._constants = self._link_constants([link.offset for link in links], last)
        self._cache: dict[object, tuple[Array, ...]] = {}

    def _link_constants(self, offsets: list[np.ndarray], end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Matrices of link(q) = constant + sin q sine + cos q cosine, end, local axes, anchors, hinges, limits, 1."""
        count = len(offsets)
        constant, sine, cosine = (np.zeros((count, 4, 4)) for _ in range(3))
        for j in range(count):
            x, y, z = self._axis[j]
            anchor = self._anchor[j]
            if self.hinges[j]:
                # Rodrigues: R = u u^T + sin q [u] + cos q (1 - u u^T), turning about the anchor.
                outer = np.outer(self._axis[j], self._axis[j])
                parts = (outer, np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]), np.eye(3) - outer)
                for target, part in zip((constant, sine, cosine), parts):
                    target[j, :3, :3] = part
                    target[j, :3, 3] = -part @ anchor
                constant[j, :3, 3] += anchor
                constant[j, 3, 3] = 1.0
                s, c = math.sin(self._ref[j]), math.cos(self._ref[j])  # of q - ref, by the sums of angles
                sine[j], cosine[j] = c * sine[j] + s * cosine[j], c * cosine[j] - s * sine[j]
            else:
                constant[j] = np.eye(4)
                sine[j, :3, 3] = self._axis[j]
                constant[j, :3, 3] = -self._ref[j] * self._axis[j]
            for target in (constant, sine, cosine):
                target[j] = offsets[j] @ target[j]
        hinge = np.array(self.hinges)
        axis, anchor = np.stack(self._axis), np.stack(self._anchor)
        return constant, sine, cosine, end, axis, anchor, hinge, self.low, self.high, np.eye(6)

    def _on(self, q: Array) -> tuple[Array, ...]:
        """The constants as arrays of q's kind, dtype and device."""
        device = array_api_compat.device(q)
        key = (type(q), q.dtype, str(device))
        if key not in self._cache:
            xp = array_api_compat.array_namespace(q)
            moved = [xp.asarray(c, dtype=xp.bool if c.dtype == bool else q.dtype) for c in self._constants]
            self._cache[key] = tuple(array_api_compat.to_device(c, device) for c in moved)
        return self._cache[key]

    def _frames(self, q: Array) -> tuple[Array, list[Array]]:
        """(N, 4, 4) pose of the site and the J link poses, each (N, 4, 4)."""
        xp = array_api_compat.array_namespace(q)
        constant, sine, cosine, end, _, _, hinge = self._on(q)[:7]
        if all(self.hinges):
            s, c = xp.sin(q), xp.cos(q)
        else:
            s, c = xp.where(hinge, xp.sin(q), q), xp.where(hinge, xp.cos(q), xp.zeros_like(q))
        links = constant + s[..., None, None] * sine + c[..., None, None] * cosine
        frames = [links[:, 0]]
        for j in range(1, len(self.joints)):
            frames.append(frames[-1] @ links[:, j])
        return frames[-1] @ end, frames

    def forward(self, q: Array) -> tuple[Array, Array]:
        """Pose of the site.

        Args:
            q: (N, J) joint positions, rad or m.

        Returns:
            (N, 3) position in m and (N, 3, 3) rotation matrix (columns are the site's axes), in the world frame.
        """
        pose, _ = self._frames(q)
        return pose[:, :3, 3], pose[:, :3, :3]

    def jacobian(self, q: Array) -> tuple[Array, Array, Array]:
        """Pose of the site and its geometric Jacobian.

        Args:
            q: (N, J) joint positions, rad or m.

        Returns:
            (N, 3) position, (N, 3, 3) rotation, and (N, 6, J): linear velocity (first three rows) and angular velocity
            of the site in the world frame per joint velocity.
        """
        xp = array_api_compat.array_namespace(q)
        axis, anchor, hinge = self._on(q)[4:7]
        pose, frames = self._frames(q)
        stacked = xp.stack(frames, axis=1)  # (N, J, 4, 4)
        turn = stacked[..., :3, :3]
        direction = (turn @ axis[..., None])[..., 0]  # (N, J, 3) joint axes in the world
        arm = pose[:, None, :3, 3] - stacked[..., :3, 3] - (turn @ anchor[..., None])[..., 0]
        linear = cross(direction, arm)
        if not all(self.hinges):
            linear = xp.where(hinge[:, None], linear, direction)
            direction = xp.where(hinge[:, None], direction, xp.zeros_like(direction))
        both = xp.concat([linear, direction], axis=-1)
        return pose[:, :3, 3], pose[:, :3, :3], xp.permute_dims(both, (0, 2, 1))

    def solve(self, q: Array, position: Array, rotation: Array, *, iterations: int = 2, damping: float = 0.01) -> Array:
        """Joint positions that bring the site to a pose, by damped least squares from `q`.

        Each iteration adds J^T (J J^T + damping^2 I)^-1 e and clips to the joint limits. Two iterations bring a move of
        5 cm below 0.2 mm; near singularities the damping keeps the step finite and the pose is met only in part.

        Args:
            q: (N, J) start, rad or m.
            position: (N, 3) wanted position, m.
            rotation: (N, 3, 3) wanted rotation.
            iterations: number of updates.
            damping: in m and rad; larger is calmer near singularities and slower elsewhere.

        Returns:
            (N, J) joint positions within the limits.

        Source: Wampler, Manipulator inverse kinematic solutions based on vector formulations and damped least-squares
        methods (1986); Nakamura and Hanafusa, Inverse kinematic solutions with singularity robustness (1986).
        """
        for _ in range(iterations):
            q = self.correct(q, self.jacobian(q), position, rotation, damping=damping)
        return q

    def correct(
        self,
        q: Array,
        linearised: tuple[Array, Array, Array],
        position: Array,
        rotation: Array,
        *,
        damping: float = 0.01,
    ) -> Array:
        """One iteration of `solve` for a caller that has `linearised` = `jacobian(q)` already."""
        xp = array_api_compat.array_namespace(q)
        here, turn, jacobian = linearised
        low, high, eye = self._on(q)[7:]
        error = xp.concat([position - here, rotation_error(turn, rotation)], axis=-1)
        transposed = xp.permute_dims(jacobian, (0, 2, 1))
        step = transposed @ solve_definite(jacobian @ transposed + damping**2 * eye, error[..., None])
        return xp.minimum(xp.maximum(q + step[..., 0], low), high)

    def approach(
        self, q: Array, linearised: tuple[Array, Array, Array], position: Array, rest: Array, *, damping: float = 0.01
    ) -> Array:
        """One step of damped least squares to a position alone; what is left of the joints' freedom drifts to `rest`.

        Args:
            q: (N, J) start, rad or m.
            linearised: `jacobian(q)`.
            position: (N, 3) wanted position of the site, m.
            rest: (J,) posture.
            damping: in m.

        Returns:
            (N, J) within the limits.

        Source: Liegeois, Automatic supervisory control of the configuration and behavior of multibody mechanisms
        (1977), the gradient of a posture in the null space; damping as in `solve`.
        """
        xp = array_api_compat.array_namespace(q)
        low, high, eye = self._on(q)[7:]
        linear = linearised[2][:, :3]
        transposed = xp.permute_dims(linear, (0, 2, 1))
        posture = _DRIFT * (rest - q)
        error = (position - linearised[0])[..., None] - linear @ posture[..., None]
        step = transposed @ solve_definite(linear @ transposed + damping**2 * eye[:3, :3], error)
        return xp.minimum(xp.maximum(q + posture + step[..., 0], low), high)


def rotation_error(current: Array, wanted: Array) -> Array:
    """Axis times sine of the angle that turns `current` into `wanted`, in the world frame.

    Args:
        current: (N, 3, 3) rotation matrices.
        wanted: (N, 3, 3) rotation matrices.

    Returns:
        (N, 3) in rad for small angles; half the sum of the cross products of the columns, without a singularity
        below half a turn.

    Source: Luh, Walker, Paul, Resolved-acceleration control of mechanical manipulators (1980).
    """
    xp = array_api_compat.array_namespace(current)
    columns = cross(xp.permute_dims(current, (0, 2, 1)), xp.permute_dims(wanted, (0, 2, 1)))
    return 0.5 * xp.sum(columns, axis=1)


def _matrix(position: np.ndarray, quat: np.ndarray) -> np.ndarray:
    """(4, 4) of a position and a quaternion (w, x, y, z)."""
    w, x, y, z = quat / np.linalg.norm(quat)
    pose = np.eye(4)
    pose[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    pose[:3, 3] = position
    return pose
