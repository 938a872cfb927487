"""A robot of the user's own, rehearsed from its card alone: limits, e-stop, workspace and the world it stands in."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportArgumentType=false

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml
from geometry_msgs.msg import WrenchStamped
from ros_harness import ROOT, Station, qos

pytestmark = [pytest.mark.ros, pytest.mark.timeout(200)]
JOINTS = ("waist", "shoulder", "elbow", "wrist_pitch", "wrist_roll")
TOLD = ["acceleration=6", "command_mode=forward_position", "controller_topic=", "controller_timeout=0.2"]
TOLD += ["states=joint_states", "estop=brake"]


def test_card_of_an_unknown_arm_is_rehearsed_up_to_armed_within_its_workspace(tmp_path):
    shutil.copy(ROOT / "docs/howto/small_arm.urdf", tmp_path)
    robot_rl = [sys.executable, "-m", "robot_rl"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*robot_rl, "robot", "new", "small_arm.urdf", "name=my_arm", *TOLD], cwd=tmp_path, env=env, check=True
    )
    table = yaml.safe_load((tmp_path / "my_arm.yaml").read_text())
    table["sensors"]["flange"] = {"topic": "force_torque", "type": "geometry_msgs/WrenchStamped", "timeout": 0.2}
    (tmp_path / "my_arm.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    station, felt = Station(), []
    station.node.create_subscription(WrenchStamped, "force_torque", felt.append, qos("state"))
    process = subprocess.Popen(
        [*robot_rl, "deploy", "robot_spec=my_arm", "world=reach"],
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        station.wait_state("IDLE", limit=90.0)
        assert sorted(station.joints) == sorted(JOINTS)
        assert station.enable().success
        station.wait_state("ARMED")
        assert felt, "the card's force sensor is required: without it nothing is enabled"
        assert abs(felt[-1].wrench.force.z) < 1e-6  # it touches nothing
        where = [station.joints[name] for name in JOINTS]
        station.call("safety_supervisor/estop")
        station.wait_state("ESTOP", limit=2.0)
        np.testing.assert_allclose(
            [station.joints[name] for name in JOINTS], where, atol=0.01
        )  # gravity is compensated, as robots do
        process.send_signal(signal.SIGINT)
        assert process.wait(20.0) == 0
    finally:
        process.kill()
        station.close()
