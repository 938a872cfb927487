"""Teleoperated recording: robot, supervisor, teleoperation and recorder.

ros2 launch robot_rl record.launch.py robot_spec:=my_arm.yaml sim:=false teleop:=leader record_folder:=demos
"""

from robot_rl.real.ros.launching import description


def generate_launch_description():
    """Called by ros2 launch."""
    return description({"teleop": "joy"}, fixed={"record": True})
