"""robot-rl robot calibrate: from a folder of pictures onto the card, and from there to whoever drives the robot."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl import build, card, cli
from robot_rl.policies.encoders.selftrained import SelfTrained, SelfTrainedOptions
from robot_rl.real.core.spec import RobotSpec, SpecError
from robot_rl.sim.robot_task import world_task
from robot_rl.sim.tool import Tool
from robot_rl.types.card import CalibrationCard
from tests.real.calibration_scene import ARM, JOINTS, Scene, scene

TOLD = ["tool=tip", "acceleration=6", "velocity=2", "command_mode=forward_position", "controller_topic=arm/commands"]
TOLD += ["controller_timeout=0.2", "states=joint_states", "estop=halt"]


def robot_rl(*words: str) -> int:
    """Exit status of a line."""
    sys.argv = ["robot-rl", "robot", *words]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def hand() -> Scene:
    return scene("board", "tool", 100, views=10)


@pytest.fixture
def folder(hand: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert robot_rl("new", str(ARM), "name=desk", *TOLD) == 0
    with Path("desk.yaml").open("a") as file:
        file.write("# a note of somebody\n")
    return hand.write(tmp_path / "seen")


def test_camera_is_put_onto_the_card_and_reaches_the_bridge(
    folder: Path, hand: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate = ["calibrate", "desk", "camera=hand", "pictures=seen", "mount=tool"]
    assert robot_rl(*calibrate) == 0
    said = capsys.readouterr().out
    assert "10 of 10 pictures" in said
    assert "residual 0.0" in said
    assert "topic of hand is ?" in said
    with pytest.raises(SpecError, match=r"says \? at cameras\.hand\.topic"):
        RobotSpec.load("desk.yaml")
    assert robot_rl(*calibrate, "topic=hand/compressed") == 0
    text = Path("desk.yaml").read_text()
    assert "# a note of somebody" in text
    assert text.count("cameras:") == 1
    found = card.read("desk").cameras["hand"].calibration
    assert found is not None
    millimetres, degrees = hand.errors(found.position, found.rotation)
    assert millimetres < 2.0
    assert degrees < 0.3
    spec = RobotSpec.load("desk.yaml").cameras["hand"]
    assert spec.calibration == found
    assert (spec.topic, spec.type) == ("hand/compressed", "sensor_msgs/CompressedImage")


def test_a_card_that_comes_with_the_package_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = tmp_path / "ready/so101.yaml"
    ready.parent.mkdir()
    ready.write_bytes((card.READY / "so101.yaml").read_bytes())
    before = ready.read_text()
    monkeypatch.setattr(card, "READY", ready.parent)
    monkeypatch.chdir(tmp_path)
    assert robot_rl("calibrate", "so101", "camera=front", "pictures=seen", "record=2", "topic=front/image") == 2
    assert "yours is robot-rl robot new so101 name=my_arm model=<file>" in capsys.readouterr().err
    assert ready.read_text() == before


def test_cameras_of_a_card_are_replaced_where_they_stand_and_the_rest_stays(folder: Path) -> None:
    assert robot_rl("calibrate", "desk", "camera=hand", "pictures=seen", "mount=tool", "topic=a") == 0
    camera = card.read("desk").cameras["hand"]
    block = ["cameras:", "  hand:", "    topic: a", "    type: sensor_msgs/Image", "margin: 0.02  # mine"]
    lines = [
        line
        for line in Path("desk.yaml").read_text().splitlines()
        if not line.startswith(("margin", "cameras", "  hand"))
    ]
    Path("desk.yaml").write_text("\n".join([*lines, *block, "confirmed: []"]) + "\n")
    card.put_camera(Path("desk.yaml"), "front", camera)
    text = Path("desk.yaml").read_text()
    assert "margin: 0.02  # mine\nconfirmed: []" in text
    found = card.read("desk").cameras
    assert found["hand"].calibration is None
    assert found["front"] == camera


def test_encoder_of_pictures_takes_the_interface_of_a_robot_whose_card_has_its_cameras() -> None:
    port = world_task(build.make_world, "reach", proprio="own")(JOINTS)
    assert port.external == ()  # nobody has to tell a goal
    assert not any("goal" in name for name in port.io.obs_names)
    rest, still = np.full(6, 0.1), np.zeros(6)
    port.reset(rest, still, {})
    seen = port.observe(rest, still, {})
    assert seen["tool"][0, :3] == pytest.approx(Tool(str(ARM), "tip", JOINTS).position(rest), abs=1e-5)
    keys = ("image.front", "image.side")
    side = CalibrationCard(
        height=480, width=640, focal=(600.0, 600.0), centre=(320.0, 240.0), mount="world", position=(0.4, -1.0, 0.2),
        rotation=(1, 0, 0, 0, 0, 1, 0, -1, 0), residual=0.2, views=20,
    )  # fmt: skip
    obs = {**port.io.obs, **dict.fromkeys(keys, ((64, 64, 3), "uint8"))}
    io = replace(port.io, obs=obs)
    with pytest.raises(ValueError, match=r"robot-rl robot calibrate"):
        SelfTrained(SelfTrainedOptions(), io)
    encoder = SelfTrained(SelfTrainedOptions(), replace(io, calibration={key: side.of_size(64, 64) for key in keys}))
    places, sure = encoder.see({key: np.zeros((1, 64, 64, 3), np.uint8) for key in keys}, torch.zeros(1, 4))
    assert places.shape == (1, 1, 3)
    assert sure.isfinite().all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["desk"], "say which card, which camera"),
        (["desk", "camera=hand", "pictures=seen", "mount=tool", "by=motion"], "use by=board mount=tool"),
        (["desk", "camera=hand", "pictures=nowhere"], "there is no nowhere/poses.csv"),
        (["desk", "camera=hand", "pictures=seen", "mount=tool", "square=0.05"], "differ by"),
        (["desk", "camera=hand", "pictures=seen", "columnz=3"], "did you mean columns"),
        (["desk", "camera=hand", "pictures=seen", "marker=[0,0,a]", "by=motion"], "expected [x,y,z] in metres"),
        (["desk", "camera=hand", "pictures=seen", "marker=[0,0", "by=motion"], "'[0,0' is no list of numbers"),
        (["board=board.jpg"], ".pdf or .png"),
    ],
)
def test_line_that_cannot_be_carried_out_is_one_sentence_and_the_card_stays(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("desk.yaml").read_text()
    assert robot_rl("calibrate", *words) == 2
    assert said in capsys.readouterr().err
    assert Path("desk.yaml").read_text() == before


def test_help_lists_the_options_of_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert robot_rl("calibrate", "--help") == 0
    said = capsys.readouterr().out
    assert "square=0.035" in said
    assert "record=0" in said
    assert robot_rl("--help") == 0
    assert "robot new|show" in capsys.readouterr().out
