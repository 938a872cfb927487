"""A policy that looks, over DDS: pictures reach it, and it lets go when a camera breaks (row 39)."""

import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from rclpy.qos import QoSProfile, ReliabilityPolicy
from ros_harness import ROOT, RT, SUPERVISOR, Station, wait
from sensor_msgs.msg import CompressedImage, Image

from robot_rl.real.cameras import compressed_pixels, raw_pixels

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
CAMERAS = {
    "front": {"topic": "camera/front/image_raw", "type": "sensor_msgs/Image", "timeout": 1.0},
    "wrist": {
        "topic": "camera/wrist/image_raw/compressed",
        "type": "sensor_msgs/CompressedImage",
        "timeout": 1.0,
    },
}
SIZE = ("image_height:=480", "image_width:=640", "camera_rate:=10.0")
PROFILE = {"FASTDDS_DEFAULT_PROFILES_FILE": str(ROOT / "launch" / "params" / "fastdds_shm.xml")}


@pytest.fixture(scope="module")
def renderer():
    try:
        from robot_rl.sim.render import open_context

        open_context(64, 64).free()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"nothing renders here: {error}")


@pytest.fixture(scope="module")
def seeing(renderer, processes):
    """Simulated world with two VGA cameras, supervisor, and a policy that looks through both."""
    raw = yaml.safe_load((ROOT / "launch" / "params" / "desk_arm.yaml").read_text())
    (processes.folder / "seeing.yaml").write_text(yaml.safe_dump({**raw, "cameras": CAMERAS}))
    (processes.folder / "looks").mkdir()
    kind = {"spec": "seeing.yaml", "environment": PROFILE}
    processes.start("sim_robot_node", RT, "world:=reach", *SIZE, **kind)
    processes.start("safety_supervisor_node", *SUPERVISOR, **kind)
    policy = (RT, "autostart:=true", f"policy_path:={processes.folder / 'looks'}")
    processes.start("policy_node", *policy, **kind)
    station = Station()
    wait(lambda: station.state == "IDLE", limit=90.0, what="a supervisor that is ready")
    wait(lambda: "policy: policy" in station.diagnostics, limit=90.0, what="the policy")
    wait(lambda: station.joints is not None, limit=30.0, what="joint states")
    yield station
    station.close()


def waist(station):
    return station.joints["waist"]


def drive(station):
    if station.state in ("IDLE", "FAULT"):
        wait(lambda: station.enable().success, limit=30.0, what="enable")
    station.wait_state("ACTIVE", limit=30.0)


def test_the_policy_drives_by_what_it_sees(seeing) -> None:
    drive(seeing)
    wait(lambda: abs(waist(seeing) - 0.3) < 0.02, limit=20.0, what="the waist where it goes when pictures come")


@pytest.mark.parametrize(("fault", "said"), [("repeat", "frozen"), ("garbage", "usable"), ("silent", "usable")])
def test_39_policy_lets_go_when_a_camera_breaks_and_goes_on_when_it_lives_again(seeing, fault, said) -> None:
    drive(seeing)
    seeing.inject(camera=fault)
    since = time.monotonic()
    wait(lambda: seeing.state != "ACTIVE", limit=10.0, what="the end of driving")
    assert time.monotonic() - since < 5.0
    wait(lambda: said in seeing.diagnostic("policy: policy")[1], what=f"a diagnosis with {said!r}")
    assert "camera" in seeing.diagnostic("policy: policy")[1]
    wait(lambda: np.abs(seeing.last.velocity).max() < 1e-4, what="a standing command")
    seeing.inject(camera="")
    drive(seeing)
    assert not any("FAULT" in state for state in seeing.states)  # a policy without sight is no danger by itself


def test_an_unknown_camera_fault_is_refused(seeing) -> None:
    assert "garbage" in seeing.set("sim_robot", inject__camera="upside down")[0]


def test_an_unknown_camera_fault_at_the_start_is_one_line(seeing, processes) -> None:
    refused = processes.start(
        "sim_robot_node",
        "world:=reach",
        "inject.camera:=upside",
        spec="seeing.yaml",
        key="refused",
        args=("-r", "__ns:=/alone"),
    )
    assert refused.wait(60.0) == 2
    assert "inject.camera is 'upside', expected one of '', 'silent', 'repeat', 'garbage'" in processes.log("refused")


def test_raw_and_compressed_pictures_show_the_same_world(seeing) -> None:
    shots: dict[str, list] = {"front": [], "wrist": []}
    weak = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    subs = [
        seeing.node.create_subscription(Image, "camera/front/image_raw", shots["front"].append, weak),
        seeing.node.create_subscription(
            CompressedImage, "camera/wrist/image_raw/compressed", shots["wrist"].append, weak
        ),
    ]
    try:
        wait(lambda: all(len(found) > 3 for found in shots.values()), limit=30.0, what="pictures of both cameras")
        front, wrist = raw_pixels(shots["front"][-1]), compressed_pixels(shots["wrist"][-1].data)
        assert front.shape == wrist.shape == (480, 640, 3)
        assert front.std() > 5.0
        assert wrist.std() > 5.0
        assert shots["front"][-1].header.frame_id == "front"
        from robot_rl.sim.plant import WorldPlant
        from robot_rl.sim.worlds.reach import Reach

        plant = WorldPlant(Reach(), [j["name"] for j in yaml.safe_load(SPEC.read_text())["joints"]])
        plant._data.qpos[:6] = [seeing.joints[name] for name in plant.names]
        photographer = plant.photographer(480, 640)
        truth = photographer.take(plant.scene(), ("wrist",))["wrist"]
        photographer.close()
        assert np.abs(truth.astype(float) - wrist).mean() < 20.0  # but for the drawn goal and the noise
        assert np.abs(truth.astype(float) - front).mean() > np.abs(truth.astype(float) - wrist).mean()
    finally:
        for sub in subs:
            seeing.node.destroy_subscription(sub)


SPEC: Path = ROOT / "launch" / "params" / "desk_arm.yaml"
