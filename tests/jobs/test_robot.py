"""A user's robot and a user's world from the command line: what is written, what is refused, what a run keeps."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from robot_rl import build, card, cli
from robot_rl.real.core.spec import RobotSpec, SpecError
from robot_rl.real.graph import GraphArgs, graph
from robot_rl.sim.tool import Tool
from robot_rl.verbs.robot_drive import BoundsOptions, bounds

ROOT = Path(__file__).resolve().parents[2]
TOLD = ["acceleration=6", "command_mode=forward_position", "controller_topic=arm/commands", "controller_timeout=0.2"]
TOLD += ["states=arm/joint_states", "estop=halt"]
SHORT = ["policy.hidden=[16,16]", "policy.batch_size=16", "learning_starts=20", "total_steps=60", "num_envs=2"]
SHORT += ["eval_every=0", "final_episodes=2", "video_episodes=0", "track.tensorboard=false"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(ROOT / "docs/howto/small_arm.urdf", tmp_path)
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


def test_card_with_open_keys_is_refused_where_something_would_be_sent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm", "acceleration=6") == 0
    assert "still ?" in capsys.readouterr().out
    with pytest.raises(SpecError, match=r"says \? at command_mode, .*estop\.action"):
        RobotSpec.load("my_arm.yaml")
    assert robot_rl("robot", "safety", "my_arm") == 2
    assert "says ? at command_mode" in capsys.readouterr().err
    with pytest.raises(SpecError, match="nothing is sent"):
        graph(GraphArgs(robot_spec="my_arm"))
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm") == 2
    assert "my_arm.yaml exists" in capsys.readouterr().err


def test_limits_that_a_file_only_has_because_it_must_are_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path("small_arm.urdf").read_text()
    Path("small_arm.urdf").write_text(text.replace('velocity="2.5" effort="40"', 'velocity="1000" effort="1000"', 1))
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm", *TOLD) == 0
    said = capsys.readouterr().out
    assert "up to 1000 rad/s, and more than 50 is no speed of a robot" in said
    found = card.read("my_arm")
    name = found.joints[0].name
    assert found.open_keys() == [f"joints.{name}.velocity", f"joints.{name}.effort"]
    assert robot_rl("robot", "new", "small_arm.urdf", "name=other", *TOLD, "velocity=2", "effort=30") == 0
    assert (card.read("other").joints[0].velocity, card.read("other").joints[0].effort) == (2.0, 30.0)


def test_numbers_that_the_supervisor_refuses_are_refused_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm", *TOLD) == 0
    text = Path("my_arm.yaml").read_text()
    Path("my_arm.yaml").write_text(text.replace("velocity: 2.5", "velocity: 143.0", 1))  # degrees
    assert robot_rl("robot", "safety", "my_arm") == 2
    assert "velocity is 143, more than 50: are these degrees" in capsys.readouterr().err
    with pytest.raises(SpecError, match="are these degrees"):
        graph(GraphArgs(robot_spec="my_arm"))


def test_supervisor_takes_limits_and_stop_from_the_card_and_the_rehearsal_its_world(folder: Path) -> None:
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm", *TOLD) == 0
    spec = RobotSpec.load("my_arm.yaml")
    assert spec.names == ("waist", "shoulder", "elbow", "wrist_pitch", "wrist_roll")
    assert spec.array("velocity").tolist() == [2.5, 2.5, 2.5, 3.0, 3.0]  # of the URDF
    assert spec.array("acceleration").tolist() == [6.0] * 5  # of the command line
    assert (spec.mode, spec.controller_topic, spec.controller_timeout) == ("position", "arm/commands", 0.2)
    assert spec.sensors["joints"].topic == "arm/joint_states"
    assert spec.workspace is not None
    assert spec.workspace.ee_site == "tool0"
    nodes = {node.name: node for node in graph(GraphArgs(robot_spec="my_arm", world="reach"))}
    assert nodes["safety_supervisor"].parameters["estop_action"] == "halt"
    assert nodes["safety_supervisor"].parameters["model"] == str(folder / "small_arm.urdf")
    world = json.loads(nodes["sim_robot"].parameters["world_options"])
    assert world["robot"]["name"] == "my_arm"


def test_run_keeps_the_card_and_is_evaluated_without_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("small_arm.urdf").read_text()
    Path("small_arm.urdf").write_text(
        text.replace('<limit lower="-2.9" upper="2.9" velocity="2.5"', '<limit lower="-2.9" upper="2.9"')
    )
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm") == 0
    assert robot_rl("train", "env=reach", "robot=my_arm", "env.world.action=joint", *SHORT) == 0
    assert "velocity of waist is ? in the card: simulation takes 1.5" in capsys.readouterr().out
    run = next(Path("runs/train").iterdir())
    kept = yaml.safe_load((run / "config.yaml").read_text())["env"]["world"]["robot"]
    assert kept["joints"][0]["name"] == "waist"
    assert len(kept["model"]["sha256"]) == 64
    io = json.loads(next(run.glob("checkpoints/step_*/io.json")).read_text())
    assert io["action_names"][0] == "waist_delta"
    Path("my_arm.yaml").unlink()
    assert robot_rl("eval", f"path={run}", "episodes=2", "video_episodes=0") == 0
    assert robot_rl("train", f"resume={run}", "robot=other") != 0  # what it was made for stays
    assert robot_rl("train", f"resume={run}", "total_steps=70") == 0
    Path("small_arm.urdf").write_text(text)
    capsys.readouterr()
    assert robot_rl("eval", f"path={run}", "episodes=2", "video_episodes=0") == 0
    assert "small_arm.urdf, has changed since" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "env=reach", "robot=nobody"], "there is no card 'nobody'"),
        (["check", "env=transfer", "robot=my_arm"], "transfer is made for one robot; env=reach takes any arm"),
        (["robot", "neww"], "did you mean new"),
        (["robot", "new", "name=x"], "say which model"),
        (["robot", "new", "nowhere.urdf", "name=x"], "there is no model"),
        (["robot", "new", "menagerie:franka_fr3", "name=x"], "mujoco-menagerie"),
        (["robot", "new", "small_arm.urdf", "name=x", "tol=a"], "did you mean tool"),
        (["robot", "new", "small_arm.urdf", "name=x", "tool=nose"], "no site or body 'nose'"),
        (["robot", "new", "small_arm.urdf", "name=x", "estop=wait"], "brake, zero or halt"),
    ],
)
def test_line_that_cannot_be_carried_out_is_one_sentence(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[-1] == "robot=my_arm":
        assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm") == 0
    assert robot_rl(*words) == 2
    assert said in capsys.readouterr().err
    assert not Path("x.yaml").exists()
    assert not Path("runs").exists()


def test_what_the_file_does_not_say_is_asked_at_a_terminal(folder: Path) -> None:
    command = [sys.executable, "-m", "robot_rl", "robot", "new", "small_arm.urdf", "name=my_arm", "states=js"]
    master, slave = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, close_fds=True)
    os.close(slave)
    said = ""
    answers = {
        "acceleration": "7.5",
        "controller:": "jtc",
        "its topic": "",
        "stops by itself": "0.5",
        "emergency": "zero",
    }
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        try:
            said += os.read(master, 4096).decode()
        except OSError:  # the other side has closed
            break
        for question in list(answers):
            if question in said and said.rstrip().endswith("[?]:"):
                os.write(master, f"{answers.pop(question)}\n".encode())
                said = ""
                break
    assert process.wait(20) == 0
    os.close(master)
    assert not answers
    made = card.read("my_arm")
    assert [joint.acceleration for joint in made.joints] == [7.5] * 5
    assert (made.command_mode, made.controller_timeout, made.estop.action) == ("jtc", 0.5, "zero")
    assert made.open_keys() == ["controller_topic"]  # nothing was answered


def test_page_of_a_card_holds_pictures_and_limits(folder: Path) -> None:
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm") == 0
    assert robot_rl("robot", "show", "my_arm") == 0
    page = Path("my_arm.html").read_text()
    assert "<td>wrist_pitch</td><td>-2</td>" in page
    assert page.count("data:image/png;base64,") == 2


def test_world_in_the_users_folder_trains_and_is_code_to_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = re.search(r"```python\n(.*?)```", (ROOT / "docs/add_a_world.md").read_text(), re.DOTALL)
    assert text is not None
    Path("line.py").write_text(text[1])
    assert robot_rl("train", "env=./line.py", "env.world.force=5", *SHORT) == 0
    run = next(Path("runs/train").iterdir())
    assert "_line_sac_" in run.name
    world = yaml.safe_load((run / "config.yaml").read_text())["env"]["world"]
    assert (world["name"], world["force"]) == (f"{folder / 'line.py'}:Line", 5)
    Path("two.py").write_text("class A: ...\nclass B: ...\n")
    Path("torn.py").write_text("class A:\n    x = (\n")
    Path("lost.py").write_text("import no_such_part\nclass Lost: ...\n")
    Path("half.py").write_text(text[1].replace("class Line", "class Half").replace("def success", "def succeeds"))
    for words, said in (
        (["env=./two.py"], "say which class of ./two.py is the world: env=./two.py:<class>; it has A, B"),
        (["env=./absent.py"], "there is no such file"),
        (["env=./torn.py"], "env=./torn.py: line 2 is no Python: "),
        (["env=./lost.py"], "lost.py imports 'no_such_part', which is not on the Python path"),
        (["env=./line.py", "env.world.forcee=1"], "did you mean force"),
        (["env=./two.py:A"], "A is no world: it has no name, control_hz, "),
        (["env=./half.py"], "Half is no world: it has no success; a world is a class as in docs/add_a_world.md"),
    ):
        assert robot_rl("check", *words) == 2
        assert said in capsys.readouterr().err


def test_bounds_of_a_card_are_those_of_its_own_tool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert robot_rl("robot", "new", "small_arm.urdf", "name=my_arm", *TOLD) == 0
    names = RobotSpec.load("my_arm.yaml").names
    driven = [np.full(len(names), 0.1), np.full(len(names), 0.4)]
    tools: dict[str, object] = {"real.ros.driven:positions": lambda robot, **options: iter(driven)}
    before = build.tool
    monkeypatch.setattr(build, "tool", lambda name: tools.get(name) or before(name))
    found = bounds("my_arm", BoundsOptions())
    places = np.array([Tool("small_arm.urdf", "tool0", names).position(joints) for joints in driven])
    box = {"lower": places.min(axis=0).round(4).tolist(), "upper": places.max(axis=0).round(4).tolist()}
    assert found["workspace"] == box
    go2 = card.read("go2").model_dump(mode="json", exclude_none=True)
    assert go2["tool"] == ""
    Path("legs.yaml").write_text(yaml.safe_dump(go2))
    tools["real.core.spec:RobotSpec"] = SimpleNamespace(load=lambda path: SimpleNamespace(name="legs", names=names))
    assert list(bounds("legs", BoundsOptions())) == ["joints"]
