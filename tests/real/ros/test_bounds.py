"""`robot-rl robot bounds` on a live graph: a robot is driven to two corners, and its workspace is told as YAML."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

harness = pytest.importorskip("ros_harness")
ROOT, wait = harness.ROOT, harness.wait
GANTRY = """
<mujoco><worldbody><body name="a" pos="0.1 0 0"><joint name="j0" type="slide" axis="1 0 0"/><geom size=".01" mass="1"/>
<body name="b"><joint name="j1" type="slide" axis="0 1 0"/><geom size=".01" mass="1"/>
<body name="c"><joint name="j2" type="slide" axis="0 0 -1"/><geom size=".01" mass="1"/><site name="tip"/>
</body></body></body></worldbody></mujoco>
"""


def test_driving_to_the_corners_gives_workspace_and_ranges(live, processes, tmp_path):
    pytest.importorskip("mujoco")
    (tmp_path / "gantry.xml").write_text(GANTRY)
    command = [sys.executable, "-m", "robot_rl", "robot", "bounds", str(processes.folder / "arm.yaml"), "margin=0.1"]
    process = subprocess.Popen(
        [*command, f"model={tmp_path / 'gantry.xml'}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "drive it to the corners" in process.stderr.readline()  # said once the robot is heard
        live.active()
        live.driver.value = lambda t: np.array([0.3, -0.2, 0.1])
        wait(lambda: np.allclose(live.position, [0.3, -0.2, 0.1], atol=5e-3))
        live.driver.value = lambda t: np.array([-0.1, 0.4, 0.0])
        wait(lambda: np.allclose(live.position, [-0.1, 0.4, 0.0], atol=5e-3))
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=30.0)
    finally:
        process.kill()
    assert process.returncode == 0, told
    found = yaml.safe_load(said)
    joints = {item["name"]: (item["lower"], item["upper"]) for item in found["joints"]}
    np.testing.assert_allclose(
        [joints["j0"], joints["j1"], joints["j2"]], [(-0.2, 0.4), (-0.3, 0.5), (-0.1, 0.2)], atol=0.02
    )
    # the gantry's tool is at (0.1 + j0, j1, -j2)
    assert found["workspace"]["ee_site"] == "tip"
    np.testing.assert_allclose(found["workspace"]["lower"], (-0.1, -0.3, -0.2), atol=0.02)
    np.testing.assert_allclose(found["workspace"]["upper"], (0.5, 0.5, 0.1), atol=0.02)


def test_a_robot_that_is_not_there_is_told(live, processes):
    command = [sys.executable, "-m", "robot_rl", "robot", "bounds", str(processes.folder / "arm.yaml")]
    done = subprocess.run(
        [*command, "namespace=/nowhere", "seconds=1"], capture_output=True, text=True, timeout=60.0, check=False
    )
    assert done.returncode == 2
    assert "nothing was heard of the joints of arm within 1 s" in done.stderr
