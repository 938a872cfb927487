"""Processes of the ROS graph: each node with what it takes from rooms that `real` does not import.

`robot_rl.nodes <executable> --ros-args …` starts one; `ros2 run robot_rl <executable>` is the same. A file of
parameters sets numbers and names of data, never code: what a node calls is chosen here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from robot_rl import build
from robot_rl.real.ros.node_base import leave, run
from robot_rl.verbs.robot_policy import load_robot_policy


def policy_node() -> NoReturn:
    """The policy, which is loaded when the node configures."""
    from robot_rl.real.ros.policy_node import PolicyNode

    leave(run(partial(PolicyNode, load_robot_policy)))


def safety_supervisor_node() -> NoReturn:
    """The supervisor, with the kinematics of MuJoCo for a workspace."""
    from robot_rl.real.ros.safety_supervisor_node import SafetySupervisorNode
    from robot_rl.sim.tool import tool_position

    survive = SafetySupervisorNode.on_callback_error
    leave(run(partial(SafetySupervisorNode, tool_position), survive=survive, shared_memory=False))


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


def follow_trajectory_node() -> NoReturn:
    """The action FollowJointTrajectory."""
    from robot_rl.real.ros.follow_trajectory_node import FollowTrajectoryNode

    leave(run(FollowTrajectoryNode))


def servo_arm_node() -> NoReturn:
    """The driver of an arm of servos."""
    from robot_rl.real.ros.servo_arm_node import ServoArmNode

    leave(run(ServoArmNode))


def recorder_node() -> NoReturn:
    """The recorder."""
    from robot_rl.real.ros.recorder_node import RecorderNode

    sys.exit(run(RecorderNode, finishes=True))  # its writer ends first


NODES: dict[str, Callable[[], NoReturn]] = {
    start.__name__: start
    for start in (
        *(policy_node, safety_supervisor_node, teleop_node, follow_trajectory_node),
        *(sim_robot_node, servo_arm_node, recorder_node),
    )
}


def main() -> NoReturn:
    """Start the node that the first word names; the rest is for ROS."""
    del sys.argv[0]
    NODES[sys.argv[0]]()


if __name__ == "__main__":
    main()
