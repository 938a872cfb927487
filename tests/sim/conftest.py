"""A tiny world with known dynamics, used by the tests of the engine."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from robot_rl.sim.world import Draw, Reset, View

_MJCF = """
<mujoco model="slider">
  <option timestep="0.01" gravity="0 0 0" integrator="Euler"/>
  <worldbody>
    <camera name="front" pos="0 -3 0" xyaxes="1 0 0 0 0 1"/>
    <light pos="0 -3 3"/>
    <body name="goal" mocap="true"><geom type="sphere" size="0.1" rgba="0 1 0 1" contype="0" conaffinity="0"/></body>
    <body name="car">
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom type="box" size="0.1 0.1 0.1" mass="2" rgba="1 0 0 1"/>
      <site name="tip" pos="0.5 0 0"/>
    </body>
  </worldbody>
  <actuator><motor joint="x" gear="1"/></actuator>
  <sensor><framepos name="tip" objtype="site" objname="tip"/><jointpos name="x" joint="x"/></sensor>
</mujoco>
"""


class Slider:
    """A 2 kg car on a line, pushed with up to 10 N at 25 Hz (4 physics steps of 10 ms); ends beyond |x| > 1."""

    name: str = "slider"
    control_hz: float = 25.0
    episode_steps: int = 20
    action_names: tuple[str, ...] = ("push",)
    action_low: tuple[float, ...] = (-10.0,)
    action_high: tuple[float, ...] = (10.0,)
    action_units: tuple[str, ...] = ("N",)
    obs_names: tuple[str, ...] = ("x", "v", "tip", "goal", "previous push")
    cameras: tuple[str, ...] = ("front",)
    markers: ClassVar[dict[str, str]] = {"goal": "goal"}

    def __init__(self, spread: float = 0.5, limit: float = 1.0, xml: str = _MJCF) -> None:
        self.spread, self.limit, self.xml = spread, limit, xml

    def mjcf(self) -> str:
        return self.xml

    def reset(self, draw: Draw, n: int, xp: Any) -> Reset:
        x = draw.uniform(1, low=-self.spread, high=self.spread)
        goal = xp.zeros((n, 3))
        goal[:, 0] = draw.uniform(low=-1.0, high=1.0)
        return Reset(x, xp.zeros((n, 1)), xp.zeros((n, 1)), {"goal": goal, "near": xp.zeros((n,), dtype=xp.int64)})

    def control(self, view: View, action: Any) -> Any:
        return 10.0 * action

    def update(self, view: View) -> None:
        near = abs(view.qpos[:, 0] - view.task["goal"][:, 0]) < 0.1
        view.task["near"] = (view.task["near"] + 1) * near

    def observe(self, view: View) -> Any:
        xp = view.xp
        tip = view.sensors["tip"][:, :1]
        return xp.concat([view.qpos, view.qvel, tip, view.task["goal"][:, :1], view.previous_action], axis=1)

    def reward(self, view: View) -> Any:
        return -abs(view.qpos[:, 0] - view.task["goal"][:, 0])

    def terminated(self, view: View) -> Any:
        return abs(view.qpos[:, 0]) > self.limit

    def success(self, view: View) -> Any:
        return view.task["near"] >= 2

    def expert(self, state: Any) -> Any:
        return 2.0 * (state[:, 3:4] - state[:, :1]) - 1.0 * state[:, 1:2]


@pytest.fixture(scope="session")
def slider() -> type[Slider]:
    """The class, to be made with the options of a test."""
    return Slider
