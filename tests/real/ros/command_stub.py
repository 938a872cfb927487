"""A source of commands as a process of its own, to be stopped and killed: holds where it began, and moves on "go".

python command_stub.py policy|teleop 0.6 -0.6 0.2
"""

import sys
import threading
import time

import numpy as np
import rclpy
from ros_harness import NAMES, fifo
from std_msgs.msg import Bool

from robot_rl.real.ros.io import JointTrajectory, qos, trajectory

STEP = 0.009  # rad per command of 10 ms


def main():
    kind, place = sys.argv[1], np.array([float(item) for item in sys.argv[2:]])
    rclpy.init()
    node = rclpy.create_node(kind)
    commands = node.create_publisher(JointTrajectory, f"robot_rl/command/{kind}", qos("command"))
    takeover = node.create_publisher(Bool, "robot_rl/takeover", qos("takeover"))
    go = threading.Event()
    threading.Thread(target=lambda: sys.stdin.readline() and go.set(), daemon=True).start()
    fifo()
    number, due = 0, time.monotonic()
    while True:
        due = max(due + 0.01, time.monotonic() - 0.02)
        time.sleep(max(due - time.monotonic(), 0.0))
        number += 1
        if go.is_set():
            place = np.minimum(place + STEP, 1.5)
        if kind == "teleop":
            takeover.publish(Bool(data=True))
        tag = f"stub{kind}"
        commands.publish(trajectory(NAMES, time.time(), tag, number, [0.01], place[None], "positions"))


main()
