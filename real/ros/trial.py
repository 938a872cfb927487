"""Counts successes of a policy that drives a simulated robot over DDS: a task, some seconds, a look at `success`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from robot_rl.extras import require

require("rclpy", extra="ros")

import rclpy  # noqa: E402  (after the check that it is there)
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.signals import SignalHandlerOptions  # noqa: E402
from std_msgs.msg import Bool, String  # noqa: E402
from std_srvs.srv import SetBool, Trigger  # noqa: E402

from robot_rl.real.ros.io import JointTrajectory, qos  # noqa: E402


def trial(episodes: int, seconds: float, *, patience: float = 60.0) -> dict[str, Any]:
    """Run episodes on a graph that is up: simulated robot with a world, supervisor, and policy.

    Args:
        episodes: how many.
        seconds: of each.
        patience: for the graph to be ready [s].

    Returns:
        successes per episode, faults and soft stops meanwhile, executed messages per second.

    Raises:
        RuntimeError: the graph does not get ready.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("trial")
    seen: dict[str, Any] = {"success": False, "state": "", "executed": 0, "states": []}

    def on_state(message: String) -> None:
        if message.data != seen["state"]:
            seen["states"].append(message.data)
        seen["state"] = message.data

    node.create_subscription(Bool, "robot_rl/success", lambda m: seen.update(success=m.data), qos("event"))
    node.create_subscription(String, "robot_rl/safety/state", on_state, qos("latched"))
    node.create_subscription(
        JointTrajectory, "robot_rl/executed", lambda _: seen.update(executed=seen["executed"] + 1), qos("executed")
    )
    executor = SingleThreadedExecutor()
    executor.add_node(node)

    def spin(until: float) -> None:
        while time.monotonic() < until:
            executor.spin_once(timeout_sec=max(until - time.monotonic(), 0.0))

    def call(name: str, kind: Any, request: Any) -> Any:
        client = node.create_client(kind, name)
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
        results, begin = [], time.monotonic()
        seen["states"], seen["executed"] = [], 0
        for _ in range(episodes):
            seen["success"] = False
            call("sim_robot/next_task", Trigger, Trigger.Request())
            spin(time.monotonic() + seconds)
            results.append(bool(seen["success"]))
            if seen["state"] in ("FAULT", "ESTOP"):  # counted below; the next episode shall not suffer for it
                call("safety_supervisor/reset", Trigger, Trigger.Request())
                call("safety_supervisor/enable", SetBool, SetBool.Request(data=True))
        return {
            "successes": results,
            "faults": sum(state in ("FAULT", "ESTOP") for state in seen["states"]),
            "soft_stops": seen["states"].count("STOPPING"),
            "executed_hz": seen["executed"] / (time.monotonic() - begin),
        }
    finally:
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m robot_rl.real.ros.trial`: prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args(arguments)
    try:
        sys.stdout.write(json.dumps(trial(args.episodes, args.seconds)) + "\n")
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
