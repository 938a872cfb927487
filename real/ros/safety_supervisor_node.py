"""The safety supervisor as a process: sole publisher of the robot's command topic, and never an importer of torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import ClockChange, JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from std_msgs.msg import Bool, Empty, String
from std_srvs.srv import SetBool, Trigger

from robot_rl.real.core.machine import LATCHED, State
from robot_rl.real.core.pipeline import HEARTBEAT, CommandPipeline, Controller, PipelineOptions, Sent
from robot_rl.real.core.scheduler import Tick
from robot_rl.real.core.settings import PLAUSIBLE, SafetySettings, implausible
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.command_topics import CommandTopics
from robot_rl.real.ros.controller_check import ControllerCheck
from robot_rl.real.ros.endpoints import OwnEndpoints, SharedSwitch, refuse_twin
from robot_rl.real.ros.flight_option import LAST, declare_flight, open_flight, tell_flight
from robot_rl.real.ros.inputs import RobotInputs
from robot_rl.real.ros.io import JointTrajectory, hardware_type
from robot_rl.real.ros.node_base import (
    ERROR,
    OK,
    WARN,
    ControlLoop,
    Health,
    Seen,
    freeze_garbage,
    publisher,
    steady_timer,
    subscribe,
    thaw_garbage,
)
from robot_rl.real.ros.outgoing import ExecutedMessage, HardwareMessage
from robot_rl.real.ros.parameters import check_parameters, declare
from robot_rl.real.ros.robot_status import RobotStatus

ANSWERABLE = (
    *("allow_external", "external_align", "external_timeout", "teleop_timeout", "takeover_timeout"),
    *("first_message_timeout", "estop_heartbeat", "estop_required", "auto_arm"),
)
"""Parameters of the node that are options of the pipeline."""
COMMAND_NODES = ("policy", "teleop", "follow_trajectory", "robot_env", "doctor")
TIMEOUTS = ("state_timeout", "command_timeout", "teleop_timeout", "takeover_timeout")
"""Parameters that may be lowered while running, never raised."""

ToolPosition = Callable[[str, str, Sequence[str]], Callable[[np.ndarray], np.ndarray]]
"""(model, site, joints) -> function (J,) joint positions -> (3,) position of the tool [m]."""


class SafetySupervisorNode(LifecycleNode):
    """See docs/ros2.md for topics, services and parameters.

    Configure reads the RobotSpec and opens topics; activate starts the loop; deactivate brakes and stops it.
    """

    def __init__(self, tool_position: ToolPosition, **options: Any) -> None:
        """Declare parameters; with `autostart` configure and activate.

        Args:
            tool_position: (model, site, joints) -> function (J,) joint positions -> (3,) [m], for a workspace.
            options: of the node.
        """
        super().__init__("safety_supervisor", **options)
        self._tool_position = tool_position
        self._declare()
        check_parameters(self, sys.argv)
        self.loop: ControlLoop | None = None
        self.pipeline: CommandPipeline | None = None
        self._lasting: set[object] = set()  # what is there before it is configured
        self._endpoints, self._jumps = OwnEndpoints(self), None
        self._callback_errors = 0
        self.add_on_set_parameters_callback(self._on_parameters)
        if self._value("autostart"):
            for step in (self.trigger_configure, self.trigger_activate):
                if step() is not TransitionCallbackReturn.SUCCESS:
                    raise ValueError(self._problem or "the supervisor could not be started; see the log above")

    def _declare(self) -> None:
        self._problem = ""
        declare(self, "robot_spec", "", "path of the RobotSpec YAML")
        declare(self, "autostart", False, "configure and activate at once")
        declare(self, "auto_arm", False, "enable with the first good command, clear faults; for simulation only")
        declare(self, "realtime", 0, "SCHED_FIFO priority of the loop, 0 = ordinary", high=98)
        declare(self, "model", "", "MuJoCo model for the workspace, MJCF or URDF")
        declare(self, "allow_external", False, "accept foreign command topics under external/")
        declare(self, "external_align", False, "foreign steps far from the robot are approached, not refused")
        declare(self, "external_stamped", False, "external/cmd_vel is TwistStamped, not Twist")
        declare(self, "external_timeout", 0.1, "largest age of a foreign step [s]", low=0.001, high=60.0)
        declare(self, "command_nodes", list(COMMAND_NODES), "nodes that may publish on command/*")
        declare(self, "allow_unread_controller", False, "a forward controller whose joint order cannot be read")
        declare(self, "discovery_time", 3.0, "wait for others of our name at configure [s]", low=0.0, high=30.0)
        declare(self, "first_message_timeout", 5.0, "patience for first messages [s]", low=0.1, high=600.0)
        declare(self, "estop_heartbeat", 0.5, "largest age of estop_heartbeat [s], 0 = not used", low=0.0, high=10.0)
        declare(self, "estop_required", False, "nothing moves before estop_heartbeat has been heard")
        declare(self, "confirmed", [""], "settings beyond what is plausible that are meant")
        declare(self, "teleop_timeout", 0.25, "largest age of a human's command [s]", low=0.01, read_only=False)
        declare(self, "takeover_timeout", 0.3, "largest age of the dead-man's switch [s]", low=0.01, read_only=False)
        declare(self, "fault_injection", False, "listen on inject (tests only)")
        declare_flight(self)
        for item in fields(SafetySettings):
            default: Any = item.default
            lowered = item.name in TIMEOUTS
            if isinstance(default, (bool, str)):
                declare(self, item.name, default, "see SafetySettings")
            else:
                declare(self, item.name, default, "see SafetySettings", low=0, high=1e6, read_only=not lowered)

    def _value(self, name: str) -> Any:
        return self.get_parameter(name).value

    # ------------------------------------------------------------ lifecycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the spec, open the topics."""
        try:
            self._configure()
        except (ValueError, OSError, ImportError) as error:
            self._problem = str(error)
            self.get_logger().error(f"not configured: {error}")
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the loop."""
        assert self.loop is not None
        if self.loop.alive:
            self.get_logger().error("not activated: still braking; ask again once safety/state is STARTUP")
            return TransitionCallbackReturn.FAILURE
        freeze_garbage()  # before the first tick: a collection takes tens of milliseconds
        self._ending = False
        self.loop.start()
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Brake, then stop publishing; the loop ends by itself at rest, and callbacks such as the e-stop go on."""
        self._end()
        return TransitionCallbackReturn.SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the topics."""
        if self.loop is not None and self.loop.alive:
            self.get_logger().error("not cleaned up: still braking; ask again once it has ended")
            return TransitionCallbackReturn.FAILURE
        self._close()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Brake and close."""
        self._brake()
        return TransitionCallbackReturn.SUCCESS

    def wind_down(self) -> None:
        """Brake before the process ends."""
        self._brake()

    def _end(self) -> None:
        """Begin to brake; the control loop ends two ticks after it has come to rest, or after a second."""
        if self.loop is not None and self.pipeline is not None and self.loop.alive and not self._ending:
            self._rest_ticks, self._end_by = 0, time.monotonic() + 1.0
            self.pipeline.shutdown()
            self._ending = True

    def _brake(self) -> None:
        """Brake and wait for it; for the end of the process, where nothing else has to be done meanwhile."""
        self._end()
        loop = self.loop
        patience = time.monotonic() + 1.5
        while loop is not None and loop.alive and time.monotonic() < patience:
            time.sleep(0.01)
        if loop is not None:
            loop.stop()
            for out in (self._hardware, self._executed):  # who leaves the graph takes along what was not read yet
                out.wait_for_all_acked(Duration(seconds=0.2))
        thaw_garbage()
        self._close_flight()

    def _close_flight(self) -> None:
        if self.pipeline is not None and self.pipeline.flight is not None:
            self.pipeline.flight.close(LAST)

    _ending, _rest_ticks, _end_by = False, 0, np.inf

    def _entities(self) -> list[tuple[Callable[[Any], object], set[Any]]]:
        return [
            (self.destroy_publisher, set(self.publishers)),
            (self.destroy_subscription, set(self.subscriptions)),
            (self.destroy_timer, set(self.timers)),
            (self.destroy_service, set(self.services)),
            (self.destroy_client, set(self.clients)),
        ]

    def _close(self) -> None:
        """All that configuring has made, whoever made it; else states would be heard twice after the next one."""
        for destroy, there in self._entities():
            for item in there - self._lasting:
                destroy(item)
        if self._jumps is not None:
            self._jumps.unregister()
            self._jumps = None
        self._endpoints.clear()
        self._close_flight()
        self.loop = self.pipeline = None

    def _configure(self) -> None:
        self._lasting = set().union(*(there for _, there in self._entities()))
        path = self._value("robot_spec")
        if not path:
            raise ValueError("robot_spec is empty; give the path of the robot's YAML, e.g. -p robot_spec:=arm.yaml")
        self.spec = spec = RobotSpec.load(path)
        if problem := implausible({name: self._value(name) for name in PLAUSIBLE}, self._value("confirmed")):
            raise ValueError(problem)
        settings = SafetySettings(**{item.name: self._value(item.name) for item in fields(SafetySettings)})
        forward: Callable[[np.ndarray], np.ndarray] | None = None
        if spec.workspace is not None:
            if not self._value("model"):
                raise ValueError("the spec has a workspace; give model:= the MuJoCo model for its forward kinematics")
            forward = self._tool_position(self._value("model"), spec.workspace.ee_site, spec.names)
        refuse_twin(self, self._value("discovery_time"))
        self._controller = ControllerCheck(self, spec)
        self._controller.refuse(0.2)
        watched = {
            name: s.timeout
            for name, s in spec.sensors.items()
            if s.required and "Image" not in s.type and "JointState" not in s.type
        }
        self.health = Health(self, spec.name)
        self.inputs = RobotInputs(self, spec, self.health, future_tolerance=settings.future_tolerance)
        self.pipeline = CommandPipeline(
            spec,
            settings,
            PipelineOptions(**{name: self._value(name) for name in ANSWERABLE}),
            forward=forward,
            watched=watched,
            start=time.monotonic(),
            flight=open_flight(self, "supervisor", spec, self._value("model")),
        )
        self._watched = tuple(watched)
        self._last: Sent | None = None
        self._said: tuple[Any, ...] = ()
        self._said_at = 0.0
        self._injected: Exception | None = None
        self._trusting = bool(self._value("allow_unread_controller"))
        self.loop = ControlLoop(
            settings.rate, self._tick, on_error=self._on_error, priority=int(self._value("realtime"))
        )
        self.health.watch_loop(self.loop)
        self.health.add("safety", self._aspect)
        self._open(spec)

    def _open(self, spec: RobotSpec) -> None:
        health = self.health
        assert self.pipeline is not None

        def own(kind: Any, topic: str, profile: str) -> Any:
            return self._endpoints.publish(lambda: publisher(self, kind, topic, profile, health), topic)

        self._simulated_time = bool(self._value("use_sim_time"))
        self._command_out, self._executed_out = HardwareMessage(spec), ExecutedMessage(spec)
        self._hardware = own(hardware_type(spec), spec.controller_topic, "hardware_out")
        self._executed = own(JointTrajectory, "robot_rl/executed", "executed")
        self._authority = own(String, "robot_rl/authority", "latched")
        self._state = own(String, "robot_rl/safety/state", "latched")
        self._commands = CommandTopics(
            self,
            spec,
            self.pipeline,
            health,
            simulated_time=self._simulated_time,
            external_hold=self._value("external_timeout") if self._value("allow_external") else None,
            external_stamped=self._value("external_stamped"),
        )
        self._status = RobotStatus(self, spec, health, self.pipeline.estop)
        subscribe(self, Bool, "robot_rl/takeover", self._on_takeover, "takeover", health)
        self._switch = SharedSwitch(self, "robot_rl/estop")
        subscribe(self, Bool, "robot_rl/estop", self._on_estop, "estop_in", health)
        subscribe(self, Empty, "robot_rl/estop_heartbeat", self._on_heartbeat, "event", health)
        self._endpoints.serve(self.create_service(SetBool, "~/enable", self._on_enable))
        self._endpoints.serve(self.create_service(Trigger, "~/estop", self._on_estop_service))
        self._endpoints.serve(self.create_service(Trigger, "~/reset", self._on_reset))
        steady_timer(self, 0.25, self._look_around)
        if self._value("fault_injection"):
            subscribe(self, String, "~/inject", self._on_inject, "event", health)
        threshold = JumpThreshold(
            min_forward=Duration(seconds=1.0), min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        self._jumps = self.get_clock().create_jump_callback(threshold, post_callback=self._on_jump)

    # ------------------------------------------------------------ callbacks

    def _on_takeover(self, message: Bool) -> None:
        assert self.pipeline is not None
        self.pipeline.takeover(bool(message.data), time.monotonic())

    def _on_estop(self, message: Bool, info: object) -> None:
        assert self.pipeline is not None
        self.pipeline.estop("topic", pressed=self._switch.pressed(bool(message.data), info))

    def _on_heartbeat(self, message: Empty) -> None:
        assert self.pipeline is not None
        if HEARTBEAT in self.pipeline.watchdogs.names:
            self.pipeline.alive(HEARTBEAT, time.monotonic())

    def _on_jump(self, jump: Any) -> None:
        if jump.clock_change == ClockChange.ROS_TIME_NO_CHANGE and jump.delta.nanoseconds < 0 and self.pipeline:
            self.get_logger().warning("time has jumped back: brake, and learn the clock offsets anew")
            self.inputs.reset_clocks()
            self.pipeline.soft_stop("clock_jump")

    def _on_inject(self, message: String) -> None:
        if message.data == "exception":
            self._injected = RuntimeError("injected")
        elif message.data.startswith("busy"):  # hold the interpreter: what a starved machine does to the loop
            until = time.monotonic() + float(message.data.split()[1])
            sys.setswitchinterval(10.0)
            while time.monotonic() < until:
                pass
            sys.setswitchinterval(0.005)

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        assert self.pipeline is not None
        refused = self._refusals(partial(self.pipeline.enable, request.data), look=request.data)
        response.success, response.message = not refused, "; ".join(refused)
        return response

    def _on_estop_service(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        assert self.pipeline is not None
        self.pipeline.estop_once("service")
        response.success, response.message = True, "latched; call reset to go on"
        return response

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        assert self.pipeline is not None
        refused = self._refusals(self.pipeline.reset)
        response.success, response.message = not refused, "; ".join(refused)
        return response

    def _refusals(self, act: Callable[[], list[str]], *, look: bool = True) -> list[str]:
        """Why something may not be done; what `look` finds counts at once, a tick would find it a moment later."""
        assert self.pipeline is not None
        if self.loop is None or not self.loop.alive:
            return ["the supervisor is not active"]
        if not look:
            return act()
        self._look_around()
        against = self.pipeline.hinder(self._view())
        return act() or against

    def on_callback_error(self, error: Exception) -> None:
        """A callback has failed, and what it should have noted is lost: brake and latch; the callbacks go on."""
        self._callback_errors += 1
        self.get_logger().error(f"exception in a callback: {type(error).__name__}: {error}", throttle_duration_sec=1.0)
        if self.pipeline is not None:
            self.pipeline.safety.report("internal", f"{type(error).__name__} in a callback: {error}")

    def _view(self) -> Controller:
        """Who listens now; what was found out about them, and who else speaks, at the last look."""
        listeners = self._hardware.get_subscription_count()
        problem = "" if self._trusting or not listeners else self._controller.problem
        return Controller(listeners, self._rivals, self._strangers, problem, self._status.problems)

    def _look_around(self) -> None:
        """Who else speaks, who listens: four times a second and before enable and reset, in the callback thread."""
        if self.pipeline is None:
            return
        self._tell_faults()
        self._controller.look()
        self._rivals = self._endpoints.rivals()
        self._strangers = self._endpoints.strangers(self._commands.watched, set(self._value("command_nodes")))

    def _tell_faults(self) -> None:
        """Say each fault once, with its numbers; those of auto_arm's robot are gone soon."""
        assert self.pipeline is not None
        faults = self.pipeline.safety.numbers
        for code, numbers in faults.items():
            if code not in self._told:
                self.get_logger().error(f"fault {code}: {numbers or 'see the diagnostics'}")
        self._told = frozenset(faults)

    _told: frozenset[str] = frozenset()
    _rivals: tuple[str, ...] = ()
    _strangers: tuple[str, ...] = ()

    # ------------------------------------------------------------ one tick, in the control thread

    def _tick(self, tick: Tick) -> float | None:
        pipeline = self.pipeline
        assert pipeline is not None
        if self._injected is not None:
            self._injected, error = None, self._injected
            raise error
        now = time.monotonic()
        state = self.inputs.latest(now)
        for name in self._watched:
            heard = now - self.inputs.age(name, now)
            if np.isfinite(heard):
                pipeline.alive(name, heard)
        pipeline.controller(self._view())
        mismatches = () if state is not None else tuple(self.health.mismatches)
        sent = pipeline.tick(now, state, mismatches=mismatches)
        self._send(sent, now)
        if not sent.publish:
            self._hardware.assert_liveliness()  # a silent supervisor lives; a driver may watch for one that does not
        if self._ending:
            self._rest_ticks += pipeline.resting  # the command at rest goes out twice
            if self._rest_ticks > 2 or now > self._end_by:
                assert self.loop is not None
                self.loop.stop()
        return None if state is None else now - state.stamp

    def _send(self, sent: Sent, now: float) -> None:
        if sent.publish:
            stamp = 1e-9 * self.get_clock().now().nanoseconds if self._simulated_time else time.time()
            self._hardware.publish(self._command_out.fill(sent.value, self._period, stamp, sent.gains))
            told = sent.authority, sent.trace, sent.flags
            message = self._executed_out.fill(sent.value, stamp, told, velocity=sent.velocity, period=sent.period)
            self._executed.publish(message)
        self._last = sent
        said = (sent.verdict.state, sent.authority)
        if said != self._said or now - self._said_at > 1.0:
            if not self._said or sent.verdict.state != self._said[0] or now - self._said_at > 1.0:
                self._state.publish(String(data=sent.verdict.state))
            if not self._said or sent.authority != self._said[1]:
                self._authority.publish(String(data=sent.authority))
            self._said, self._said_at = said, now

    @property
    def _period(self) -> float:
        assert self.loop is not None
        return 1.0 / self.loop.rate

    def _on_error(self, error: Exception) -> None:
        """The tick itself broke: brake with the last good command and latch."""
        assert self.pipeline is not None
        self.pipeline.safety.report("internal", f"{type(error).__name__} in a tick: {error}")
        sent = self.pipeline.tick(time.monotonic(), None)
        self._send(sent, time.monotonic())
        self.get_logger().error(f"exception in the control loop: {type(error).__name__}: {error}")

    # ------------------------------------------------------------ reports

    def _aspect(self) -> Seen:
        pipeline, last = self.pipeline, self._last
        if pipeline is None or last is None:
            return WARN, "not active", {}
        now = time.monotonic()
        state = State(last.verdict.state)
        faults = pipeline.safety.faults
        values: dict[str, object] = {
            "state": state.value,
            "fault": last.verdict.fault,
            "faults": ", ".join(faults),
            "numbers": "; ".join(f"{code}: {numbers}" for code, numbers in pipeline.safety.numbers.items() if numbers),
            "authority": last.authority,
            "reasons": ", ".join(last.verdict.reasons),
            "clip_ratio": float(pipeline.clip_ratio),
            "clock_faults": pipeline.clock_faults + self.inputs.clock_faults(),
            "callback_errors": self._callback_errors,
            "controllers": self._hardware.get_subscription_count(),
        }
        values |= {f"dropped_{reason}": count for reason, count in sorted(pipeline.door.dropped.items())}
        values |= tell_flight(pipeline.flight)
        if state in LATCHED or faults:
            told = (f"{code} ({numbers})" if numbers else code for code, numbers in pipeline.safety.numbers.items())
            return ERROR, f"{state.value}: {', '.join(told)}; call reset once the cause is gone", values
        if state is State.STARTUP:
            waiting = [*pipeline.overdue(now), *pipeline.blocking, *pipeline.safety.waits]
            level = ERROR if waiting and not pipeline.patient else WARN
            return level, "starting; waits for: " + ("; ".join(dict.fromkeys(waiting)) or "inputs to settle"), values
        if pipeline.blocking:
            return WARN, "; ".join(pipeline.blocking), values
        if "start_mismatch" in last.verdict.reasons:
            return WARN, "start mismatch: the command is too far from the robot to begin", values
        return OK, state.value, values

    def _on_parameters(self, changes: list[Parameter]) -> SetParametersResult:
        """Timeouts may be lowered to what SafetySettings allows; everything else is read-only by its descriptor."""
        for change in changes:
            if change.name in TIMEOUTS and self.pipeline is not None and change.value > self._value(change.name):
                return SetParametersResult(
                    successful=False,
                    reason=f"{change.name} may only be lowered while running, from {self._value(change.name):g} s",
                )
        if self.pipeline is not None:
            try:
                self.pipeline.lower({change.name: change.value for change in changes if change.name in TIMEOUTS})
            except ValueError as error:
                return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)
