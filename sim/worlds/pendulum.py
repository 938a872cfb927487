"""Gymnasium's pendulum as an array world, with dynamics that can be set or drawn anew in every episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robot_rl.sim.array_env import Reward
from robot_rl.types import IOSpec
from robot_rl.types.options import Count, Number, Positive

_DT, _TORQUE, _FASTEST = 0.05, 2.0, 8.0  # s, N*m, rad/s


class Pendulum:
    """Swing a rod up and hold it there, with a motor too weak to lift it directly.

    Observation: cosine and sine of the angle from upright, and angular velocity [rad/s] unless it is hidden. Action:
    torque / 2 N*m. Reward: -(angle^2 + 0.1 velocity^2 + 0.001 torque^2) before the move. Every parameter is a number,
    or a pair (low, high) from which each episode draws its own, unseen by the policy (domain randomisation).

    Args:
        mass: of the rod [kg].
        length: of the rod [m].
        wind: constant torque that adds to the motor's [N*m].
        steps: of an episode, 0.05 s each.
        velocity: whether it is observed; a policy without a memory cannot balance otherwise, and there is no expert.

    Raises:
        ValueError: a range that is none, a mass or length that is not positive, or no step.

    Source: Gymnasium's Pendulum-v1, which it equals for mass 1, length 1 and wind 0. Wind is ours.
    """

    def __init__(
        self,
        mass: Positive | Sequence[Positive] = 1.0,
        length: Positive | Sequence[Positive] = 1.0,
        wind: Number | Sequence[Number] = 0.0,
        steps: Count = 200,
        velocity: bool = True,
    ) -> None:
        self.ranges = {"mass": _range("mass", mass), "length": _range("length", length), "wind": _range("wind", wind)}
        if min(self.ranges["mass"][0], self.ranges["length"][0]) <= 0.0 or steps < 1:
            raise ValueError(
                f"mass, length, steps are {mass}, {length}, {steps}; expected positive kilograms and metres and at "
                "least 1 step"
            )
        self.episode_steps = steps
        names = ("cos", "sin", "velocity") if velocity else ("cos", "sin")
        self.io = IOSpec(
            {"state": ((len(names),), "float32")}, ("torque",), (-_TORQUE,), (_TORQUE,), ("N*m",), control_hz=1.0 / _DT,
            obs_names=names,
        )  # fmt: skip
        self.expert = self._expert if velocity else None

    def start(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Any angle, up to 1 rad/s. Drawn before the parameters: equal seeds start equally in all dynamics."""
        pose = {"angle": np.array(rng.uniform(-np.pi, np.pi)), "velocity": np.array(rng.uniform(-1.0, 1.0))}
        return pose | {name: np.array(rng.uniform(*bounds)) for name, bounds in self.ranges.items()}

    def step(self, state: dict[str, np.ndarray], action: np.ndarray) -> tuple[Reward, np.ndarray, np.ndarray]:
        """One step of 0.05 s; nothing ends an episode but time."""
        torque, angle, velocity = _TORQUE * action[:, 0], state["angle"], state["velocity"]
        wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
        reward: Reward = {"angle": -(wrapped**2), "speed": -0.1 * velocity**2, "torque": -0.001 * torque**2}
        mass, length = state["mass"], state["length"]
        pull = 15.0 / length * np.sin(angle) + 3.0 / (mass * length**2) * (torque + state["wind"])
        state["velocity"] = np.clip(velocity + _DT * pull, -_FASTEST, _FASTEST)
        state["angle"] = angle + _DT * state["velocity"]
        no = np.zeros(len(torque), bool)
        return reward, no, no | (np.cos(state["angle"]) > 0.95)

    def observe(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """(N, 3), or (N, 2) without the velocity."""
        angle = state["angle"]
        seen = [np.cos(angle), np.sin(angle), state["velocity"]][: self.io.obs["state"][0][0]]
        return np.stack(seen, 1).astype(np.float32)

    def privileged(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What a policy may not see: velocity, mass, length and wind, beside the angle."""
        angle = state["angle"]
        hidden = {name: state[name] for name in ("velocity", *self.ranges)}
        return {"cos": np.cos(angle), "sin": np.sin(angle), **hidden}

    def _expert(self, obs: np.ndarray) -> np.ndarray:
        """(N, 1) pump energy below, hold near the top; does not know the parameters."""
        cos, sin, velocity = np.asarray(obs, np.float64).T
        energy = velocity**2 / 6.0 + 5.0 * (cos - 1.0)  # zero upright and at rest, mass and length 1
        pump = np.where(energy < 0.0, np.sign(velocity + 1e-9), -np.sign(velocity))
        hold = -(10.0 * np.arctan2(sin, cos) + 2.0 * velocity) / _TORQUE
        return np.clip(np.where(cos > 0.9, hold, pump), -1.0, 1.0)[:, None].astype(np.float32)

    def picture(self, state: dict[str, np.ndarray], row: int) -> np.ndarray:
        """The rod, upright is up; 128 x 128."""
        y, x = np.mgrid[:128, :128] - 64.0
        angle, reach = float(state["angle"][row]), 50.0 / self.ranges["length"][1] * float(state["length"][row])
        along = -x * np.sin(angle) - y * np.cos(angle)  # a positive angle leans left, as in Gymnasium
        across = np.abs(x * np.cos(angle) - y * np.sin(angle))
        frame = np.full((128, 128, 3), 235, np.uint8)
        frame[(along >= 0) & (along <= reach) & (across < 4)] = (190, 70, 70)
        return frame


def _range(name: str, value: float | Sequence[float]) -> tuple[float, float]:
    numbers = [float(x) for x in (value if isinstance(value, Sequence) else (value, value))]
    if len(numbers) != 2 or not np.isfinite(numbers).all() or numbers[0] > numbers[1]:
        raise ValueError(f"{name} is {value}, expected a number or a pair (low, high) of finite numbers")
    return numbers[0], numbers[1]
