"""A simulated robot behind the topics of a ros2_control robot: the rest of the graph cannot tell the difference."""

from __future__ import annotations

import heapq
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger

from robot_rl.gaps import Gap, Measured, apply_gaps, read_gaps_text
from robot_rl.real.core.scheduler import Tick
from robot_rl.real.core.spec import AXES, MOTION, PD, POSITION, TWIST, RobotSpec
from robot_rl.real.plant import KinematicPlant, Plant
from robot_rl.real.ros.camera_feed import FAULTS, CameraFeed, FeedOptions
from robot_rl.real.ros.controller_node import ControllerNode
from robot_rl.real.ros.io import (
    JointState,
    WrenchStamped,
    hardware_type,
    hardware_values,
    joint_state,
    message_type,
    motion_message,
    time_message,
    wrench_message,
)
from robot_rl.real.ros.node_base import OK, WARN, ControlLoop, Health, Seen, publisher, spare_garbage, subscribe
from robot_rl.real.ros.parameters import check_parameters, declare
from robot_rl.real.ros.robot_status import tell_good
from robot_rl.real.ros.trunk_topics import SimulatedImu, TrunkTopics, imu_of

INJECT: dict[str, Any] = {
    "freeze": False,  # no new joint states
    "repeat": False,  # the same values under new stamps
    "jump": 0.0,  # added to the first joint's position
    "nan": False,  # the first joint's position is NaN
    "missing": "",  # a joint that is left out
    "reverse": False,  # joints in reverse order
    "split": False,  # two publishers with half of the joints each
    "clock_offset": 0.0,  # added to stamps [s]
    "imu_silent": False,  # no readings of the IMU of a robot on legs
    "blocked": False,  # all joints stuck
    "push": 0.0,  # displaces the first joint once [rad]
    "clock_back": 0.0,  # /clock jumps back by this once [s]
    "camera": "",  # "silent", "repeat" the last picture, "garbage" instead of pictures
    "gaps": "",  # of robot_rl.gaps, as JSON: [{"name": "joint_sign", "joints": [1]}]
    "hoist": 0.0,  # lifts the harness of legs [m], so that the feet hang
    "sway": 0.0,  # swings their trunk in it, as a hand does [rad]
}


SETTLE = 0.1
"""Seconds for stray answers at the begin of lockstep."""


class SimRobotNode(Node):
    """See docs/ros2.md for topics, services and parameters."""

    def __init__(self, make_plant: Callable[..., Plant], **options: Any) -> None:
        """Read the parameters, make the robot, begin.

        Args:
            make_plant: as `robot_rl.sim.legs_plant.make_plant`: what has a model or a world.
            options: of the node.
        """
        super().__init__("sim_robot", **options)
        self._plant_of = make_plant
        self.spec = spec = self._declare()
        self._rng = np.random.default_rng(self._seed)
        self.plant = self._make_plant(spec)
        self._lock = threading.RLock()  # a publisher made under it declares parameters, which come back to it
        self._answered = threading.Event()
        self._alone = True  # lockstep: nobody answers
        self._paused = False
        self._gaps: tuple[Gap, ...] = ()
        self._time = self._next_shot = 0.0
        self._pose = np.zeros(3)  # x, y, yaw of a base
        self.feed: CameraFeed | None = None
        self._late_by: list[tuple[float, int, Any]] = []  # states on their way
        self._coming: list[tuple[float, int, np.ndarray]] = []  # commands on their way
        self._number = 0
        self._heard = -np.inf
        self._timed_out = False
        self._frozen: tuple[np.ndarray, np.ndarray] | None = None
        self._done_before: bool | None = None
        self.health = Health(self, spec.name)
        kind, topic = self._state_topic(spec)
        self._states = [publisher(self, kind, topic, "state_out", self.health)]
        self._trunk = TrunkTopics(self, spec, self.health) if self.plant.trunk is not None else None
        topics = [sensor.topic for sensor in spec.sensors.values() if sensor.kind == "geometry_msgs/WrenchStamped"]
        self._wrenches = [publisher(self, WrenchStamped, topic, "state_out", self.health) for topic in topics]
        self._imu = SimulatedImu(spec.sensors[spec.imu].acceleration if spec.imu else None)
        self._tasks: dict[str, Any] = {}
        self._told_status = tell_good(self, spec, self.health)
        self._success = publisher(self, Bool, "robot_rl/success", "event", self.health)
        subscribe(self, String, "robot_rl/authority", self._on_authority, "latched", self.health)
        if not self._harness:
            self.plant.release()
        subscribe(self, hardware_type(spec), spec.controller_topic, self._on_command, "hardware", self.health)
        self._clock_out = publisher(self, Clock, "/clock", "clock", self.health) if self._publish_clock else None
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.create_service(Trigger, "~/next_task", self._on_next_task)
        self.create_service(SetBool, "~/pause", self._on_pause)
        self.add_on_set_parameters_callback(self._on_parameters)
        self.feed = self._make_feed(spec)
        for name, value in self._inject.items():
            self._act_on(name, value)
        self._controller = ControllerNode(self, spec)  # after all that may be refused: its thread must be ended
        self.loop = ControlLoop(
            self._rate,
            self._tick_lockstep if self._lockstep else self._tick,
            on_error=self._on_error,
            priority=int(self._priority),
        )
        self.health.watch_loop(self.loop)
        self.health.add("robot", self._aspect)
        self._started = time.monotonic()
        if self.feed is not None and not self._lockstep:
            self.feed.start()
        spare_garbage()  # a collection in its course would make a silence of a fault's length
        self.loop.start()

    def _declare(self) -> RobotSpec:
        path = declare(self, "robot_spec", "", "path of the RobotSpec YAML")
        if not path:
            raise ValueError("robot_spec is empty; give the path of the robot's YAML, e.g. -p robot_spec:=arm.yaml")
        self._world = declare(self, "world", "", "a world of robot_rl.sim.worlds, e.g. reach")
        self._world_options = declare(self, "world_options", "{}", "arguments of the world, as JSON")
        self._model = declare(self, "model", "", "MJCF or URDF; without world and model the joints have no mass")
        self._base = declare(self, "base", "", "body of the model that legs carry; empty = the robot stands fixed")
        self._harness = declare(self, "harness", True, "legs hang, feet on the ground, until somebody drives them")
        self._rate = declare(self, "rate", 100.0, "joint states per second", low=1.0, high=2000.0)
        self._physics_dt = declare(
            self, "physics_dt", 0.0, "longest physics step [s], 0 = the model's", low=0.0, high=0.1
        )
        self._factor = declare(self, "realtime_factor", 1.0, "simulated per real second", low=0.01, high=100.0)
        self._lockstep = declare(self, "lockstep", False, "advance only after a command that answers the tick")
        self._patience = declare(self, "lockstep_timeout", 0.5, "longest wait for it [s]", low=0.001, high=60.0)
        self._publish_clock = declare(self, "publish_clock", False, "publish /clock; stamps are simulated time")
        self._seed = declare(self, "seed", 0, "of starts, tasks, noise and delays")
        self._delays = {
            name: (
                declare(self, f"{name}_delay", 0.0, "mean delay [s]", low=0.0, high=5.0, read_only=False),
                declare(self, f"{name}_jitter", 0.0, "its standard deviation [s]", low=0.0, high=5.0, read_only=False),
            )
            for name in ("obs", "action")
        }
        self._priority = declare(self, "realtime", 0, "SCHED_FIFO priority of the loop, 0 = ordinary", high=98)
        self._loss = declare(self, "drop_prob", 0.0, "lost states and commands", low=0.0, high=1.0, read_only=False)
        self._noise = declare(self, "noise", 0.0, "of positions [rad], velocities tenfold", low=0.0, read_only=False)
        self._timeout = declare(self, "controller_timeout", -1.0, "-1 = as in the RobotSpec, 0 = none [s]", low=-1.0)
        self._camera_rate = declare(self, "camera_rate", 30.0, "pictures per second, 0 = none", low=0.0, high=1000.0)
        self._image_size = (
            declare(self, "image_height", 240, "of pictures [pixels]", low=8, high=4096),
            declare(self, "image_width", 320, "of pictures [pixels]", low=8, high=4096),
        )
        self._quality = declare(self, "jpeg_quality", 90, "of compressed pictures", low=1, high=100)
        self._grain = declare(self, "camera_noise", 1.0, "standard deviation [grey levels]", low=0.0, high=100.0)
        self._inject = {
            name: declare(self, f"inject.{name}", v, "fault", read_only=False) for name, v in INJECT.items()
        }
        check_parameters(self, sys.argv)
        spec = RobotSpec.load(path)
        if self._timeout < 0.0:
            self._timeout = spec.controller_timeout
        return spec

    def _make_plant(self, spec: RobotSpec) -> Plant:
        if spec.mode == PD and not self._base:
            raise ValueError("pd mode needs a model that walks: give a card with legs, or model and base")
        if not self._world and not self._model:
            return KinematicPlant(spec)
        return self._plant_of(
            spec.names,
            world=self._world,
            options=json.loads(self._world_options),
            seed=self._seed,
            model=self._model,
            home=spec.home,
            mode=spec.mode,
            kp=spec.array("kp"),
            kd=spec.array("kd"),
            effort=spec.array("effort"),
            timestep=self._physics_dt or None,
            **({"base": self._base} if self._base else {}),
        )

    def _make_feed(self, spec: RobotSpec) -> CameraFeed | None:
        if not spec.cameras or not self._camera_rate or not self.plant.cameras:
            return None
        if self._inject["camera"] not in FAULTS:
            raise ValueError(
                f"inject.camera is {self._inject['camera']!r}, expected one of {', '.join(map(repr, FAULTS))}"
            )
        feed = CameraFeed(
            self,
            spec.cameras,
            self.plant,
            self._lock,
            self._now,
            self.health,
            FeedOptions(
                rate=self._camera_rate,
                size=self._image_size,
                quality=self._quality,
                noise=self._grain,
                seed=self._seed,
            ),
        )
        feed.fault = self._inject["camera"]
        return feed

    def wind_down(self) -> None:
        """Stop the physics."""
        self._answered.set()
        self.loop.stop()
        self._controller.close()
        if self.feed is not None:
            self.feed.stop()

    # ------------------------------------------------------------ callbacks

    def _on_command(self, message: object) -> None:
        value = hardware_values(self.spec, message)
        if value is None:  # ros2_control drops what is not finite or of another length
            return
        mean, deviation = self._delays["action"]
        with self._lock:
            if self._loss and self._rng.random() < self._loss:
                return
            due = time.monotonic() + max(0.0, mean + deviation * float(self._rng.standard_normal()))
            self._number += 1
            heapq.heappush(self._coming, (due, self._number, value))
        self._answered.set()

    def _on_authority(self, message: String) -> None:
        """Whoever lowers the harness looks whether somebody drives the legs."""
        if message.data not in ("none", "human"):  # a person moves single joints of legs that hang
            with self._lock:
                self.plant.release()

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            self.plant.reset(-1)
            self._act_on("blocked", self._inject["blocked"])
            self._coming.clear()
            self._done_before = None
        response.success, response.message = True, "a new start"
        return response

    def _on_next_task(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            self.plant.renew_task()
            self._done_before = None
        response.success = True
        return response

    def _on_pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self._paused = bool(request.data)
        response.success = True
        return response

    def _on_parameters(self, changes: list[Parameter]) -> SetParametersResult:
        for change in changes:
            if change.name == "inject.gaps" and (wrong := self._try_gaps(change.value)):
                return SetParametersResult(successful=False, reason=wrong)
            if change.name == "inject.camera" and change.value not in FAULTS:
                return SetParametersResult(successful=False, reason=f"expected one of {', '.join(map(repr, FAULTS))}")
        with self._lock:
            for change in changes:
                name, value = change.name, change.value
                if name.startswith("inject."):
                    self._inject[name[7:]] = value
                    self._act_on(name[7:], value)
                elif name in ("obs_delay", "action_delay", "obs_jitter", "action_jitter"):
                    kind, part = name.split("_")
                    mean, deviation = self._delays[kind]
                    self._delays[kind] = (value, deviation) if part == "delay" else (mean, value)
                elif name == "drop_prob":
                    self._loss = value
                elif name == "noise":
                    self._noise = value
        return SetParametersResult(successful=True)

    def _try_gaps(self, text: str) -> str:
        """Why this robot cannot have these gaps, or ""."""
        count = len(self.spec.joints)
        try:
            gaps = read_gaps_text(text)
            with self._lock:
                trunk = self.plant.trunk
                told = self._tell(0.0, gaps, None if trunk is None else imu_of(trunk))
            sent = [gap.command(np.zeros(count)) for gap in gaps]
        except (ValueError, IndexError) as error:
            return f"inject.gaps: {error}; the robot has {count} joints, numbered from 0"
        if any(len(one) != count for one in (told.position, told.velocity, *sent)):
            return f"inject.gaps: lists of joints must have {count} entries, one per joint"
        return ""

    def _act_on(self, name: str, value: Any) -> None:
        if name == "blocked":
            self.plant.blocked[:] = bool(value)
        elif name == "push" and value:
            offset = np.zeros(len(self.spec.joints))
            offset[0] = value
            self.plant.push(offset)
        elif name == "repeat":
            self._frozen = (self.plant.position.copy(), self.plant.velocity.copy()) if value else None
        elif name == "camera" and self.feed is not None:
            self.feed.fault = value
        elif name == "gaps":
            self._gaps = read_gaps_text(value)  # anew: the one that was tried remembers that
            if self.feed is not None:
                self.feed.gaps = tuple(gap for gap in self._gaps if gap.of_pictures)
        elif name in ("hoist", "sway"):
            self.plant.hang(self._inject["hoist"], self._inject["sway"])
        elif name == "clock_back":
            self._time = max(self._time - value, 0.0)
        elif name == "split" and value and len(self._states) == 1:
            self._states.append(publisher(self, *self._state_topic(self.spec), "state_out", self.health))

    # ------------------------------------------------------------ one tick, in the control thread

    def _tick(self, tick: Tick) -> None:
        now = time.monotonic()
        with self._lock:
            self._take_commands(now)
            if not self._paused:  # late ticks are made up, within reason: simulated time keeps pace
                seconds = min(1 + tick.skipped, 20) / self._rate * self._factor
                self._advance(seconds)
            self._publish(now)

    def _tick_lockstep(self, tick: Tick) -> None:
        """Publish, wait for the command that answers, advance by one period.

        While nobody answers, time goes on at `rate`: a supervisor needs fresh states before it may command. With the
        first command after such a silence, answers to earlier ticks may still be on their way; they are let in first.
        """
        if self.feed is not None and self._time >= self._next_shot:
            self._next_shot = self._time + 1.0 / self._camera_rate - 1e-9
            self.feed.shoot()  # before the states, so that an answer to them may have seen it
        with self._lock:
            self._answered.clear()
            self._publish(time.monotonic())
        answered = self._answered.wait(1.0 / self._rate if self._alone else self._patience)
        if answered and self._alone:
            time.sleep(SETTLE)
            with self._lock:
                self._take_commands(np.inf)
        else:
            with self._lock:
                self._take_commands(np.inf)
                if not self._paused:
                    self._advance(1.0 / self._rate)
        self._alone = not answered
        self.loop.scheduler.restart()  # the next tick comes at once

    def _advance(self, seconds: float) -> None:
        self.plant.step(seconds)
        self._time += seconds
        if self.spec.mode == TWIST:
            self._roll(seconds)

    def _take_commands(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            value = heapq.heappop(self._coming)[2]
            for gap in self._gaps:
                value = gap.command(value)
            self.plant.command(value)
            self._heard, self._timed_out = time.monotonic(), False
        silent = time.monotonic() - self._heard
        if self._timeout > 0.0 and silent > self._timeout and np.isfinite(self._heard) and not self._timed_out:
            self._timed_out = True  # what a controller with a command timeout does
            if self.spec.mode in (POSITION, PD):
                self.plant.hold()
            else:
                self.plant.command(np.zeros(len(self.spec.joints)))

    def _publish(self, now: float) -> None:
        stamp, trunk = self._now(), self.plant.trunk
        told = self._tell(stamp, self._gaps, None if trunk is None else self._imu.read(trunk, stamp))
        if self._clock_out is not None:
            self._clock_out.publish(Clock(clock=time_message(self._time)))
        if not self._inject["freeze"] and not (self._loss and self._rng.random() < self._loss):
            mean, deviation = self._delays["obs"]
            due = now + max(0.0, mean + deviation * float(self._rng.standard_normal()))
            self._number += 1
            heapq.heappush(self._late_by, (due, self._number, self._measure(told)))
        while self._late_by and self._late_by[0][0] <= now:
            for where, message in zip(self._states, heapq.heappop(self._late_by)[2]):
                where.publish(message)
        if self._trunk is not None and trunk is not None:
            imu = None if told.imu is None or self._inject["imu_silent"] else (told.imu, told.time)
            self._trunk.publish(trunk, stamp, imu)
        for where in self._wrenches:
            where.publish(wrench_message(self.plant.wrench, stamp, "flange"))
        for name, value in self.plant.task.items():
            if name not in self._tasks:
                self._tasks[name] = publisher(
                    self, Float64MultiArray, f"robot_rl/task/{name}", "state_out", self.health
                )
            self._tasks[name].publish(Float64MultiArray(data=np.asarray(value, float).ravel().tolist()))
        done = self.plant.success
        if done != self._done_before:
            self._success.publish(Bool(data=done))
            self._done_before = done

    def _now(self) -> float:
        """Time of what is published [s]."""
        return self._time if self._publish_clock else 1e-9 * self.get_clock().now().nanoseconds

    def _state_topic(self, spec: RobotSpec) -> tuple[Any, str]:
        """Message class and topic of what tells how the robot moves."""
        if spec.mode != TWIST:
            return JointState, spec.state_topics[0]
        sensor = next(s for s in spec.sensors.values() if s.required and s.kind in MOTION)
        return message_type(sensor.kind), sensor.topic

    def _measure_motion(self, stamp: float) -> list[Any]:
        """Odometry of a base whose pose is the sum of its turned way, or its twist."""
        velocity = dict(zip(self.spec.names, self.plant.velocity + self._noise * self._rng.standard_normal()))
        full = [float(velocity.get(name, 0.0)) for name in AXES]
        return [motion_message(self._state_topic(self.spec)[0], full, self._pose.tolist(), stamp, self.spec.frame)]

    def _roll(self, seconds: float) -> None:
        """Planar pose x, y, yaw of a base."""
        speed = dict(zip(self.spec.names, self.plant.velocity))
        x, y = speed.get("linear_x", 0.0), speed.get("linear_y", 0.0)
        yaw = self._pose[2] + 0.5 * speed.get("angular_z", 0.0) * seconds
        self._pose[0] += (x * np.cos(yaw) - y * np.sin(yaw)) * seconds
        self._pose[1] += (x * np.sin(yaw) + y * np.cos(yaw)) * seconds
        self._pose[2] += speed.get("angular_z", 0.0) * seconds

    def _tell(self, stamp: float, gaps: tuple[Gap, ...], imu: np.ndarray | None) -> Measured:
        """Joints of this moment and the IMU's reading, as a robot with these gaps tells them."""
        position, velocity = self._frozen or (self.plant.position.copy(), self.plant.velocity.copy())
        if self._noise:
            position = position + self._noise * self._rng.standard_normal(len(position))
            velocity = velocity + 10.0 * self._noise * self._rng.standard_normal(len(position))
        return apply_gaps((gap for gap in gaps if not gap.of_pictures), Measured(stamp, position, velocity, imu))

    def _measure(self, told: Measured) -> list[Any]:
        stamp = told.time
        if self.spec.mode == TWIST:
            return self._measure_motion(stamp + self._inject["clock_offset"])
        inject, names = self._inject, list(self.spec.names)
        effort, velocity = self.plant.effort, told.velocity
        position = np.array(told.position)
        position[0] += inject["jump"]
        if inject["nan"]:
            position[0] = np.nan
        order = [i for i, name in enumerate(names) if name != inject["missing"]]
        order = order[::-1] if inject["reverse"] else order
        half = (len(order) + 1) // 2
        parts = [order[:half], order[half:]] if inject["split"] else [order]
        return [
            joint_state(
                [names[i] for i in part],
                position[part],
                velocity[part],
                None if effort is None else effort[part],
                max(stamp + inject["clock_offset"] * (1.0 if k == 0 else 0.5), 0.0),
            )
            for k, part in enumerate(parts)
        ]

    def _on_error(self, error: Exception) -> None:
        self.get_logger().error(f"exception in the physics loop: {type(error).__name__}: {error}")

    def _aspect(self) -> Seen:
        real = max(time.monotonic() - self._started, 1e-9)
        values = {
            "realtime_factor": float(self._time / real),
            "controller_timed_out": self._timed_out,
            "position": np.round(self.plant.position, 4).tolist(),
        }
        if self.feed is not None:
            values["pictures"] = self.feed.sent
        active = [name for name, value in self._inject.items() if value]
        if self.feed is not None and self.feed.problem:
            return WARN, f"no pictures: {self.feed.problem}", values
        if self.spec.cameras and self.feed is None:
            return WARN, "no pictures: camera_rate is 0 or there is no model to look at", values
        return (WARN, f"injected: {', '.join(active)}", values) if active else (OK, "running", values)
