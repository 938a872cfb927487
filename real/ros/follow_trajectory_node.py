"""FollowJointTrajectory in front of the supervisor: goals come as to ros2_control, and go out as commands."""
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportIndexIssue=false
# (fields of messages are lists in truth; rclpy's stubs say less)

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rclpy.action.server import ActionServer, CancelResponse, GoalResponse, ServerGoalHandle
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectoryPoint

from robot_rl.extras import require_foreign
from robot_rl.real.core.follow_trajectory import (
    INVALID_GOAL,
    FollowGoal,
    FollowOptions,
    FollowResult,
    FollowStep,
    TrajectoryFollower,
)
from robot_rl.real.core.machine import State
from robot_rl.real.core.scheduler import Tick
from robot_rl.real.core.spec import FIELDS, POSITION, RobotSpec
from robot_rl.real.robot import RobotState
from robot_rl.real.ros.inputs import RobotInputs
from robot_rl.real.ros.io import JointTrajectory, seconds, time_message, trajectory
from robot_rl.real.ros.node_base import (
    OK,
    WARN,
    ControlLoop,
    Health,
    Seen,
    publisher,
    spare_garbage,
    steady_timer,
    subscribe,
)
from robot_rl.real.ros.parameters import check_parameters, declare

MEND = "It has no wheel: source a ROS installation with the package control_msgs, or build it (docs/ros2.md)."
MOVES = (State.ARMED.value, State.ACTIVE.value)
HELD_BACK = "the supervisor held the command back (limit, rate, workspace or lead: `reasons` in its diagnostics)"
JUST_NOW = 0.5
"""Seconds before an abort in which a command that was held back is named with it."""
TELL = 0.05
"""Seconds between two messages of feedback."""


class _Running(NamedTuple):
    """A goal that was accepted: its handle, and the future of its result, which the callback thread sets."""

    handle: ServerGoalHandle
    result: Future


class FollowTrajectoryNode(Node):
    """See docs/ros2.md. Goals, cancels, results live in the callback thread; the control thread samples and sends."""

    def __init__(self, **options: Any) -> None:
        """Read the parameters, open topics and action, begin.

        Args:
            options: of the node.

        Raises:
            ImportError: control_msgs is not installed.
            ValueError: a robot that takes no positions.
        """
        super().__init__("follow_trajectory", **options)
        path = declare(self, "robot_spec", "", "path of the RobotSpec YAML")
        self._rate = declare(self, "rate", 100.0, "commands per second", low=10.0, high=1000.0)
        action = declare(self, "action_name", "~/follow_joint_trajectory", "of the action")
        start = declare(self, "start_tolerance", 0.02, "first point at time 0 to the command of now [rad]", low=0.0)
        way = declare(self, "path_tolerance", 0.2, "to the trajectory on the way [rad], 0 = any", low=0.0)
        end = declare(self, "goal_tolerance", 0.05, "to the last point at the end [rad], 0 = any", low=0.0)
        late = declare(self, "goal_time", 2.0, "after the end until it is reached [s], 0 = any", low=0.0)
        slow = declare(self, "stopped_velocity", 0.05, "largest speed at the end [rad/s]", low=0.0)
        priority = declare(self, "realtime", 0, "SCHED_FIFO priority of the loop, 0 = ordinary", high=98)
        check_parameters(self, sys.argv)
        self._kind = require_foreign("control_msgs.action", MEND).FollowJointTrajectory
        if not path:
            raise ValueError("robot_spec is empty; give the path of the robot's YAML")
        self.spec = spec = RobotSpec.load(path)
        if spec.mode != POSITION:
            raise ValueError(f"command_mode is {spec.command_mode}; follow_trajectory needs a mode of positions")
        told = FollowOptions(
            start_tolerance=start, path_tolerance=way, goal_tolerance=end, goal_time=late, stopped_velocity=slow
        )
        self._follower = TrajectoryFollower(spec.names, *spec.bounds(), told)
        self._lock = threading.Lock()  # of the follower, which both threads ask
        self._running: _Running | None = None
        self._step: FollowStep | None = None
        self._ended: FollowResult | None = None  # of the goal that runs, from the control thread
        self._present: tuple[np.ndarray, float] | None = None
        self._held_back = -np.inf  # when the supervisor last sent something else than what was asked for
        self._supervisor, self._authority = "", ""
        self._seq, self._tag = 0, f"follow.{secrets.token_hex(2)}"
        self.health = health = Health(self, spec.name)
        self.inputs = RobotInputs(self, spec, health)
        subscribe(self, JointTrajectory, "robot_rl/executed", self._on_executed, "record", health)
        subscribe(self, String, "robot_rl/authority", self._on_authority, "latched", health)
        subscribe(self, String, "robot_rl/safety/state", self._on_state, "latched", health)
        self._out = publisher(self, JointTrajectory, "robot_rl/command/policy", "command", health)
        self._server = ActionServer(
            self, self._kind, action, execute_callback=self._execute, goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted, cancel_callback=self._on_cancel,
        )  # fmt: skip
        self._telling = steady_timer(self, TELL, self._tell)
        self.loop = ControlLoop(self._rate, self._tick, on_error=self._on_error, priority=int(priority))
        health.watch_loop(self.loop)
        health.add("goals", self._aspect)
        spare_garbage()  # a collection in its course would make a silence of a fault's length
        self.loop.start()

    def wind_down(self) -> None:
        """Let go, and end the goal."""
        self.loop.stop()
        self._stop("the server ends")
        end = time.monotonic() + 0.3
        while self._running is not None and time.monotonic() < end:
            time.sleep(0.01)

    # ------------------------------------------------------------ callbacks

    def _on_executed(self, message: JointTrajectory) -> None:
        now = time.monotonic()
        self._present = np.array(message.points[0].positions, float), now
        if "c" in message.header.frame_id.rpartition("|")[2]:  # clipped, see `io.Executed`
            self._held_back = now

    def _on_authority(self, message: String) -> None:
        self._authority = message.data
        if message.data == "human":
            self._stop("a person drives")

    def _on_state(self, message: String) -> None:
        self._supervisor = message.data
        if message.data not in (*MOVES, State.STOPPING.value):
            self._stop(f"the supervisor is {message.data}")

    def _on_goal(self, request: Any) -> GoalResponse:
        now, flaw = time.monotonic(), ""
        state = self.inputs.latest(now)
        if self._supervisor not in MOVES:
            flaw = f"the supervisor is {self._supervisor or 'not there'}: enable it first"
        elif self._authority == "human":
            flaw = "a person drives"
        elif state is None:
            flaw = "no joint states were heard"
        else:
            try:
                goal = read_goal(request, now, 1e-9 * self.get_clock().now().nanoseconds)
            except ValueError as error:
                flaw = str(error)
            else:
                with self._lock:
                    rejected, before = self._follower.take(goal, now, self._last_command(state, now))
                    before = before or self._ended  # the one that was over already, and not told yet
                if rejected is not None:
                    flaw = rejected.text
                elif before is not None:
                    self._finish(before)
        if flaw:
            self.get_logger().warning(f"goal rejected: {flaw}")  # a rejection carries no text to the client
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _last_command(self, state: RobotState, now: float) -> np.ndarray:
        fresh = self._present is not None and now - self._present[1] < 0.1
        return self._present[0] if fresh and self._present is not None else state.position

    def _on_accepted(self, handle: ServerGoalHandle) -> None:
        self._running = _Running(handle, Future())
        handle.execute()

    def _on_cancel(self, handle: ServerGoalHandle) -> CancelResponse:
        running = self._running
        if running is None or running.handle.goal_id != handle.goal_id:
            return CancelResponse.REJECT
        with self._lock:
            ended = self._follower.stop() if self._follower.busy else None
        if ended is not None:
            self._send(None)  # the supervisor brakes and holds
            self._finish(ended)
        return CancelResponse.ACCEPT if ended is not None else CancelResponse.REJECT

    async def _execute(self, handle: ServerGoalHandle) -> Any:
        running = self._running
        assert running is not None
        ended = await running.result
        assert isinstance(ended, FollowResult)
        if ended.status == "succeeded":
            handle.succeed()
        elif ended.status == "canceled" and handle.is_cancel_requested:
            handle.canceled()
        else:  # also a goal that another one took over from: its client has not asked for an end
            handle.abort()
        return self._kind.Result(error_code=ended.code, error_string=ended.text)

    def _finish(self, ended: FollowResult) -> None:
        """The running goal has ended; in the callback thread."""
        running, self._running, self._step, self._ended = self._running, None, None, None
        if running is not None:
            running.result.set_result(ended)

    def _stop(self, why: str) -> None:
        """End the running goal, whoever drives; the supervisor stands already, or brakes for who takes over."""
        with self._lock:
            if not self._follower.busy:
                return
            self._follower.stop()
        self._send(None)
        self._ended = FollowResult("aborted", INVALID_GOAL, why)

    def _tell(self) -> None:
        """Feedback, and the result when there is one."""
        running, step, ended = self._running, self._step, self._ended
        if running is None:
            return
        if step is not None:
            running.handle.publish_feedback(self._feedback(step))
        if ended is not None:
            self._finish(ended)

    def _feedback(self, step: FollowStep) -> Any:
        message = self._kind.Feedback(joint_names=list(self.spec.names))
        message.header.stamp = time_message(1e-9 * self.get_clock().now().nanoseconds)
        message.desired = JointTrajectoryPoint(positions=step.position.tolist(), velocities=step.velocity.tolist())
        message.actual = JointTrajectoryPoint(positions=(step.position - step.error).tolist())
        message.error = JointTrajectoryPoint(positions=step.error.tolist())
        return message

    # ------------------------------------------------------------ one tick, in the control thread

    def _tick(self, tick: Tick) -> float | None:
        now = time.monotonic()
        self._out.assert_liveliness()
        state = self.inputs.latest(now)
        if state is None:
            return None
        with self._lock:
            step = self._follower.tick(now, state.position, state.velocity)
            if step is not None:
                result = step.result
                if result is not None and result.status == "aborted" and now - self._held_back < JUST_NOW:
                    result = result._replace(text=f"{result.text}; {HELD_BACK}")
                self._step, self._ended = step, result or self._ended
        if step is not None:
            self._send(step.position if step.result is None else None)
        return now - state.stamp

    def _send(self, value: np.ndarray | None) -> None:
        self._seq += 1
        stamp = 1e-9 * self.get_clock().now().nanoseconds
        times = [] if value is None else [1.0 / self._rate]
        rows = np.zeros((0, 0)) if value is None else value[None]
        self._out.publish(trajectory(self.spec.names, stamp, self._tag, self._seq, times, rows, FIELDS[self.spec.mode]))

    def _on_error(self, error: Exception) -> None:
        self.get_logger().error(f"exception in the loop: {error}", throttle_duration_sec=1.0)

    def _aspect(self) -> Seen:
        if self._supervisor not in MOVES:
            return WARN, f"the supervisor is {self._supervisor or 'not there'}: goals are rejected", {}
        return OK, "a goal runs" if self._running is not None else "waits for goals", {}


def read_goal(request: Any, now: float, ros_now: float) -> FollowGoal:
    """A goal of control_msgs as the follower takes it, which judges the rest.

    Args:
        request: FollowJointTrajectory.Goal.
        now: [s of the steady clock].
        ros_now: the same moment [s of ROS time].

    Raises:
        ValueError: points that do not have the same fields, joints with more than one degree of freedom.
    """
    table = request.trajectory
    if request.multi_dof_trajectory.points or request.component_path_tolerance or request.component_goal_tolerance:
        raise ValueError("multi_dof_trajectory and tolerances of components are not known here")
    rows = {
        name: _rows(name, values, len(table.joint_names))
        for name, values in (
            ("positions", [point.positions for point in table.points]),
            ("velocities", [point.velocities for point in table.points]),
            ("accelerations", [point.accelerations for point in table.points]),
            ("effort", [point.effort for point in table.points]),
        )
    }
    if rows["effort"] is not None:
        raise ValueError("points have efforts, and this robot takes positions")
    if rows["positions"] is None and len(table.points):
        raise ValueError("points have no positions")
    stamp = seconds(table.header.stamp)
    count = len(table.joint_names)
    return FollowGoal(
        joints=list(table.joint_names),
        times=np.array([seconds(point.time_from_start) for point in table.points], float),
        positions=np.zeros((0, count)) if rows["positions"] is None else rows["positions"],
        velocities=rows["velocities"],
        accelerations=rows["accelerations"],
        start=now + stamp - ros_now if stamp else None,
        path_tolerance={item.name: item.position for item in request.path_tolerance},
        goal_tolerance={item.name: item.position for item in request.goal_tolerance},
        goal_time=seconds(request.goal_time_tolerance),
    )


def _rows(name: str, rows: Sequence[Sequence[float]], count: int) -> np.ndarray | None:
    """(n, J), None where no point has them.

    Raises:
        ValueError: only some have, or another number.
    """
    sizes = {len(row) for row in rows}
    if sizes <= {0}:
        return None
    if sizes != {count}:
        raise ValueError(f"{name} of the points are {sorted(sizes)} numbers, expected {count}, or none in all points")
    return np.array(rows, float)
