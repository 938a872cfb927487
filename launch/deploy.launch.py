"""Everything: (simulated) robot, safety supervisor, policy, teleoperation, recorder.

ros2 launch robot_rl deploy.launch.py robot_spec:=desk_arm world:=reach policy_path:=runs/train/<run>
ros2 launch robot_rl deploy.launch.py robot_spec:=my_arm.yaml sim:=false policy_path:=runs/train/<run>
"""

from robot_rl.real.ros.launching import description


def generate_launch_description():
    """Called by ros2 launch."""
    return description()
