"""A node that hears and says the supervisor's messages at its rate, and thinks nothing: what rclpy costs.

    python bare_node.py <rate> <seconds>

Prints the summary of its loop as JSON.
"""

import json
import sys
import time

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from ros_harness import NAMES
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectoryPoint

from robot_rl.real.ros.io import JointState, JointTrajectory, qos, time_message
from robot_rl.real.ros.node_base import ControlLoop, freeze_garbage
from robot_rl.real.ros.transport import spare_shared_memory


def main():
    rate, seconds = float(sys.argv[1]), float(sys.argv[2])
    spare_shared_memory()  # as the supervisor
    rclpy.init()
    node = rclpy.create_node("bare")
    newest = {}
    node.create_subscription(JointState, "joint_states", lambda m: newest.__setitem__("state", m), qos("state"))
    node.create_subscription(
        JointTrajectory, "robot_rl/command/policy", lambda m: newest.__setitem__("command", m), qos("command")
    )
    hardware = node.create_publisher(Float64MultiArray, "bare/commands", qos("hardware_out"))
    executed = node.create_publisher(JointTrajectory, "bare/executed", qos("executed"))

    def tick(_):
        state, command = newest.get("state"), newest.get("command")
        if state is None or command is None:
            return None
        place, speed = np.array(state.position), np.array(state.velocity)
        value = np.array(command.points[0].positions)
        hardware.publish(Float64MultiArray(data=value.tolist()))
        point = JointTrajectoryPoint(positions=value.tolist(), velocities=speed.tolist())
        message = JointTrajectory(joint_names=NAMES, points=[point])
        message.header.stamp, message.header.frame_id = time_message(time.time()), command.header.frame_id
        executed.publish(message)
        return float(place[0])

    def fail(error):
        raise error

    loop = ControlLoop(rate, tick, on_error=fail, priority=40)
    freeze_garbage()
    loop.start()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        executor.spin_once(timeout_sec=0.1)
    sys.stdout.write(json.dumps({**loop.summary(), "fifo": loop.fifo, "errors": loop.errors}) + "\n")


main()
