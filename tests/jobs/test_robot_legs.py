"""A robot on legs and the policy of others that moves it, from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from robot_rl import build, cli
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import GraphArgs, GraphError, graph

LEG = """
<body name="{side}_thigh" pos="0 {y} -0.1"><joint name="{side}_hip" axis="0 1 0" range="-1 1"/>
 <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03"/>
 <body name="{side}_shin" pos="0 0 -0.3"><joint name="{side}_knee" axis="0 1 0" range="-0.1 2"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03"/></body></body>
"""
MODEL = """
<mujoco><compiler angle="radian" autolimits="true"/><worldbody><body name="trunk" pos="0 0 1">
<freejoint name="root"/><geom type="box" size="0.1 0.2 0.1"/>{legs}</body></worldbody></mujoco>
"""
TOLD = ["velocity=10", "acceleration=100", "effort=40", "controller_topic=", "controller_timeout=0.1"]
TOLD += ["states=joint_states", "imu=imu", "stop=damp", "estop=brake"]
POLICY = {
    "simulation_dt": 0.002, "control_decimation": 10, "kps": [50] * 4, "kds": [2] * 4,
    "default_angles": [-0.2, 0.4, -0.2, 0.4],
    "ang_vel_scale": 0.25, "dof_pos_scale": 1.0, "dof_vel_scale": 0.05, "action_scale": 0.25,
    "cmd_scale": [2.0, 2.0, 0.25], "num_actions": 4, "num_obs": 23,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    legs = LEG.format(side="l", y=0.1) + LEG.format(side="r", y=-0.1)
    (tmp_path / "biped.xml").write_text(MODEL.format(legs=legs))
    (tmp_path / "walk").mkdir()
    (tmp_path / "walk/policy.yaml").write_text(yaml.safe_dump(POLICY))
    (tmp_path / "walk/policy.pt").write_bytes(b"no program at all")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def robot_rl(*words: str) -> int:
    """Exit status of a line."""
    sys.argv = ["robot-rl", *words]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_card_takes_gains_and_pose_from_the_policy_and_the_graph_takes_the_card(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert robot_rl("robot", "new", "biped.xml", "name=biped", *TOLD) == 0
    said = capsys.readouterr().out
    assert "kp and kd of the joints are by a rule, for simulation" in said
    assert "legs.gains" in said.partition("still ?")[2]
    assert robot_rl("robot", "new", "biped.xml", "name=legs", "policy=walk/policy.yaml", *TOLD) == 0
    assert "still ?" not in capsys.readouterr().out
    spec = RobotSpec.load("legs.yaml")
    assert (spec.mode, spec.home, spec.imu, spec.velocity_command) == ("pd", (-0.2, 0.4, -0.2, 0.4), "imu", "command")
    assert spec.array("kp").tolist() == [50.0] * 4
    assert spec.legs is not None
    assert (spec.legs.stop, spec.sensors["command"].required) == ("damp", False)
    robot = {node.name: node for node in graph(GraphArgs(robot_spec="legs.yaml"))}["sim_robot"]
    assert robot.parameters["base"] == "trunk"
    assert robot.parameters["model"] == str(folder / "biped.xml")
    with pytest.raises(GraphError, match="legs walks: leave it out"):
        graph(GraphArgs(robot_spec="legs.yaml", teleop="joy"))


def test_policy_of_others_needs_its_card_and_trust_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert robot_rl("robot", "new", "biped.xml", "name=legs", "policy=walk/policy.yaml", *TOLD) == 0
    with pytest.raises(GraphError, match=r"card io\.yaml"):
        graph(GraphArgs(robot_spec="legs.yaml", policy_path="walk"))
    assert robot_rl("robot", "policy", "walk/policy.yaml", "robot=legs") == 0
    assert "trust=true" in capsys.readouterr().out
    for path in ("walk", "walk/policy.pt"):
        with pytest.raises(GraphError, match="a program that runs with your rights"):
            graph(GraphArgs(robot_spec="legs.yaml", policy_path=path))
        node = {node.name: node for node in graph(GraphArgs("legs.yaml", policy_path=path, trust=True))}["policy"]
        assert node.parameters["policy_path"] == str(folder / path)
    assert robot_rl("deploy", "robot_spec=legs", "policy_path=walk") == 2
    assert "add trust=true" in capsys.readouterr().err


def test_wrong_requests_are_answered_in_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (("new", "biped.xml", "name=x", "stop=hold"), "stop"),
        (("policy", "robot=legs"), "say which description"),
        (("policy", "walk/policy.yaml"), "robot"),
        (("policy", "walk/policy.yaml", "robot=legs"), "there is no card 'legs'"),
        (("new", "biped.xml", "name=y", "policy=biped.xml"), "layout"),
        (("show2",), "there is no 'show2'"),
    ):
        assert robot_rl("robot", *words) == 2, words
        assert said in capsys.readouterr().err, words
    assert not list(folder.glob("*.yaml"))


@pytest.mark.parametrize(
    ("card", "state", "status"),
    [("go2", "STOPPING", 2), ("go2", "ACTIVE", 0), ("diff_drive", "STOPPING", 0), ("diff_drive", "FAULT", 2)],
)
def test_steer_says_that_the_robot_was_stopped_on_its_way(
    card: str,
    state: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    robot = SimpleNamespace(name=card, velocity_command="command" if card == "go2" else "")
    found = SimpleNamespace(state=state, moved=0.15, velocity=(0.03, 0.0, 0.01))
    tools = {
        "real.graph:find_file": lambda name: __file__,
        "real.core.spec:RobotSpec": SimpleNamespace(load=lambda path: robot),
    }
    tools["real.ros.steer:steer"] = lambda *words, **options: found
    monkeypatch.setattr(build, "tool", tools.__getitem__)
    assert robot_rl("robot", "steer", card, "x=0.3") == status
    done = capsys.readouterr()
    assert "moved       0.15 m in 5 s" in done.out
    assert ("was stopped on its way" in done.err) == (status == 2)


def test_topic_of_the_velocity_is_written_onto_a_card_that_comes_with_the_package_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robot_rl.card.need_model", lambda found: found)  # nobody looks at the model here
    tools = {
        "sim.robot_model:digest": str,
        "real.core.spec:PLAUSIBLE": {"velocity": 60.0},
        "sim.card_scene:fit": lambda found: [],
    }
    monkeypatch.setattr(build, "tool", tools.__getitem__)
    assert robot_rl("robot", "new", "go2", "name=mine", "command=joy_vel", "imu=trunk_imu") == 0
    sensors = yaml.safe_load((folder / "mine.yaml").read_text())["sensors"]
    assert (sensors["command"]["topic"], sensors["imu"]["topic"]) == ("joy_vel", "trunk_imu")


def test_what_only_legs_have_is_refused_of_an_arm(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arm = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
    assert robot_rl("robot", "new", str(arm), "name=arm", "stop=damp") == 2
    assert "stop= is for robots on legs" in capsys.readouterr().err
    assert not (folder / "arm.yaml").exists()
