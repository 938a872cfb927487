"""Gymnasium's HalfCheetah-v5 on our engines: the same model file, observation, reward and initial states.

The model is read from the installed gymnasium package. Source: Wawrzynski, A Cat-Like Robot Real-Time Learning to Run
(2009), as in gymnasium/envs/mujoco/half_cheetah_v5.py.
"""

from __future__ import annotations

from types import ModuleType

from array_api_compat import array_namespace

from robot_rl.sim.arrays import constant
from robot_rl.sim.world import Draw, Reset, View, gymnasium_model
from robot_rl.types import Array
from robot_rl.types.options import NotNegative, Positive

_JOINTS = ("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")
_GEAR = (120.0, 90.0, 60.0, 120.0, 60.0, 30.0)
# (6, 17) gains of `expert`, one row per motor, and (6,) offsets
_GAIT = (
    (-0.7, -0.03, 0.67, 0.09, 0.62, -0.15, 1.25, -0.03, 0.04, -0.02, -0.01, -0.02, -0.02, 0.03, 0.02, 0.01, 0.01),
    (-0.54, -0.16, -0.1, 0.06, -0.46, -0.23, -0.37, -0.58, 0.07, -0.17, 0.2, -0.03, -0.01, 0, 0.01, 0.04, -0.03),
    (-0.37, -0.03, -0.14, 0.5, 0.51, 0.58, 0.6, -1.12, 0.14, 0.2, 0.02, 0.01, 0.02, 0.02, 0.02, 0.03, 0),
    (-4.89, 0.25, 0.23, 0.46, -0.21, -0.06, -0.37, -0.47, 0, -0.35, 0.15, -0.02, 0.02, -0.02, 0.02, 0.01, 0.01),
    (-1.07, 0.18, 0.18, 0.01, -0.58, -0.8, 0.09, -0.54, 0.01, 0.05, 0, -0.02, 0.02, -0.03, 0.01, 0, -0.02),
    (1.02, 0.16, -0.11, -0.47, -0.79, 0.21, 0.62, 0.38, 0.02, 0.33, -0.06, -0.02, 0.01, 0.01, 0.01, 0.01, 0),
)
_OFFSET = (-0.36, -0.19, -0.64, -1.24, -0.4, 0.08)


class HalfCheetah:
    """Run forward: reward is speed [m/s] minus 0.1 times the squared action; 1000 steps at 20 Hz, no termination.

    Args:
        forward_weight: factor of the speed.
        control_weight: factor of the squared action.
        reset_noise: half width of the uniform noise on positions and standard deviation of that on velocities.
        running: [m/s], the speed over the last step that counts as success.
    """

    name: str = "halfcheetah"
    control_hz: float = 20.0
    episode_steps: int = 1000
    action_names: tuple[str, ...] = _JOINTS
    action_low: tuple[float, ...] = tuple(-gear for gear in _GEAR)
    action_high: tuple[float, ...] = _GEAR
    action_units: tuple[str, ...] = ("N*m",) * 6
    obs_names: tuple[str, ...] = (
        *(f"{joint} position" for joint in ("rootz", "rooty", *_JOINTS)),
        *(f"{joint} velocity" for joint in ("rootx", "rootz", "rooty", *_JOINTS)),
    )
    cameras: tuple[str, ...] = ("track",)

    def __init__(
        self,
        *,
        forward_weight: NotNegative = 1.0,
        control_weight: NotNegative = 0.1,
        reset_noise: NotNegative = 0.1,
        running: Positive = 4.0,
    ) -> None:
        self.forward_weight = forward_weight
        self.control_weight = control_weight
        self.reset_noise = reset_noise
        self.running = running

    def mjcf(self) -> str:
        """Gymnasium's half_cheetah.xml.

        Raises:
            FileNotFoundError: the installed gymnasium does not have it.
        """
        return gymnasium_model("half_cheetah")

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Rest pose with noise."""
        noise = self.reset_noise
        qpos = draw.uniform(9, low=-noise, high=noise)
        qvel = draw.normal(9, std=noise)
        return Reset(qpos, qvel, xp.zeros((n, 6)), {"x": xp.asarray(qpos[:, 0], copy=True), "speed": qvel[:, 0]})

    def control(self, view: View, action: Array) -> Array:
        """Motors take the normalised action; the model's gears turn it into torques."""
        return action

    def update(self, view: View) -> None:
        """Mean forward speed over the step."""
        x = view.qpos[:, 0]
        view.task["speed"] = (x - view.task["x"]) * self.control_hz
        view.task["x"] = x + 0.0  # a copy

    def observe(self, view: View) -> Array:
        """Positions without x, then velocities: (N, 17)."""
        return view.xp.concat([view.qpos[:, 1:], view.qvel], axis=1)

    def reward(self, view: View) -> Array:
        """Speed minus the price of control."""
        cost = (view.action * view.action).sum(axis=1)  # type: ignore[call-overload]
        return view.total({"forward": self.forward_weight * view.task["speed"], "control": -self.control_weight * cost})

    def terminated(self, view: View) -> Array:
        """Never."""
        return view.step < 0

    def success(self, view: View) -> Array:
        """Faster than `running` now."""
        return view.task["speed"] > self.running

    def expert(self, state: Array) -> Array:
        """Linear feedback; its gains were found by random search on this task (about 6000 return in most episodes).

        Source: Mania, Guy and Recht, Simple random search provides a competitive approach to RL (2018), for the search.
        """
        xp = array_namespace(state)
        return xp.clip(state @ constant(_GAIT, state).T + constant(_OFFSET, state), -1.0, 1.0)
