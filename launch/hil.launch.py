"""Robot, supervisor, recorder and a session of `robot-rl hil env=ros2`, whose page or device are the person's hands.

ros2 launch robot_rl hil.launch.py robot_spec:=my_arm.yaml sim:=false hil:="human=browser task_reward=labels scene=ask"
"""

from robot_rl.real.ros.launching import description


def generate_launch_description():
    """Called by ros2 launch."""
    return description({"record": True}, fixed={"policy_path": "", "teleop": "none"}, session=True)
