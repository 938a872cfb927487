"""Robot, supervisor and teleoperation for learning with a person in the loop; the learner's environment is the policy.

ros2 launch robot_rl hil.launch.py robot_spec:=my_arm.yaml sim:=false teleop:=joy
"""

from robot_rl.real.ros.launching import description


def generate_launch_description():
    """Called by ros2 launch."""
    return description({"teleop": "joy", "record": True}, fixed={"policy_path": ""})
