"""A robot's driver as somebody else writes it: plain rclpy, its own joint order, a controller with parameters.

Nothing of ours is imported. `truth` is what the joints did, whatever anybody was told about it.
"""

import contextlib
import os
import threading
import time

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray


def _fifo():
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(30))


class ForeignDriver:
    """Joints that follow a forward controller's last array at `speed`, after a dead time.

    Args:
        joints: the controller's own order.
        start: joint -> position [rad].
        interface: `position` or `velocity`.
        rate: of physics and joint states [Hz].
        lag: dead time between a command's arrival and the joints [s].
        speed: of the joints towards a position [rad/s].
        timeout: seconds without a command after which the joints stand; 0 = never.
        parameters: whether the controller tells `joints` and `interface_name`.
    """

    def __init__(
        self, joints, start, *, interface="position", rate=200.0, lag=0.0, speed=1.4, timeout=0.0, parameters=True
    ):
        self.joints, self.rate, self.lag, self.speed, self.timeout = list(joints), rate, lag, speed, timeout
        self.interface, self.parameters = interface, parameters
        self.position = np.array([start[name] for name in self.joints], float)
        self.velocity = np.zeros(len(self.joints))
        self.target = self.position.copy() if interface == "position" else np.zeros(len(self.joints))
        self.truth, self.commands = [], []  # (time, {joint: position}), (time, array)
        self.told = False  # that commands have stopped
        self.period = 1.0 / rate  # of the step that is being made [s]
        self._placed = None
        self.undo()
        self._coming, self._leaving, self._shown = [], [], None
        self.over = threading.Event()
        self.context = rclpy.Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.controller = Node("forward_command_controller", context=self.context)
        if parameters:
            self.controller.declare_parameter("joints", self.joints)
            self.controller.declare_parameter("interface_name", interface)
        self.broadcaster = Node("joint_state_broadcaster", context=self.context)
        self.hear()
        self.states = self.broadcaster.create_publisher(JointState, "joint_states", 10)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.controller)
        self.executor.add_node(self.broadcaster)
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._spin, self._work)]
        for thread in self.threads:
            thread.start()

    def close(self):
        self.over.set()
        for thread in self.threads:
            thread.join(2.0)
        self.executor.shutdown(1.0)
        self.controller.destroy_node()
        self.broadcaster.destroy_node()
        rclpy.try_shutdown(context=self.context)

    def undo(self):
        """Nothing is wrong with it."""
        self.frozen = False  # the same numbers under new stamps
        self._freezes = False  # at the next ones that tell of motion
        self.spoken = lambda name: name  # the name that joint states give to a joint
        self.stamp = lambda now: now  # of a measurement made at `now` [s of the wall clock]
        self.moves = lambda step: step  # what the joints make of a step
        self.shows = lambda value: value  # of positions and velocities
        self.delay = lambda: 0.0  # of joint states on their way [s]
        self.says = lambda message: [message]  # what is published in place of a message of joint states

    def freeze_in_motion(self):
        """From the next measurement on in which every joint moves, the same numbers under new stamps."""
        self._freezes = True

    def place(self, start):
        """Set the joints down somewhere, with nothing to follow."""
        self._placed = np.array([start[name] for name in self.joints], float)

    def hear(self, profile=1):
        """Listen to commands with a quality of service."""
        self.ear = self.controller.create_subscription(Float64MultiArray, "~/commands", self._take, profile)

    def deaf(self):
        """Listen no more: the controller is gone, the joint states go on."""
        self.controller.destroy_subscription(self.ear)

    def where(self):
        """Joint -> position, truly."""
        return dict(zip(self.joints, self.position.tolist()))

    def path(self, since=-np.inf):
        """Times (n,) and true positions (n, J) in the controller's order since a time."""
        rows = [row for row in list(self.truth) if row[0] >= since]
        return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])

    def moved(self, since):
        """Longest way of any joint from where it was at `since` [rad]."""
        _, path = self.path(since)
        return float(np.abs(path - path[0]).max())

    # ------------------------------------------------------------ inside

    def _spin(self):
        _fifo()  # as `_work`: states that go on while commands wait for this thread are a frozen driver's
        with contextlib.suppress(ExternalShutdownException):
            while not self.over.is_set():
                self.executor.spin_once(timeout_sec=0.1)

    def _take(self, message):
        now, value = time.monotonic(), np.array(message.data)
        if value.shape == self.position.shape and np.isfinite(value).all():
            self.commands.append((now, value))
            self._coming.append((now + self.lag, value))

    def _work(self):
        _fifo()
        before = due = time.monotonic()
        while not self.over.is_set():
            due = max(due + 1.0 / self.rate, time.monotonic() - 1.0 / self.rate)  # what was missed is not made up for
            time.sleep(max(due - time.monotonic(), 0.0))
            now = time.monotonic()
            self._move(now, now - before)
            before = now
            self._show(now)

    def _move(self, now, period):
        self.period = period
        if self._placed is not None:
            self.position, self._placed = self._placed, None
            self.target = self.position.copy() if self.interface == "position" else np.zeros_like(self.position)
        while self._coming and self._coming[0][0] <= now:
            self.target = self._coming.pop(0)[1]
        if self.timeout and self.commands and now - self.commands[-1][0] > self.timeout + self.lag:
            self.target = self.position.copy() if self.interface == "position" else np.zeros_like(self.position)
            if not self.told and self.parameters:
                self.controller.get_logger().warning("no commands: the joints stand")
            self.told = True
        else:
            self.told = False
        if self.interface == "position":
            step = np.clip(self.target - self.position, -self.speed * period, self.speed * period)
        else:
            step = self.target * period
        step = self.moves(step)
        self.velocity = step / max(period, 1e-6)
        self.position = self.position + step
        self.truth.append((now, self.position.copy()))

    def _show(self, now):
        if self._shown is None or not self.frozen:
            self._shown = self.shows(self.position).tolist(), self.shows(self.velocity).tolist()
            self.frozen |= self._freezes and min(map(abs, self._shown[1])) > 0.01
        message = JointState(name=[self.spoken(name) for name in self.joints])
        message.position, message.velocity = self._shown
        stamp = self.stamp(time.time() - (time.monotonic() - now))  # when it was measured, however late this is said
        message.header.stamp.sec, message.header.stamp.nanosec = int(stamp), int(stamp % 1 * 1e9)
        self._leaving.append((now + self.delay(), message))
        while self._leaving and self._leaving[0][0] <= now:
            for said in self.says(self._leaving.pop(0)[1]):
                self.states.publish(said)
