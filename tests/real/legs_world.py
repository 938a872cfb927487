"""A simulated G1 with its policy, supervisor and runner in one process: `import`ed by the tests of legs."""
# pyright: reportArgumentType=false, reportOptionalIterable=false, reportOptionalMemberAccess=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from robot_rl import policy_card
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.pipeline import CommandPipeline, Controller, PipelineOptions
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec, of_card
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, fit_policy
from robot_rl.real.robot import RobotState
from robot_rl.sim.legs_card import new_legs_card
from robot_rl.sim.legs_plant import LegsPlant
from robot_rl.types.card import Card, SensorCard
from robot_rl.verbs.robot_policy import load_robot_policy

G1 = next((p for p in (up / "shared/data/robots/g1" for up in Path(__file__).parents) if p.exists()), Path("absent"))
needs_g1 = pytest.mark.skipif(not G1.exists(), reason="the folder shared/data/robots/g1 is absent")
VELOCITY = (32.0, 20.0, 32.0, 20.0, 37.0, 37.0) * 2
"""Of the G1's URDF; its MJCF has none."""


def g1_card(model: str = "g1_12dof.xml", **legs) -> Card:
    """The card as `robot-rl robot new … policy=policy.yaml` makes it, and what a person would add."""
    found = new_legs_card(str(G1 / model), "g1")
    assert found is not None
    made = policy_card.standing(found[0], policy_card.read_description(G1 / "policy.yaml"))
    joints = tuple(
        joint.model_copy(update={"velocity": speed, "acceleration": 500.0})
        for joint, speed in zip(made.joints, VELOCITY)
    )
    sensors = {
        "joints": SensorCard(topic="joint_states", type="sensor_msgs/JointState"),
        "imu": SensorCard(topic="imu", type="sensor_msgs/Imu"),
        "command": SensorCard(topic="cmd_vel", type="geometry_msgs/Twist", required=False, timeout=0.5),
    }
    return made.model_copy(
        update={
            "joints": joints,
            "legs": made.legs.model_copy(update={"stop": "damp", **legs}),
            "controller_topic": "",
            "controller_timeout": 0.1,
            "estop": made.estop.model_copy(update={"action": "brake"}),
            "sensors": sensors,
        }
    )


class LegsWorld:
    """Ticks of state, policy, supervisor and physics; commands reach the joints `late` ticks after their state."""

    def __init__(self, folder: Path, card: Card, *, rate: float = 100.0, late: int = 2) -> None:
        shutil.copy(G1 / "policy.pt", folder)
        policy_card.write(G1 / "policy.yaml", folder / "policy.pt", card)
        self.spec = spec = RobotSpec.from_dict(of_card(card)[0])
        policy, port = fit_policy(load_robot_policy(str(folder), device="cpu", threads=1, trust=True), spec, {}, print)
        self.runner = PolicyRunner(policy, port, RunnerOptions(rate=rate, mode=spec.mode), identity="g1")
        self.plant = LegsPlant(
            card.model.path,
            spec.names,
            base=card.base,
            kd=spec.array("kd"),
            effort=spec.array("effort"),
            home=spec.home,
        )
        self.pipeline = CommandPipeline(spec, SafetySettings(rate=rate), PipelineOptions(estop_heartbeat=0.0))
        self.pipeline.controller(Controller(1))
        self.now, self.period, self.late, self.seq = 100.0, 1.0 / rate, late, 0
        self.command = np.zeros(3)
        self.silent = False  # the policy says nothing
        self.upright = True  # the IMU may lie
        self.sent, self.torque = [], []
        self._coming: list[np.ndarray] = []

    @property
    def state(self) -> str:
        return self.pipeline.safety.state

    def tick(self):
        self.now += self.period
        trunk, plant = self.plant.trunk, self.plant
        turn = trunk.orientation if self.upright else np.array([1.0, 0.0, 0.0, 0.0])
        imu = np.concatenate([turn, trunk.angular_velocity, trunk.acceleration])
        measured = RobotState(self.now, plant.position, plant.velocity, plant.effort, None, {"imu": imu})
        if self.state != "ACTIVE":
            self.runner.restart()
        wanted = self.runner.tick(plant.position, plant.velocity, {"imu": imu, "velocity_command": self.command})
        if not self.silent:
            self.seq += 1
            fields = {"positions": wanted.values}
            message = CommandMessage("policy", "g1", self.seq, self.spec.names, self.now, wanted.times, fields)
            self.pipeline.offer(message, self.now)
        out = self.pipeline.tick(self.now, measured)
        if out.authority == "policy":
            plant.release()
        if out.publish:
            self.sent.append(out)
            self._coming.append(np.stack([out.value, *np.zeros((2, len(out.value))), *out.gains]))
        if len(self._coming) > self.late:
            plant.command(self._coming.pop(0))
        plant.step(self.period)
        self.torque.append(plant.effort)
        return out

    def run(self, seconds: float):
        for _ in range(round(seconds / self.period)):
            out = self.tick()
        return out

    def walk(self):
        """Start up, enable, stand, and be driven."""
        self.run(0.7)
        assert self.pipeline.enable() == []
        self.run(2.1)
        assert self.state == "ACTIVE"
        return self
