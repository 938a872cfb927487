"""Gaps of joints: another order, sign, unit or zero, and velocities that are not there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import model_validator

from robot_rl.gaps.contract import Gap, Measured
from robot_rl.types.options import Number, Whole

DEGREES = 180.0 / math.pi
Side = Literal["states", "commands", "both"]
"""Where joints are mistaken."""
TARGETS = 3
"""Rows of a command in pd mode that belong to a direction; kp and kd below them do not."""


class JointOrder(Gap):
    """The values of one joint under the name of another."""

    name: Literal["joint_order"] = "joint_order"
    """Of the gap."""
    order: tuple[Whole, ...]
    """For each joint the number, from 0, of the one whose value it gets."""
    side: Side = "states"
    """states, commands or both."""

    @model_validator(mode="after")
    def _permutation(self) -> JointOrder:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"order is {list(self.order)}, expected every number from 0 to {len(self.order) - 1} once")
        return self

    def measure(self, measured: Measured) -> Measured:
        """Positions and velocities in the other order."""
        if self.side == "commands":
            return measured
        order = list(self.order)
        return replace(measured, position=measured.position[order], velocity=measured.velocity[order])

    def command(self, value: np.ndarray) -> np.ndarray:
        """The same of commands."""
        return value if self.side == "states" else value[..., list(self.order)]

    def inverse(self) -> JointOrder:
        """The order back."""
        return JointOrder(order=tuple(np.argsort(self.order).tolist()), side=self.side)


class JointSign(Gap):
    """Joints that count the other way round."""

    name: Literal["joint_sign"] = "joint_sign"
    """Of the gap."""
    joints: tuple[Whole, ...]
    """Their numbers, from 0."""
    side: Side = "states"
    """states, commands or both."""

    def measure(self, measured: Measured) -> Measured:
        """Positions and velocities with the other sign."""
        if self.side == "commands":
            return measured
        sign = np.ones(len(measured.position))
        sign[list(self.joints)] = -1.0
        return replace(measured, position=sign * measured.position, velocity=sign * measured.velocity)

    def command(self, value: np.ndarray) -> np.ndarray:
        """The same of commands; gains have no sign."""
        if self.side == "states":
            return value
        changed = np.array(value, float)
        rows = changed[:TARGETS] if changed.ndim == 2 else changed
        rows[..., list(self.joints)] *= -1.0
        return changed

    def inverse(self) -> JointSign:
        """Itself."""
        return self


class JointScale(Gap):
    """Joint states in another unit."""

    name: Literal["joint_scale"] = "joint_scale"
    """Of the gap."""
    factor: Number = DEGREES
    """What is told for 1 rad; degrees unless said otherwise."""
    part: Literal["positions", "velocities", "both"] = "both"
    """positions, velocities or both."""

    @model_validator(mode="after")
    def _not_zero(self) -> JointScale:
        if self.factor == 0.0:
            raise ValueError("factor is 0, expected another number; velocities of zero are the gap velocity_missing")
        return self

    def measure(self, measured: Measured) -> Measured:
        """In the other unit."""
        position = 1.0 if self.part == "velocities" else self.factor
        velocity = 1.0 if self.part == "positions" else self.factor
        return replace(measured, position=position * measured.position, velocity=velocity * measured.velocity)

    def inverse(self) -> JointScale:
        """Back."""
        return JointScale(factor=1.0 / self.factor, part=self.part)


class JointOffset(Gap):
    """Joints whose zero is elsewhere."""

    name: Literal["joint_offset"] = "joint_offset"
    """Of the gap."""
    offset: tuple[Number, ...]
    """Added to the position of every joint [rad or m]."""

    def measure(self, measured: Measured) -> Measured:
        """Positions from the other zero.

        Raises:
            ValueError: not one entry per joint; a single one would be added to all of them.
        """
        if len(self.offset) != len(measured.position):
            raise ValueError(f"offset has {len(self.offset)} entries, expected {len(measured.position)}, one per joint")
        return replace(measured, position=measured.position + np.array(self.offset))

    def inverse(self) -> JointOffset:
        """Back."""
        return JointOffset(offset=tuple(-value for value in self.offset))


class VelocityMissing(Gap):
    """Velocities that are told as zero, whatever the joints do."""

    name: Literal["velocity_missing"] = "velocity_missing"
    """Of the gap."""

    def measure(self, measured: Measured) -> Measured:
        """Zeros."""
        return replace(measured, velocity=np.zeros(len(measured.velocity)))
