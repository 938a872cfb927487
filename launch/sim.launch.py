"""A simulated robot under the safety supervisor, without a policy unless one is given.

ros2 launch robot_rl sim.launch.py world:=reach
"""

from robot_rl.real.ros.launching import description


def generate_launch_description():
    """Called by ros2 launch."""
    return description({"robot_spec": "desk_arm"}, fixed={"sim": True})
