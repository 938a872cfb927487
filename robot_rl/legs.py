"""What a walking policy sees: one function for the simulation and for the robot."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from robot_rl.types.policy_card import PolicyCard

Array = np.ndarray


@dataclass(frozen=True)
class Trunk:
    """The body that the legs carry, as a simulation knows it.

    Args:
        position: (3,) in the world [m].
        orientation: (4,) quaternion x, y, z, w in the world.
        velocity: (3,) in its own frame [m/s].
        angular_velocity: (3,) in its own frame [rad/s].
        acceleration: (3,) as an accelerometer on it reads, in its own frame [m/s2].
    """

    position: Array
    orientation: Array
    velocity: Array
    angular_velocity: Array
    acceleration: Array


@dataclass(frozen=True)
class Body:
    """What is measured of a robot on legs, and asked of it.

    Args:
        orientation: (4,) quaternion x, y, z, w of the trunk in the world, as in sensor_msgs/Imu.
        angular_velocity: (3,) in the trunk's own frame [rad/s].
        command: (3,) wanted forward and sideways speed [m/s] and turning [rad/s].
        position: (J,) of the joints, in the policy's order [rad].
        velocity: (J,) [rad/s].
        last_action: (J,) of the policy, as it gave it.
        time: since the policy began [s].
    """

    orientation: Array
    angular_velocity: Array
    command: Array
    position: Array
    velocity: Array
    last_action: Array
    time: float


def gravity(orientation: Array) -> Array:
    """(3,) unit vector that points down, in the trunk's frame: R(q)^T (0, 0, -1).

    Args:
        orientation: (4,) quaternion x, y, z, w of the trunk in the world; its length does not matter.

    Raises:
        ValueError: it is zero or not finite, so that nothing says where down is.
    """
    x, y, z, w = np.asarray(orientation, float)
    square = x * x + y * y + z * z + w * w
    if not (math.isfinite(square) and square > 1e-6):
        raise ValueError(f"the orientation is {[x, y, z, w]}: no quaternion, so that nothing says where down is")
    return np.array([2.0 * (w * y - x * z), -2.0 * (y * z + w * x), x * x + y * y - w * w - z * z]) / square


def observe(card: PolicyCard, body: Body) -> Array:
    """The observation of a policy.

    - `angular_velocity` (3): of the trunk, in its own frame;
    - `gravity` (3): `gravity` of the orientation;
    - `velocity_command` (3), clipped to the card's largest;
    - `joint_positions` (J): minus the card's default; `joint_velocities` (J);
    - `last_action` (J), as the policy gave it;
    - `gait_phase` (2): sine and cosine of 2 pi time / period.

    Each is multiplied by its scale.

    Args:
        card: of the policy.
        body: of the moment.

    Returns:
        (S,) float32.

    Source: unitree_rl_gym, deploy/deploy_mujoco (BSD-3-Clause); the same terms as legged_gym's.
    """
    most = np.array(card.largest_command or (np.inf,) * 3)
    found: dict[str, Callable[[], Array]] = {
        "angular_velocity": lambda: body.angular_velocity,
        "gravity": lambda: gravity(body.orientation),
        "velocity_command": lambda: np.clip(body.command, -most, most),
        "joint_positions": lambda: body.position - np.array(card.default),
        "joint_velocities": lambda: body.velocity,
        "last_action": lambda: body.last_action,
    }
    parts = []
    for term in card.observation:
        if term.period is not None:
            angle = 2.0 * math.pi * (body.time / term.period % 1.0)
            value = np.array([math.sin(angle), math.cos(angle)])
        else:
            value = np.asarray(found[term.term](), float)
        parts.append(value * np.asarray(term.scale, float))
    return np.concatenate(parts).astype(np.float32)


def target_of(card: PolicyCard, action: Array) -> Array:
    """(J,) joint targets [rad] of an action (J,), in the policy's order."""
    clipped = np.clip(np.asarray(action, float), -card.action_clip, card.action_clip)
    return np.array(card.default) + np.asarray(card.action_scale, float) * clipped
