"""A walking policy of others on a robot: its card says what it sees and what its actions are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from robot_rl.legs import Body, observe, target_of
from robot_rl.real.core.spec import PD, RobotSpec
from robot_rl.types import IOSpec, Obs
from robot_rl.types.policy_card import PolicyCard

IMU, COMMAND = "imu", "velocity_command"
"""What the port is told beside the joints: (10,) of an Imu (`messages.imu_array`); (3,) forward, sideways, turn."""


GAINS = ("kp", "kd")


def check_trained(spec: RobotSpec, external: Sequence[str], gains: Mapping[str, np.ndarray], hint: str = "") -> None:
    """Compare a robot with the one that a policy was trained on.

    Args:
        spec: of the robot.
        external: what the policy is told beside the joints.
        gains: "kp", "kd" -> (J,) of training, in the robot's order.
        hint: what to do where they differ.

    Raises:
        ValueError: it has no IMU, or other gains.
    """
    if IMU in external and not spec.imu:
        raise ValueError("the robot's card has no sensor of type sensor_msgs/Imu, and this policy reads one")
    for kind, trained in gains.items():
        wrong = np.flatnonzero(~np.isclose(spec.array(kind), trained, rtol=1e-3))
        if wrong.size:
            i = int(wrong[0])
            raise ValueError(
                f"{kind} of {spec.names[i]} is {spec.array(kind)[i]:g} in the robot's card, the policy was trained "
                f"with {trained[i]:g}{hint}"
            )


class LeggedPort:
    """Observation and targets of a policy with a card.

    An action in [-1, 1] stands for -clip to +clip of the policy's own; commands are joint targets [rad].

    Args:
        card: of the policy.
        joints: of the robot, in its order.

    Raises:
        ValueError: the robot has not all joints of the policy, or more.
    """

    cameras: tuple[str, ...] = ()
    external: tuple[str, ...] = (IMU, COMMAND)
    neutral: Mapping[str, np.ndarray] = MappingProxyType({})

    def __init__(self, card: PolicyCard, joints: Sequence[str]) -> None:
        if set(joints) != set(card.joints):
            odd = sorted(set(joints) ^ set(card.joints))
            raise ValueError(
                f"the policy moves {', '.join(card.joints)}; the robot's joints differ in {', '.join(odd)}"
            )
        self.card = card
        self._order = np.array([joints.index(name) for name in card.joints])  # policy's joint -> robot's
        self.io = interface(card)
        self._count = 0
        self._action = np.zeros(len(joints))

    def check(self, spec: RobotSpec) -> None:
        """Refuse a robot that would make other torques of its targets than in training.

        Raises:
            ValueError: another command mode, or other gains.
        """
        if spec.mode != PD:
            raise ValueError(
                f"command_mode is {spec.command_mode}, expected pd: this policy asks for torque by targets that lead"
            )
        gains = {kind: np.empty(len(self._order)) for kind in GAINS}
        for kind, trained in (("kp", self.card.kp), ("kd", self.card.kd)):
            gains[kind][self._order] = trained
        check_trained(spec, self.external, gains, "; robot new … policy=<its description> takes them from there")

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Begin: no last action, the gait at its start."""
        self._count = 0
        self._action = np.zeros(len(self._order))

    def observe(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> Obs:
        """{"state": (1, S) float32}; one call is one decision of the gait's clock, whose first is one period in."""
        self._count += 1
        imu = np.asarray(task[IMU], float)
        body = Body(
            orientation=imu[:4],
            angular_velocity=imu[4:7],
            command=np.asarray(task[COMMAND], float),
            position=np.asarray(position, float)[self._order],
            velocity=np.asarray(velocity, float)[self._order],
            last_action=self._action,
            time=self._count / self.card.control_hz,
        )
        return {"state": observe(self.card, body)[None]}

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) in [-1, 1] -> (J,) targets [rad] in the robot's order."""
        self._action = np.asarray(action, float)[0] * self.card.action_clip
        target = np.empty(len(self._order))
        target[self._order] = target_of(self.card, self._action)
        return target


def interface(card: PolicyCard) -> IOSpec:
    """What a policy with this card sees and does."""
    sizes = card.sizes()
    scale = np.broadcast_to(np.asarray(card.action_scale, float), (len(card.joints),))
    reach = scale * card.action_clip
    return IOSpec(
        obs={"state": ((sum(sizes),), "float32")},
        obs_names=tuple(f"{term.term}_{i}" for term, size in zip(card.observation, sizes) for i in range(size)),
        action_names=tuple(f"{name}_target" for name in card.joints),
        action_low=tuple((np.array(card.default) - reach).tolist()),
        action_high=tuple((np.array(card.default) + reach).tolist()),
        action_units=("rad",) * len(card.joints),
        control_hz=card.control_hz,
    )
