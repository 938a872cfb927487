import copy

import numpy as np
import pytest
import yaml

from robot_rl.real.core.settings import SafetySettings, implausible
from robot_rl.real.core.spec import RobotSpec, SpecError

GOOD = """
name: arm
command_mode: forward_velocity
dead_time: 0.03
controller_timeout: 0.1
joints:
  - {name: a, lower: -1.0, upper: 1.0, velocity: 1, acceleration: 2.0, effort: 5.0, jerk: 20.0}
  - {name: b, continuous: true, velocity: 2.0, acceleration: 4.0, effort: 5.0}
sensors:
  joints: {topic: joint_states, type: sensor_msgs/JointState, timeout: 0.1}
cameras:
  front: {topic: camera/front/image_raw/compressed, type: sensor_msgs/CompressedImage, required: false}
workspace: {lower: [-1, -1, 0], upper: [1, 1, 1], ee_site: tool}
home: [0.0, 3.0]
observation: [state, image.front]
action: {mapping: delta, scale: [0.05]}
"""


def test_load_reads_every_key(tmp_path):
    path = tmp_path / "arm.yaml"
    path.write_text(GOOD)
    spec = RobotSpec.load(path)
    assert spec.names == ("a", "b")
    assert spec.mode == "velocity"
    assert spec.joints[0].velocity == 1.0
    lower, upper = spec.bounds()  # margin 0.02 on a, none on b
    assert (lower[0], upper[0]) == pytest.approx((-0.98, 0.98))
    assert np.isinf(upper[1])
    assert spec.cameras["front"].required is False
    assert spec.workspace is not None
    assert spec.workspace.ee_site == "tool"
    assert spec.observation == ("state", "image.front")
    assert np.isnan(spec.array("jerk")[1])


def test_margin_is_five_percent_of_a_small_range():
    raw = yaml.safe_load(GOOD)
    raw["joints"][0].update(lower=0.0, upper=0.04)
    del raw["home"]
    lower, upper = RobotSpec.from_dict(raw).bounds()
    assert (lower[0], upper[0]) == pytest.approx((0.002, 0.038))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["joints"][0].pop("acceleration"), r"joints\[0\].acceleration is missing"),
        (lambda r: r["joints"][0].update(acceleration=float("inf")), r"joints\[0\] \(a\).acceleration is inf"),
        (lambda r: r["joints"][1].update(velocity="1e3"), r"joints\[1\].velocity is '1e3', expected a number"),
        (lambda r: r["joints"][0].update(lower=2.0), r"joints\[0\] \(a\).lower is 2.0, expected below upper"),
        (lambda r: r["joints"][0].pop("upper"), r"joints\[0\] \(a\).upper is missing"),
        (lambda r: r["joints"][1].update(name="a"), "the name a occurs more than once"),
        (lambda r: r["joints"][0].update(speed=1.0), r"joints\[0\].speed is not a key.*valid keys: name"),
        (lambda r: r["joints"][0].update(continuous="yes"), r"joints\[0\].continuous is 'yes', expected true or"),
        (lambda r: r["joints"][0].update(stop_acceleration=1.0), "stop_acceleration is 1.0, expected >="),
        (lambda r: r.update(home=[0.99, 0.0]), "home of a is 0.99"),
        (lambda r: r.update(home=[0.0]), "home has 1 entries, expected 2"),
        (lambda r: r.update(command_mode="torque"), "command_mode is 'torque', expected one of forward_position"),
        (lambda r: r.update(joints=[]), "joints is empty"),
        (lambda r: r.update(joints="a"), "joints is 'a', expected a list"),
        (lambda r: r.pop("name"), "name is missing"),
        (lambda r: r["workspace"].update(lower=[1, 1, 1]), "workspace.lower"),
        (lambda r: r["sensors"]["joints"].update(timeout=0.0), "sensors.joints.timeout is 0.0"),
        (lambda r: r["sensors"]["joints"].update(clock="mine"), "sensors.joints.clock is 'mine'"),
        (
            lambda r: r["sensors"]["joints"].update(acceleration="free"),
            "joints.acceleration is 'free' of a sensor_msgs/J",
        ),
        (lambda r: r["action"].update(mapping="magic"), "action.mapping is 'magic'"),
        (lambda r: r["action"].update(scale=[1, 2, 3]), "action.scale has 3 entries"),
        (lambda r: r["action"].update(scale=[0.0]), r"action.scale\[0\] is 0.0, expected a finite number > 0"),
        (
            lambda r: r["joints"][1].update(limit_slack=float("nan")),
            "limit_slack is nan, expected a finite number >= 0",
        ),
        (lambda r: r.update(controller_timeout=-1.0), "controller_timeout is -1.0"),
    ],
)
def test_wrong_spec_names_the_key(change, message):
    raw = copy.deepcopy(yaml.safe_load(GOOD))
    change(raw)
    with pytest.raises(SpecError, match=message):
        RobotSpec.from_dict(raw)


def test_load_never_builds_objects_and_names_the_file(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("name: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(SpecError, match=r"evil.yaml is no YAML"):
        RobotSpec.load(path)
    path.write_text("- 1\n")
    with pytest.raises(SpecError, match="expected keys and values"):
        RobotSpec.load(path)


@pytest.mark.parametrize("change", [{"rate": 0.0}, {"estop_action": "run"}, {"lead_soft": 0.4}, {"state_timeout": -1}])
def test_wrong_setting_is_named(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        SafetySettings(**change)


def test_calibration_that_cannot_be_is_one_sentence(make_arm):
    camera = {"topic": "top/image", "type": "sensor_msgs/Image", "calibration": {"widths": 640}}
    with pytest.raises(SpecError, match=r"cameras.top.calibration: widths is no option of a calibration"):
        make_arm(cameras={"top": camera})


def test_relative_actions_need_a_scale(tmp_path):
    text = GOOD.replace("action: {mapping: delta, scale: [0.05]}", "action: {mapping: delta}")
    path = tmp_path / "arm.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"action.scale is missing.*1 rad per decision"):
        RobotSpec.load(path)


def test_a_key_that_stands_twice_is_refused_with_its_lines(tmp_path):
    joint = "{name: j0, lower: -2.0, lower: -3.0, upper: 2.0, velocity: 1.0, acceleration: 5.0, effort: 1.0}"
    (tmp_path / "arm.yaml").write_text(f"name: arm\njoints:\n  - {joint}\n")
    with pytest.raises(SpecError, match="lower stands in line 3 and again in line 3"):
        RobotSpec.load(tmp_path / "arm.yaml")


@pytest.mark.parametrize(("key", "value"), [("upper", 180.0), ("velocity", 115.0), ("acceleration", 5e4)])
def test_implausible_limits_are_asked_about_and_may_be_confirmed(make_arm, key, value):
    joint = {
        "name": "j0",
        "lower": -2.0,
        "upper": 2.0,
        "velocity": 1.0,
        "acceleration": 5.0,
        "effort": 10.0,
        key: value,
    }
    with pytest.raises(SpecError, match=rf"j0.*{key} is {value:g}.*are these degrees.*confirmed: \[j0.{key}\]"):
        RobotSpec.from_dict({"name": "arm", "joints": [joint]})
    made = RobotSpec.from_dict({"name": "arm", "joints": [joint], "confirmed": [f"j0.{key}"]})
    assert getattr(made.joints[0], key) == value


def test_settings_beyond_what_is_plausible_are_asked_about():
    assert implausible({"state_timeout": 0.4, "lead_fault": 0.3}, ()) == ""
    assert "state_timeout is 10, more than 1" in implausible({"state_timeout": 10.0}, ("lead_fault",))
    assert implausible({"state_timeout": 10.0}, ("state_timeout",)) == ""
