"""Maps the graph of real/graph.py to actions of ROS 2 launch; imported by launch/*.launch.py only."""
# pyright: reportAttributeAccessIssue=false
# (launch is not installed where types are checked)

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from robot_rl import child
from robot_rl.real.graph import TELEOP, GraphArgs, NodeSpec, environment, from_strings, graph

CHOICES = {"teleop": TELEOP, "log_level": ("debug", "info", "warn", "error")}


def descriptions() -> dict[str, str]:
    """Argument -> description, from the docstring of GraphArgs."""
    found: dict[str, str] = {}
    for line in (GraphArgs.__doc__ or "").split("Args:")[1].splitlines():
        name, colon, text = line.strip().partition(": ")
        if colon:
            found[name] = text
    return found


def description(
    defaults: Mapping[str, object] | None = None,
    *,
    fixed: Mapping[str, object] | None = None,
    session: bool = False,
) -> Any:
    """A LaunchDescription with every argument of the graph declared.

    Args:
        defaults: argument -> default other than that of GraphArgs.
        fixed: arguments that this launch file decides itself.
        session: a session of `robot-rl hil` on this robot, too; its words are the argument `hil`.
    """
    from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable

    from launch import LaunchDescription

    fixed = dict(fixed or {})
    texts, declared = descriptions(), []
    for item in fields(GraphArgs):
        if item.name in fixed:
            continue
        default = (defaults or {}).get(item.name, "" if item.name == "robot_spec" else item.default)
        required = item.name == "robot_spec" and not default
        choices = CHOICES.get(item.name) or (("true", "false") if str(item.type) == "bool" else None)
        declared.append(
            DeclareLaunchArgument(
                item.name,
                **({} if required else {"default_value": _text(default)}),
                **({"choices": list(choices)} if choices else {}),
                description=texts[item.name],
            )
        )

    def make(context: object) -> list[object]:
        values = {
            item.name: context.launch_configurations[item.name] for item in fields(GraphArgs) if item.name not in fixed
        }
        args = from_strings({**values, **{name: _text(value) for name, value in fixed.items()}})
        made = [action(node) for node in graph(args)]
        variables = environment({}, sim=args.sim)
        wanted = [SetEnvironmentVariable(name, value) for name, value in variables.items() if name not in os.environ]
        return [*wanted, *made, *([_session(args, context.launch_configurations["hil"])] if session else [])]

    if session:
        text, words = "words of robot-rl hil after env=ros2 and the robot", "human=browser task_reward=labels"
        declared.append(DeclareLaunchArgument("hil", default_value=words, description=text))
    return LaunchDescription([*declared, OpaqueFunction(function=make)])


def session_words(args: GraphArgs, text: str) -> list[str]:
    """Words of the command line of a session on the robot of a graph; a simulated one is enabled by itself.

    Args:
        args: of the graph.
        text: further words, as a shell takes them.
    """
    robot = [f"env.robot_spec={args.robot_spec}", f"env.namespace={args.namespace}"]
    robot += ["env.arm=true"] if args.sim else []
    robot += ["env.use_sim_time=true"] if args.use_sim_time else []
    return ["hil", "env=ros2", *robot, *shlex.split(text)]


def _session(args: GraphArgs, text: str) -> Any:
    """`robot-rl hil` as an action: its end shuts everything down, and Ctrl-C gives it the time to save."""
    from launch.actions import ExecuteProcess, Shutdown

    return ExecuteProcess(
        cmd=child.command("robot_rl", *session_words(args, text)),
        name="hil",
        output="screen",
        emulate_tty=True,
        sigterm_timeout="60",
        on_exit=[Shutdown(reason="the session has ended")],
    )


def action(node: NodeSpec) -> Any:
    """One process as an action: an essential node that ends shuts everything down."""
    from launch.actions import Shutdown
    from launch_ros.actions import Node

    parameters: list[object] = [node.params_file] if node.params_file else []
    return Node(
        package="robot_rl",
        executable=node.executable,
        name=node.name,
        namespace=node.namespace,
        parameters=[*parameters, node.parameters],
        arguments=["--ros-args", "--log-level", node.log_level, *(["--enclave", node.enclave] if node.enclave else [])],
        output="screen",
        emulate_tty=True,
        respawn=node.restart == "failure",
        respawn_delay=1.0,
        sigterm_timeout=str(node.grace),
        on_exit=[Shutdown(reason=f"{node.name} has ended")] if node.essential else None,
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
