"""Processes of the ROS graph: each node with what it takes from rooms that `real` does not import.

`robot_rl.nodes <executable> --ros-args …` starts one; `ros2 run robot_rl <executable>` is the same. A file of
parameters sets numbers and names of data, never code: what a node calls is chosen here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from robot_rl import build, onnx_policy, policy_card
from robot_rl.onnx_policy import OnnxPolicy, graph_of
from robot_rl.real.ros.node_base import leave, run

if TYPE_CHECKING:  # the supervisor's process loads no torch
    from robot_rl.types import Loaded


def policy_node() -> NoReturn:
    """The policy, which is loaded when the node configures."""
    from robot_rl.real.ros.policy_node import PolicyNode

    def load(path: str, *, device: str, threads: int, trust: bool) -> Loaded:
        if (walker := load_walker(Path(path), device=device, threads=threads)) is not None:
            return walker
        if graph_of(Path(path)):
            return onnx_policy.load_for_robot(path, device=device, threads=threads, make_port=build.world_port)
        from robot_rl.verbs.build import load_for_robot  # torch

        return load_for_robot(path, device=device, threads=threads, trust=trust)

    leave(run(partial(PolicyNode, load)))


def load_walker(path: Path, *, device: str, threads: int) -> Loaded | None:
    """A walking policy of others as an ONNX graph with its card `io.yaml`, without torch; None where none lies here.

    Args:
        path: folder, or file of the weights.
        device: where it computes.
        threads: of ONNX Runtime.

    Raises:
        Refused, ValueError: the card cannot be used, or the graph does not fit it.
    """
    found = policy_card.read_for(path)
    if found is None or found[0].format != "onnx":
        return None
    from robot_rl.types import Loaded

    card, weights = found
    port = build.tool("legged_port")
    policy = OnnxPolicy(
        str(weights), port(card, card.joints).io, largest=card.action_clip, device=device, threads=threads
    )
    return Loaded(policy, policy.io, partial(port, card), f"{weights.parent.name}@{card.sha256[:8]}".replace("/", "_"))


def safety_supervisor_node() -> NoReturn:
    """The supervisor, with the kinematics of MuJoCo for a workspace."""
    from robot_rl.real.ros.safety_supervisor_node import SafetySupervisorNode
    from robot_rl.sim.tool import tool_position

    leave(run(partial(SafetySupervisorNode, tool_position), survive=SafetySupervisorNode.on_callback_error))


def teleop_node() -> NoReturn:
    """A person's hands, with the Jacobian of MuJoCo for twists."""
    from robot_rl.real.ros.teleop_node import TeleopNode
    from robot_rl.sim.tool import tool_jacobian

    leave(run(partial(TeleopNode, tool_jacobian)))


def sim_robot_node() -> NoReturn:
    """The simulated robot, moved by MuJoCo where it has a model or a world."""
    from robot_rl.real.ros.sim_robot_node import SimRobotNode
    from robot_rl.sim.legs_plant import make_plant

    leave(run(partial(SimRobotNode, partial(make_plant, make_world=build.make_world))))


def recorder_node() -> NoReturn:
    """The recorder."""
    from robot_rl.real.ros.recorder_node import RecorderNode

    sys.exit(run(RecorderNode))  # its writer ends first


NODES: dict[str, Callable[[], NoReturn]] = {
    start.__name__: start for start in (policy_node, safety_supervisor_node, teleop_node, sim_robot_node, recorder_node)
}


def main() -> NoReturn:
    """Start the node that the first word names; the rest is for ROS."""
    del sys.argv[0]
    NODES[sys.argv[0]]()


if __name__ == "__main__":
    main()
