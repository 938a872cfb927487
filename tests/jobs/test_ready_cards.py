"""Cards that come with the package: each is read, steps, is drawn and is asked for its model in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from robot_rl import card
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import GraphArgs, GraphError, find_file, graph
from robot_rl.sim.card_scene import at_home
from robot_rl.sim.port import WorldPort
from robot_rl.sim.robot_model import mujoco
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types.card import OPEN
from robot_rl.types.card_model import MODELS

ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
HERE = ("fr3", "xarm7", "so101", "go2", "g1", "diff_drive")
TOLD = ("acceleration=400", "controller_topic=", "controller_timeout=0.1", "states=joint_states", "imu=imu")
TOLD += ("stop=damp", "estop=brake")
needs_models = pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")


def needs_model(name: str) -> card.Card:
    """A ready card whose model is found, or a skip."""
    found = card.read(name)
    if not Path(found.model.path).is_file():
        pytest.skip(f"the model of {name} is not here: {found.model.source}")
    return found


@pytest.mark.parametrize("name", card.ready())
def test_a_ready_card_fits_its_model_and_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS, str(ROBOTS))
    found = needs_model(name)
    assert found.name == name
    model, data = at_home(found)
    before = data.qpos.copy()
    if model.nu and name != "diff_drive":
        for i in range(model.nu):  # servos hold what is theirs
            data.ctrl[i] = data.qpos[model.jnt_qposadr[int(model.actuator_trnid[i, 0])]]
    for _ in range(100):
        mujoco.mj_step(model, data)
    assert abs(data.qpos - before).max() < 0.35  # soft legs sag


@needs_models
@pytest.mark.parametrize("name", HERE)
def test_a_ready_card_is_drawn(name: str, robot_rl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS, str(ROBOTS))
    done = robot_rl("robot", "show", name)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name}.html").read_text().count("data:image/png") == 2


def test_what_is_unknown_is_marked_and_what_is_known_makes_a_robot() -> None:
    whole = {name for name in card.ready() if not card.read(name).open_keys()}
    assert whole == {"fr3", "ur5e", "so101", "diff_drive"}
    assert set(card.read("go2").open_keys()) >= {"joints.FL_hip_joint.acceleration", "controller_topic", "legs.stop"}
    for name in whole:
        assert RobotSpec.load(find_file(name)).names


@needs_models
def test_a_ready_card_on_the_users_own_file_is_filled_in_on_the_line(robot_rl: Any, tmp_path: Path) -> None:
    words = ("robot", "new", "go2", f"model={ROBOTS}/go2/go2.urdf", "name=dog", *TOLD)
    done = robot_rl(*words)
    assert done.returncode == 0, done.stderr
    table = yaml.safe_load((tmp_path / "dog.yaml").read_text())
    assert table["model"]["path"] == str((ROBOTS / "go2/go2.urdf").resolve())
    assert table["legs"]["stop"] == "damp"
    assert (table["sensors"]["imu"]["topic"], table["sensors"]["command"]["topic"]) == ("imu", "cmd_vel")
    assert OPEN not in (tmp_path / "dog.yaml").read_text().split("\n", 1)[1]
    spec = RobotSpec.load(tmp_path / "dog.yaml")
    assert (spec.mode, spec.array("kp")[0], spec.home[0]) == ("pd", 40.0, 0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fr3", "name=x"), "does not come with this package: franka_description"),
        (("fr3", "name=x", "model=nothing.urdf"), "there is no such file"),
        (("fr4", "name=x"), "xarm7; did you mean fr3?"),
        (("a.urdf", "name=x", "model=b.urdf"), "and a.urdf is none"),
        (("fr3", "name=x", "tool=hand"), "has its tool and base"),
    ],
)
def test_wrong_requests_are_answered_in_one_paragraph(words: tuple[str, ...], said: str, robot_rl: Any) -> None:
    done = robot_rl("robot", "new", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "\n" not in done.stderr.strip()


def test_a_model_that_is_absent_is_asked_for_before_anything_starts(
    robot_rl_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MODELS, raising=False)
    done = robot_rl_in(tmp_path, "train", "env=reach", "robot=fr3")
    assert done.returncode == 2
    assert "robot-rl robot new fr3 name=my_fr3 model=" in done.stderr
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphError, match="does not come with this package"):
        graph(GraphArgs(robot_spec="fr3", world="reach"))
    assert {node.name for node in graph(GraphArgs(robot_spec="diff_drive"))} == {"sim_robot", "safety_supervisor"}


@needs_models
def test_fingers_that_a_world_does_not_move_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS, str(ROBOTS))
    found = needs_model("so101")
    names = RobotSpec.load(find_file("so101")).names
    port = WorldPort(Reach(robot=found), names)
    start = np.array([*found.home, 0.9])  # the gripper is no joint of reach
    port.reset(start, np.zeros(6), {"goal": np.array([0.3, 0.0, 0.2])})
    port.observe(start, np.zeros(6), {"goal": np.array([0.3, 0.0, 0.2])})
    command = port.act(np.ones((1, len(port.io.action_names)), np.float32))
    assert command[-1] == pytest.approx(0.9)
    assert np.abs(command[:-1] - start[:-1]).max() > 0.01
