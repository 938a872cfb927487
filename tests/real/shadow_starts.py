"""Healthy starts of real worlds, measured tick by tick: at rest, then driven by a person through the supervisor."""
# pyright: reportArgumentType=false, reportOptionalIterable=false, reportOptionalMemberAccess=false, reportOptionalCall=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from robot_rl.data.seen import StepSample, measure_seen
from robot_rl.gaps import Gap, Measured, apply_gaps
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.pipeline import CommandPipeline, Controller, PipelineOptions
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.shadow import Shadow, ShadowSample
from robot_rl.real.core.spec import RobotSpec, of_card
from robot_rl.real.graph import find_file
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions
from robot_rl.real.robot import RobotState
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.plant import WorldPlant
from robot_rl.sim.port import WorldPort
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types import Action, IOSpec, PolicyParts, Seen
from robot_rl.types.card import EstopCard, SensorCard
from robot_rl.types.io import mosaic

SMALL = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
PERIOD, WAY = 0.01, 0.004
"""Of the loop, and of a state from the robot to the policy [s]."""
REST = 3.0
"""Seconds at rest before somebody drives."""
STAND = 3.5
"""Seconds in which legs stand up, and swing once."""


@dataclass
class Start:
    """What happened: one row per tick."""

    spec: RobotSpec
    measured: list[Measured] = field(default_factory=list)
    executed: list[np.ndarray | None] = field(default_factory=list)
    task: list[dict[str, np.ndarray]] = field(default_factory=list)
    seen: Seen | None = None
    make_runner: Callable[[], PolicyRunner] | None = None

    def shadow(self, cameras: tuple[str, ...] = ()) -> Shadow:
        """A comparison of this robot with its policy, fresh."""
        runner = self.make_runner()
        return Shadow(self.spec, self.seen, runner.port.io, cameras=cameras, body=bool(self.spec.imu))

    def play(self, gaps: tuple[Gap, ...] = (), *, until: float = np.inf, drive: bool = True, ask: int = 25) -> Shadow:
        """The same start seen through gaps; every `ask`-th tick the policy is asked."""
        runner = self.make_runner()
        names = tuple(self.measured[0].pictures)
        shadow = Shadow(self.spec, self.seen, runner.port.io, cameras=names, body=bool(self.spec.imu))
        for k, (told, sent, task) in enumerate(zip(self.measured, self.executed, self.task)):
            now = told.time + WAY
            if now - self.measured[0].time > until:
                break
            got = apply_gaps(gaps, told)
            proposed = None
            if k % ask == 0:
                runner.restart()
                more = {"imu": got.imu} if got.imu is not None else {}
                wanted = runner.tick(got.position, got.velocity, {**task, **more})
                proposed = (*runner.asked, wanted.values[-1])
            shadow.take(
                ShadowSample(
                    now,
                    got.time,
                    got.position,
                    got.velocity,
                    got.imu,
                    {name: (got.time, mosaic(shot)) for name, shot in got.pictures.items()},
                )
            )
            if proposed is not None:
                shadow.propose(now, *proposed)
            if drive and sent is not None:
                shadow.execute(now, sent)
        return shadow


class Expert:
    """The scripted controller of a world as a policy."""

    parts = PolicyParts()

    def __init__(self, io: IOSpec, world: Reach) -> None:
        self.io, self.world = io, world

    def reset(self, rows=None) -> None:
        """It remembers nothing."""

    def act(self, obs, *, deterministic=False) -> Action:
        """Towards the goal."""
        return Action(np.clip(np.asarray(self.world.expert(obs["state"])), -1.0, 1.0).astype(np.float32))


def small_card():
    """The arm of the quickstart as its owner has filled it in."""
    card = new_card(str(SMALL), "small")[0]
    joints = tuple(joint.model_copy(update={"acceleration": 6.0}) for joint in card.joints)
    return card.model_copy(
        update={
            "joints": joints,
            "command_mode": "forward_position",
            "controller_topic": "",
            "controller_timeout": 0.2,
            "estop": EstopCard(action="brake"),
            "sensors": {"joints": SensorCard(topic="joint_states", type="sensor_msgs/JointState")},
        }
    )


@lru_cache
def reach_of(robot: str):
    """The world on the desk arm or on the quickstart's, its RobotSpec, and what training would have seen of it."""
    if robot == "desk_arm":
        world, spec = Reach(), RobotSpec.load(find_file("desk_arm"))
    else:
        card = small_card()
        world, spec = Reach(robot=card), replace(RobotSpec.from_dict(of_card(card)[0]), workspace=None)
    env = make(16, 0, world=world, options=EngineOptions(num_threads=2))
    rows, rng = StepSample(), np.random.default_rng(0)
    obs, _ = env.reset()
    for _ in range(320):
        action = env.expert(obs) + 0.5 * rng.standard_normal((16, env.io.action_dim))
        action = np.clip(action, -1.0, 1.0).astype(np.float32)
        rows.step(obs, action)
        obs, *_ = env.step(action)
    env.close()
    return world, spec, measure_seen(rows, env.io)


def arm_start(robot: str, seed: int, seconds: float = 8.0, pictures: bool = False) -> Start:
    """An arm at rest in the world reach, then all its joints moved at once, each with a rhythm of its own."""
    world, spec, seen = reach_of(robot)
    rng = np.random.default_rng(seed)
    plant = WorldPlant(world, spec.names, seed=seed, mode=spec.mode, kp=spec.array("kp"), kd=spec.array("kd"))
    pipeline = CommandPipeline(spec, SafetySettings(), PipelineOptions(estop_heartbeat=0.0))
    pipeline.controller(Controller(1))

    def runner() -> PolicyRunner:
        port = WorldPort(world, spec.names)
        return PolicyRunner(Expert(port.io, world), port, RunnerOptions(rate=100.0, mode=spec.mode), identity="x")

    found = Start(spec, seen=seen, make_runner=runner)
    lower, upper = spec.bounds()
    slow, phase = rng.uniform(1.0, 3.0, len(lower)), rng.uniform(0.0, 2.0 * np.pi, len(lower))
    reach = rng.uniform(0.05, 0.12, len(lower))
    now, number, begin, coming = 100.0, 0, None, []
    for k in range(round((REST + seconds) / PERIOD)):
        now += PERIOD
        noise = 1e-4 * rng.standard_normal((2, len(lower)))
        told = Measured(now - WAY, plant.position + noise[0], plant.velocity + 10.0 * noise[1])
        state = RobotState(told.time, told.position, told.velocity)
        if k == round(REST / PERIOD):
            assert pipeline.enable() == []
            begin = plant.position.copy()
        if begin is not None:
            t = now - 100.0 - REST
            ease = min(t / 1.0, 1.0)
            target = begin + ease * reach * (np.sin(slow * t + phase) - np.sin(phase))
            number += 1
            pipeline.takeover(True, now)
            fields = {"positions": np.clip(target, lower, upper)[None]}
            pipeline.offer(CommandMessage("human", "pad", number, spec.names, now, np.array([0.02]), fields), now)
        out = pipeline.tick(now, state)
        found.measured.append(told)
        found.task.append(plant.task)
        found.executed.append(out.value if out.publish else None)
        coming.append(out.value if out.publish else None)
        if len(coming) > 1 and (value := coming.pop(0)) is not None:
            plant.command(value)
        plant.step(PERIOD)
    assert pipeline.safety.state == "ACTIVE", pipeline.safety.numbers
    return found


def legs_start(folder: Path, seed: int) -> Start:
    """The G1 in its harness, standing up, then one joint after the other moved, while a hand swings the trunk."""
    from tests.real.legs_world import LegsWorld, g1_card

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    world = LegsWorld(folder, g1_card())
    made, spec, plant, pipeline = world.runner, world.spec, world.plant, world.pipeline

    def runner() -> PolicyRunner:
        return PolicyRunner(made.policy, made.port, RunnerOptions(rate=100.0, mode=spec.mode), identity="g1")

    found = Start(spec, make_runner=runner)
    yaw = rng.uniform(-np.pi, np.pi) if seed else 0.0  # the IMU's is its own
    turn = np.array([0.0, 0.0, np.sin(0.5 * yaw), np.cos(0.5 * yaw)])
    home, lower, upper = np.array(spec.home), *spec.bounds()
    way, count = 0.06, len(home)
    now, number, each, coming = 100.0, 0, 1.2, []
    for k in range(round((REST + STAND + count * each) / PERIOD)):
        now += PERIOD
        trunk = plant.trunk
        imu = np.concatenate([times(turn, trunk.orientation), trunk.angular_velocity, trunk.acceleration])
        imu[4:7] += 0.005 * rng.standard_normal(3)
        imu[7:] += 0.05 * rng.standard_normal(3)
        noise = 1e-4 * rng.standard_normal((2, count))
        told = Measured(now - WAY, plant.position + noise[0], plant.velocity + 10.0 * noise[1], imu)
        if k == round(REST / PERIOD):
            assert pipeline.enable() == []
            plant.hang(0.1, rng.uniform(0.1, 0.2))
        if k == round((REST + 3.0) / PERIOD):
            plant.hang(0.1, 0.0)
        t = now - 100.0 - REST - STAND
        if t > -0.2:
            joint, phase = int(max(t, 0.0) / each), 2.0 * np.pi * (max(t, 0.0) % each) / each
            target = home.copy()
            if joint < count:
                target[joint] += way * 0.5 * (1.0 - np.cos(phase))
            number += 1
            pipeline.takeover(True, now)
            fields = {"positions": np.clip(target, lower, upper)[None]}
            pipeline.offer(CommandMessage("human", "doctor", number, spec.names, now, np.array([0.02]), fields), now)
        out = pipeline.tick(now, RobotState(told.time, told.position, told.velocity, None, None, {"imu": imu}))
        found.measured.append(told)
        found.task.append({"velocity_command": np.zeros(3)})
        found.executed.append(out.value if out.publish else None)
        coming.append(out)
        if len(coming) > 1 and (late := coming.pop(0)).publish:
            plant.command(np.stack([late.value, *np.zeros((2, count)), *late.gains]))
        plant.step(PERIOD)
    assert pipeline.safety.state == "ACTIVE", pipeline.safety.numbers
    return found


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Product of two quaternions x, y, z, w."""
    v = a[3] * b[:3] + b[3] * a[:3] + np.cross(a[:3], b[:3])
    return np.array([*v, a[3] * b[3] - a[:3] @ b[:3]])


__all__ = ["Start", "arm_start", "legs_start", "reach_of", "small_card"]
