"""What stands behind the simulated robot: anything whose joints can be commanded and stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from robot_rl.legs import Trunk
from robot_rl.real.core.clock import ManualClock
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.fake_robot import FakeOptions, FakeRobot
from robot_rl.real.robot import Command


class Photographer(Protocol):
    """Renders scenes of a plant; belongs to the thread that made it."""

    def take(self, scene: Any, cameras: Sequence[str]) -> dict[str, np.ndarray]:
        """Camera -> (height, width, 3) uint8."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Plant(Protocol):
    """Joints in the order of a RobotSpec; `robot_rl.sim.plant` has MuJoCo models and worlds of this kind."""

    @property
    def blocked(self) -> np.ndarray:
        """(J,) bool, joints that do not move whatever is commanded; set elements to block."""
        ...

    @property
    def position(self) -> np.ndarray:
        """(J,) [rad or m]."""
        ...

    @property
    def velocity(self) -> np.ndarray:
        """(J,) [rad/s or m/s]."""
        ...

    @property
    def effort(self) -> np.ndarray | None:
        """(J,) [N m or N], None when unknown."""
        ...

    @property
    def wrench(self) -> np.ndarray:
        """(6,) force [N] and torque [N m] of contacts on the tool, as a tared sensor at the flange tells them."""
        ...

    @property
    def trunk(self) -> Trunk | None:
        """Of a robot on legs; None of any other."""
        ...

    @property
    def task(self) -> dict[str, np.ndarray]:
        """What a perception would tell a policy, by name."""
        ...

    @property
    def success(self) -> bool:
        """Whether the task is done now."""
        ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras that can be rendered."""
        ...

    def scene(self) -> Any:
        """What a picture of this moment needs."""
        ...

    def photographer(self, height: int, width: int) -> Photographer:
        """Renderer for scenes of this plant."""
        ...

    def reset(self, seed: int) -> None:
        """Start anew; seeds below 0 continue the stream of random starts."""
        ...

    def renew_task(self) -> None:
        """Draw a new task and leave the robot where it is."""
        ...

    def hold(self) -> None:
        """Command the present position, or zero velocity or effort; legs are damped."""
        ...

    def command(self, value: np.ndarray) -> None:
        """Take (J,) positions, velocities or efforts from now on; legs (5, J), see `spec.PD_INTERFACES`."""
        ...

    def release(self) -> None:
        """Let go of a robot on legs that hangs in a harness; nothing for any other."""
        ...

    def hang(self, lift: float, sway: float) -> None:
        """Lift the harness of legs [m] and swing the trunk in it [rad]; nothing for any other robot."""
        ...

    def push(self, offset: np.ndarray) -> None:
        """Displace the joints by (J,) [rad]."""
        ...

    def step(self, seconds: float) -> None:
        """Advance."""
        ...


class KinematicPlant:
    """Joints without mass that follow commands with a first-order lag, axes of a base that follow its twist, or joints
    that efforts accelerate; needs no simulator.

    Args:
        spec: of the robot.
        lag: time constant of the position servo [s].
        timestep: integration step [s].
    """

    effort: np.ndarray | None = None
    trunk: Trunk | None = None
    success = False
    cameras: tuple[str, ...] = ()

    def __init__(self, spec: RobotSpec, *, lag: float = 0.02, timestep: float = 0.002) -> None:
        self._spec, self._lag, self._dt = spec, lag, timestep
        self.task: dict[str, np.ndarray] = {}
        self.wrench = np.zeros(6)  # it touches nothing
        self.reset(0)

    @property
    def position(self) -> np.ndarray:
        """(J,) [rad or m]."""
        return self._robot.position

    @property
    def velocity(self) -> np.ndarray:
        """(J,) [rad/s or m/s]."""
        return self._robot.velocity

    @property
    def blocked(self) -> np.ndarray:
        """(J,) joints that do not move whatever is commanded."""
        return self._robot.blocked

    @blocked.setter
    def blocked(self, value: np.ndarray) -> None:
        self._robot.blocked = np.array(value, bool)

    def scene(self) -> Any:
        """Nothing."""

    def photographer(self, height: int, width: int) -> Photographer:
        """There is nothing to see.

        Raises:
            ValueError: always.
        """
        raise ValueError("joints without a model cannot be seen; give the simulated robot a world or a model")

    def reset(self, seed: int) -> None:
        """Back home, at rest."""
        self._clock = ManualClock()
        self._robot = FakeRobot(
            self._spec, FakeOptions(lag=self._lag, physics_dt=self._dt, state_timeout=1e9), clock=self._clock
        )

    def renew_task(self) -> None:
        """There is none."""

    def hold(self) -> None:
        """Command the present position, or zero velocity."""
        self._robot.stop()

    def release(self) -> None:
        """Nothing hangs."""

    def hang(self, lift: float, sway: float) -> None:
        """Nothing hangs."""

    def command(self, value: np.ndarray) -> None:
        """Take (J,) positions or velocities from now on."""
        self._robot.write(Command(self._clock.now(), np.asarray(value, float), self._spec.mode))

    def push(self, offset: np.ndarray) -> None:
        """Displace the joints by (J,) [rad]."""
        self._robot.push(offset)

    def step(self, seconds: float) -> None:
        """Advance."""
        self._clock.advance(seconds)
        self._robot.read()
