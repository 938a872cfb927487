"""How alike a motion and its reference are: errors, and the two rewards that are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from robot_rl.types import Array


@dataclass(frozen=True)
class Motion:
    """What is compared, of N bodies at one instant each.

    Attributes:
        joint: (N, J) angles [rad] of the hinges.
        joint_speed: (N, J) [rad/s].
        effector: (N, E, 3) end effectors [m] relative to the root, in its heading frame, but height above the ground.
        place: (N, 3) root [m].
        turn: (N, 4) unit quaternion of the root, w first.
        velocity: (N, 3) of the root [m/s], in the world.
        spin: (N, 3) of the root [rad/s], in the world.
        mass_velocity: (N, 3) of the centre of mass [m/s].
    """

    joint: Array
    joint_speed: Array
    effector: Array
    place: Array
    turn: Array
    velocity: Array
    spin: Array
    mass_velocity: Array


WEIGHTS = {"pose": 0.5, "velocity": 0.05, "effector": 0.15, "root": 0.2, "mass": 0.1}
"""Shares of the additive reward, of sum 1."""


def angle_between(a: Array, b: Array, xp: ModuleType) -> Array:
    """(...,) angle [rad] in [0, pi] of the turn from one unit quaternion to another, (..., 4) each.

    A quaternion and its negative are the same turn: |<a, b>| makes them so.
    """
    return 2.0 * xp.acos(xp.clip(xp.abs(xp.sum(a * b, axis=-1)), 0.0, 1.0))


def errors(now: Motion, wanted: Motion, xp: ModuleType, *, effector: str = "sum") -> dict[str, Array]:
    """The five errors (N,) of the additive reward.

    Joints weigh alike (1 / J each). `effector`: "sum" of the squared distances, as in the present source, or "mean".

    Source: Peng et al., DeepMimic (2018), section 5.3; xbpeng/DeepMimic, SceneImitate.
    """
    joint, speed = now.joint - wanted.joint, now.joint_speed - wanted.joint_speed
    reach = xp.sum((now.effector - wanted.effector) ** 2, axis=2)
    tilt = angle_between(now.turn, wanted.turn, xp)

    def square(a: Array, b: Array) -> Array:
        return xp.sum((a - b) ** 2, axis=1)

    return {
        "pose": xp.mean(joint**2, axis=1),
        "velocity": xp.mean(speed**2, axis=1),
        "effector": xp.sum(reach, axis=1) if effector == "sum" else xp.mean(reach, axis=1),
        "root": square(now.place, wanted.place)
        + 0.1 * tilt**2
        + 0.01 * square(now.velocity, wanted.velocity)
        + 0.001 * square(now.spin, wanted.spin),
        "mass": 0.1 * square(now.mass_velocity, wanted.mass_velocity),
    }


def scales(joints: int) -> dict[str, float]:
    """How fast each part of the additive reward falls, for J joints (the source counts 15 in its human)."""
    return {"pose": 2.0 / 15.0 * joints, "velocity": 0.1 / 15.0 * joints, "effector": 10.0, "root": 5.0, "mass": 10.0}


def additive(found: Mapping[str, Array], scale: Mapping[str, float], xp: ModuleType) -> Array:
    """(N,) sum of w exp(-s E) over the five errors, in [0, 1].

    Source: Peng et al., DeepMimic (2018), equation 5.
    """
    total: Any = 0.0
    for name, weight in WEIGHTS.items():
        total = total + weight * xp.exp(-scale[name] * found[name])
    return total


def product(now: Motion, wanted: Motion, xp: ModuleType, *, place: float = 20.0, turn: float = 20.0) -> Array:
    """(N,) exp(-place mean |error of positions|^2) exp(-turn mean (error of angles)^2), in [0, 1].

    Positions are those of root and end effectors, angles those of root and joints. It falls to 0 as soon as any part is
    far off, so that starts from the reference are needed to find it at all.

    Source: SkillMimic-V2 (Ingrid789/SkillMimic-V2), the factor of the body; its velocity weights are 0, and there are
    no objects and contacts here.
    """
    spot = xp.sum((now.place - wanted.place) ** 2, axis=1)
    reach = xp.sum((now.effector - wanted.effector) ** 2, axis=2)
    bodies, joints = reach.shape[1] + 1, now.joint.shape[1] + 1
    far = (spot + xp.sum(reach, axis=1)) / bodies
    tilt = angle_between(now.turn, wanted.turn, xp)
    bent = (tilt**2 + xp.sum((now.joint - wanted.joint) ** 2, axis=1)) / joints
    return xp.exp(-place * far) * xp.exp(-turn * bent)
