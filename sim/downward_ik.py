"""Inverse kinematics of a tool that has to be at a place first, and to point down as far as that leaves freedom."""

from __future__ import annotations

from types import ModuleType

import array_api_compat
import numpy as np

from robot_rl.sim.arm import FAR, cut, downward, shorten
from robot_rl.sim.arrays import constant, solve_definite
from robot_rl.sim.kinematics import Chain, rotation_error
from robot_rl.types import Array

_TURN = 0.3  # rad that a step of inverse kinematics goes at most, and FAR metres
_DAMPING = 1e-2  # of the direction, squared [rad per rad]: what little freedom is left must not throw the arm about
_TOWARD_HOME = 0.1  # share of the way home that an arm with joints to spare goes in a step
_MARGIN = 0.1  # rad that joints of an arm that has some to spare keep to their limits where it begins


class DownwardIk:
    """Joints for places of a site, whose z axis points down.

    Arms of five joints meet the place exactly and the direction as far as the rest of their freedom goes.

    Args:
        chain: that ends in the site.
        home: (J,) positions that joints to spare drift to.
    """

    def __init__(self, chain: Chain, home: tuple[float, ...]) -> None:
        self.chain, self.home, self.count = chain, home, len(home)

    def toward(self, joints: Array, target: Array, iterations: int = 2) -> Array:
        """(N, J) joints that bring the site to (N, 3) target [m], pointing down as far as the place leaves freedom.

        Source: Nakamura, Hanafusa, Yoshikawa, Task-priority based redundancy control of robot manipulators (1987).
        """
        xp = array_api_compat.array_namespace(joints)
        turn = downward(xp.zeros_like(target[:, 0]))
        low, high = constant(self.chain.low, joints), constant(self.chain.high, joints)
        none = xp.zeros_like(joints)
        for _ in range(iterations):
            place, rotation, jacobian = self.chain.jacobian(joints)
            linear, angular = jacobian[:, :3], jacobian[:, 3:]
            # Far wishes are cut: a step is as good as its Jacobian, which holds near where the arm is.
            far, error = cut(target - place, FAR), cut(rotation_error(rotation, turn), _TURN)
            if self.count < 6:  # the turn about the vertical counts least: pointing down may need its joint
                error = error * constant((1.0, 1.0, 0.2), joints)
                angular = angular * constant(((1.0,), (1.0,), (0.2,)), joints)
            wish = joints + self._step(far, error, linear, angular, joints)
            # What a joint at its limit cannot do, the others do: clipped alone, the arm would stand still there.
            at = xp.minimum(xp.maximum(wish, low), high)
            held, fixed = at != wish, xp.where(at != wish, at - joints, none)[..., None]
            far, error = far - (linear @ fixed)[..., 0], error - (angular @ fixed)[..., 0]
            rest = xp.astype(~held, joints.dtype)[:, None, :]
            step = fixed[..., 0] + self._step(far, error, linear * rest, angular * rest, joints) * rest[:, 0]
            joints = xp.minimum(xp.maximum(joints + shorten(step, _TURN), low), high)
        return joints

    def search(self, wanted: np.ndarray, tilt: float, within: float) -> tuple[np.ndarray, np.ndarray]:
        """Joints for places that may be far from one another.

        Args:
            wanted: (K, 3) [m].
            tilt: that the site may lean by [rad].
            within: of the place [m].

        Returns:
            (K, J) joints, and (K,) bool where they are such.
        """
        joints, good = np.tile(np.array(self.home), (len(wanted), 1)), np.zeros(len(wanted), bool)
        for _ in range(3):
            if good.any():  # what was not found from home is looked for from the nearest place that was
                apart = np.linalg.norm(wanted[~good][:, None] - wanted[good][None], axis=2)
                joints[~good] = joints[good][apart.argmin(axis=1)]
            joints[~good] = np.asarray(self.toward(joints[~good], wanted[~good], 40))
            good = self.meets(joints, wanted, tilt, within)
            if good.all():
                break
        return joints, good

    def meets(self, joints: np.ndarray, wanted: np.ndarray, tilt: float, within: float) -> np.ndarray:
        """(K,) bool, whether (K, J) joints are for (K, 3) places: see `search`; those to spare keep off limits."""
        place, rotation = (np.asarray(part) for part in self.chain.forward(joints))
        low, high = np.asarray(self.chain.low), np.asarray(self.chain.high)
        margin = (self.count > 6) * np.minimum(0.05 * (high - low), _MARGIN)
        good = (np.linalg.norm(place - wanted, axis=1) < within) & (rotation[:, 2, 2] < -np.cos(tilt))
        return good & ((joints >= low + margin) & (joints <= high - margin)).all(axis=1)

    def _step(self, far: Array, error: Array, linear: Array, angular: Array, joints: Array) -> Array:
        """(N, J) step that closes (N, 3) `far` first, then `error`, and goes home in what freedom is left."""
        xp = array_api_compat.array_namespace(joints)
        eye = constant(np.eye(3), joints)
        across = xp.permute_dims(linear, (0, 2, 1))
        inverse = linear @ across + 1e-5 * eye
        first = across @ solve_definite(inverse, far[..., None])
        # What turns the hand without moving the place: its Jacobian in the null space of the first task.
        free = angular - (angular @ across) @ _solve_columns(xp, inverse, linear)
        back = xp.permute_dims(free, (0, 2, 1))
        second = first + back @ solve_definite(free @ back + _DAMPING * eye, error[..., None] - angular @ first)
        if self.count < 7:
            return second[..., 0]
        home = _TOWARD_HOME * (constant(self.home, joints) - joints)[..., None]
        home = home - across @ solve_definite(inverse, linear @ home)
        return (second + home - back @ solve_definite(free @ back + _DAMPING * eye, angular @ home))[..., 0]


def _solve_columns(xp: ModuleType, matrix: Array, right: Array) -> Array:
    """matrix^-1 right for (N, 3, J) right."""
    return xp.concat([solve_definite(matrix, right[:, :, j : j + 1]) for j in range(right.shape[2])], axis=2)
