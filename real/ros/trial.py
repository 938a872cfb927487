"""Counts successes of a policy that drives a simulated robot over DDS: a task, some seconds, a look at `success`.

It says "active" when the graph is ready. With `--farewell` it then says "moving", watches the graph being ended, and
reports the last command that went out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from robot_rl.extras import require

require("rclpy")

import numpy as np  # noqa: E402
import rclpy  # noqa: E402  (after the check that it is there)
from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rclpy.signals import SignalHandlerOptions  # noqa: E402
from std_msgs.msg import Bool, String  # noqa: E402
from std_srvs.srv import SetBool, Trigger  # noqa: E402

from robot_rl.real.ros.executor import TopicExecutor  # noqa: E402
from robot_rl.real.ros.io import Executed, JointTrajectory, qos, read_executed  # noqa: E402

SILENCE = 1.5  # seconds without a command after which the supervisor has ended


def trial(
    episodes: int,
    seconds: float,
    *,
    patience: float = 60.0,
    limit: float = 0.0,
    record_seconds: float = 0.0,
    farewell: bool = False,
) -> dict[str, Any]:
    """Run episodes on a graph that is up: simulated robot with a world, supervisor, and policy.

    Args:
        episodes: how many.
        seconds: of each.
        patience: for the graph to be ready [s].
        limit: of all episodes together [s]; 0 = none. Their number on a busy machine is not known in advance.
        record_seconds: after which the recorder ends its file and begins another; 0 = leave it alone.
        farewell: afterwards give one more task, print "moving" and watch until no more commands come.

    Returns:
        successes per episode, faults and soft stops meanwhile, executed messages per second, and the supervisor's
        period p99 [ms] in the first and in the second half; with `farewell` also the largest commanded velocity while
        moving and in the last command [rad/s].

    Raises:
        RuntimeError: the graph does not get ready.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("trial")
    seen: dict[str, Any] = {"success": False, "state": "", "executed": 0, "states": [], "period": []}
    last: list[tuple[float, Executed]] = []

    def on_state(message: String) -> None:
        if message.data != seen["state"]:
            seen["states"].append(message.data)
        seen["state"] = message.data

    def on_executed(message: JointTrajectory) -> None:
        seen["executed"] += 1
        last[:] = [*last[-50:], (time.monotonic(), read_executed(message))]

    def on_diagnostics(message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == "robot_rl/safety_supervisor: loop":
                found = {item.key: item.value for item in status.values}
                seen["period"].append(float(found.get("period_p99_ms", "nan")))

    node.create_subscription(DiagnosticArray, "/diagnostics", on_diagnostics, 50)
    node.create_subscription(Bool, "robot_rl/success", lambda m: seen.update(success=m.data), qos("event"))
    node.create_subscription(String, "robot_rl/safety/state", on_state, qos("latched"))
    node.create_subscription(JointTrajectory, "robot_rl/executed", on_executed, qos("executed"))
    executor = TopicExecutor()
    executor.add_node(node)

    def spin(until: float) -> None:
        while time.monotonic() < until:
            executor.spin_once(timeout_sec=max(until - time.monotonic(), 0.0))

    clients: dict[str, Any] = {}  # kept: every new one costs every process of the graph memory for good

    def call(name: str, kind: Any, request: Any) -> Any:
        client = clients.get(name) or clients.setdefault(name, node.create_client(kind, name))
        end = time.monotonic() + 10.0
        while not client.service_is_ready() and time.monotonic() < end:
            spin(time.monotonic() + 0.1)
        future = client.call_async(request)
        while not future.done() and time.monotonic() < end:
            spin(time.monotonic() + 0.005)
        return future.result()

    try:
        end = time.monotonic() + patience
        while seen["state"] != "ACTIVE":
            if time.monotonic() > end:
                raise RuntimeError(
                    f"the graph is not ready after {patience:g} s: supervisor {seen['state'] or 'silent'}"
                )
            if seen["state"] in ("FAULT", "ESTOP"):
                call("safety_supervisor/reset", Trigger, Trigger.Request())
            if seen["state"] == "IDLE":
                call("safety_supervisor/enable", SetBool, SetBool.Request(data=True))
            spin(time.monotonic() + 0.3)
        _say("active")
        results, begin = [], time.monotonic()
        seen["states"], seen["executed"], seen["period"] = [], 0, []
        recorded = begin
        for _ in range(episodes):
            if limit and time.monotonic() - begin >= limit:
                break
            if record_seconds and time.monotonic() - recorded >= record_seconds:
                recorded = time.monotonic()
                for name in ("recorder/stop", "recorder/start"):
                    call(name, Trigger, Trigger.Request())
            seen["success"] = False
            call("sim_robot/next_task", Trigger, Trigger.Request())
            spin(time.monotonic() + seconds)
            results.append(bool(seen["success"]))
            if seen["state"] in ("FAULT", "ESTOP"):  # counted below; the next episode shall not suffer for it
                call("safety_supervisor/reset", Trigger, Trigger.Request())
                call("safety_supervisor/enable", SetBool, SetBool.Request(data=True))
        half = len(seen["period"]) // 2
        found = {
            "successes": results,
            "faults": sum(state in ("FAULT", "ESTOP") for state in seen["states"]),
            "soft_stops": seen["states"].count("STOPPING"),
            "executed_hz": seen["executed"] / (time.monotonic() - begin),
            "period_p99_ms": [_median(seen["period"][:half]), _median(seen["period"][half:])],
        }
        if farewell:
            call("sim_robot/next_task", Trigger, Trigger.Request())
            spin(time.monotonic() + 0.4)
            found["velocity_moving"] = max(float(np.abs(item.velocity).max()) for _, item in last[-20:])
            _say("moving")
            end = time.monotonic() + 60.0
            while time.monotonic() - last[-1][0] < SILENCE and time.monotonic() < end:
                spin(time.monotonic() + 0.1)
            found["velocity_last"] = float(np.abs(last[-1][1].velocity).max())
        return found
    finally:
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _median(values: Sequence[float]) -> float:
    return float(np.nanmedian(values)) if len(values) else float("nan")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m robot_rl.real.ros.trial`: prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--limit", type=float, default=0.0, help="seconds of all episodes, 0 = none")
    parser.add_argument("--record-seconds", type=float, default=0.0, help="seconds per file of the recorder")
    parser.add_argument("--farewell", action="store_true", help="watch the graph being ended afterwards")
    args = parser.parse_args(arguments)
    try:
        options = {"limit": args.limit, "record_seconds": args.record_seconds, "farewell": args.farewell}
        found = trial(args.episodes, args.seconds, **options)
        sys.stdout.write(json.dumps(found) + "\n")
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
