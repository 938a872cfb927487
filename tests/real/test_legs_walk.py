"""The G1 and the policy that came with it, in one process: what it sees, how it walks, how it goes down."""
# pyright: reportArgumentType=false

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from robot_rl import policy_card
from robot_rl.legs import Body, gravity, observe, target_of
from robot_rl.real.core.spec import RobotSpec, of_card
from robot_rl.real.legged_port import COMMAND, IMU, LeggedPort
from robot_rl.types.policy_card import PolicyCard, Term
from robot_rl.verbs.robot_policy import load_robot_policy, load_walker
from robot_rl.words import Refused
from tests.real.legs_world import G1, LegsWorld, g1_card, needs_g1

ALL = ("angular_velocity", "gravity", "velocity_command", "joint_positions", "joint_velocities", "last_action")


def small(**changes) -> PolicyCard:
    scales = (0.25, 1.0, (2.0, 2.0, 0.25), 1.0, 0.05, 1.0)
    terms = [Term(term=name, scale=scale) for name, scale in zip(ALL, scales)]
    values = {
        "format": "torchscript", "sha256": "", "control_hz": 50.0, "joints": ("b", "a"), "default": (0.5, -0.5),
        "kp": (1.0, 1.0), "kd": (1.0, 1.0), "action_scale": 0.25,
        "observation": (*terms, Term(term="gait_phase", period=0.8)),
    }  # fmt: skip
    return PolicyCard(**{**values, **changes})


def test_gravity_of_upright_pitched_and_rolled_trunks_by_hand() -> None:
    half = math.sqrt(0.5)
    assert gravity(np.array([0, 0, 0, 1.0])).tolist() == [0, 0, -1]
    assert gravity(np.array([0, half, 0, half])) == pytest.approx([1, 0, 0])  # nose down by 90 degrees
    assert gravity(np.array([half, 0, 0, half])) == pytest.approx([0, -1, 0])  # left side up: right side is down
    assert gravity(np.array([0, 0, half, half])) == pytest.approx([0, 0, -1])  # turning changes nothing
    assert gravity(np.array([0, 2 * half, 0, 2 * half])) == pytest.approx([1, 0, 0])  # whatever its length
    for wrong in (np.zeros(4), np.full(4, np.nan)):
        with pytest.raises(ValueError, match="no quaternion"):
            gravity(wrong)


def test_observation_terms_by_hand() -> None:
    body = Body(
        orientation=np.array([0, 0, 0, 1.0]),
        angular_velocity=np.array([1.0, 2.0, 4.0]),
        command=np.array([0.5, -3.0, 1.0]),
        position=np.array([0.7, -0.2]),
        velocity=np.array([10.0, -20.0]),
        last_action=np.array([1.5, -2.5]),
        time=0.2 + 8.0,  # a quarter of the gait, ten gaits later
    )
    seen = observe(small(largest_command=(0.8, 0.5, 1.57)), body)
    assert seen.dtype == np.float32
    assert seen == pytest.approx(
        [0.25, 0.5, 1.0, 0, 0, -1, 1.0, -1.0, 0.25, 0.2, 0.3, 0.5, -1.0, 1.5, -2.5, 1.0, 0.0], abs=1e-6
    )
    assert target_of(small(), np.array([1.0, -400.0])).tolist() == [0.75, -25.5]  # clipped at 100


def test_port_sorts_joints_and_remembers_the_action_unclipped() -> None:
    port = LeggedPort(small(), ("a", "b"))
    task = {IMU: np.array([0, 0, 0, 1.0, *np.zeros(6)]), COMMAND: np.zeros(3)}
    position = np.array([-0.4, 0.6])  # a, b
    first = port.observe(position, np.zeros(2), task)["state"][0]
    assert first[9:11] == pytest.approx([0.1, 0.1])
    assert first[-2:] == pytest.approx([math.sin(2 * math.pi * 0.02 / 0.8), math.cos(2 * math.pi * 0.02 / 0.8)])
    target = port.act(np.array([[0.02, -0.04]]))  # of 100: 2 and -4, for b and a
    assert target == pytest.approx([-1.5, 1.0])
    assert port.observe(position, np.zeros(2), task)["state"][0][13:15] == pytest.approx([2.0, -4.0])
    port.reset(position, np.zeros(2), task)
    assert (port.observe(position, np.zeros(2), task)["state"][0] == first).all()
    with pytest.raises(ValueError, match="differ in c"):
        LeggedPort(small(), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"default": (0.0,)}, "default has 1 entries, expected 2"),
        ({"action_scale": (1.0, 1.0, 1.0)}, "action_scale has 3"),
        ({"joints": ("a", "a")}, "more than once"),
        ({"observation": (Term(term="gravity", scale=(1.0, 1.0)),)}, "scale of gravity has 2"),
        ({"observation": ({"term": "gait_phase"},)}, "gait_phase needs a period"),
        ({"observation": ({"term": "height_scan"},)}, "observation"),
    ],
)
def test_policy_card_that_cannot_be_is_refused(changes, words) -> None:
    with pytest.raises(ValueError, match=words):
        small(**changes)


def description(tmp_path, **changes):
    table = {
        "policy_path": "", "xml_path": "", "simulation_duration": 60.0, "simulation_dt": 0.002,
        "control_decimation": 10,
        "kps": [1, 1], "kds": [1, 1], "default_angles": [0.5, -0.5], "ang_vel_scale": 0.25, "dof_pos_scale": 1.0,
        "dof_vel_scale": 0.05, "action_scale": 0.25, "cmd_scale": [2.0, 2.0, 0.25], "num_actions": 2, "num_obs": 17,
        "cmd_init": [0.5, 0, 0],
    }  # fmt: skip
    table = {key: value for key, value in {**table, **changes}.items() if value is not None}
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(table))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kps": None, "num_obs": None}, "lacks kps, num_obs.*unitree_rl_gym"),
        ({"dof_acc_scale": 1.0}, "dof_acc_scale means nothing"),
        ({"num_obs": 48}, "num_obs is 48, expected 17"),
        ({"kds": [1]}, "kds is .1., expected 2"),
    ],
)
def test_description_of_another_layout_is_refused_with_its_keys(tmp_path, changes, words) -> None:
    with pytest.raises(Refused, match=words):
        policy_card.read_description(description(tmp_path, **changes))
    made = policy_card.of_description(policy_card.read_description(description(tmp_path)), ("b", "a"), "", "")
    assert made == small()


@needs_g1
def test_first_observation_equals_one_made_from_the_description_alone(tmp_path) -> None:
    world = LegsWorld(tmp_path, g1_card())
    table = yaml.safe_load((G1 / "policy.yaml").read_text())
    trunk, q, qd = world.plant.trunk, world.plant.position + 0.01, world.plant.velocity + 0.5
    turn = np.array([0.05, -0.1, 0.3, 0.9])
    turn /= np.linalg.norm(turn)
    rate, wanted = np.array([0.1, -0.2, 0.3]), np.array([0.5, 0.1, -0.2])
    x, y, z, w = turn
    matrix = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    expected = [
        *(rate * table["ang_vel_scale"]),
        *(matrix.T @ [0.0, 0.0, -1.0]),
        *(wanted * table["cmd_scale"]),
        *((q - np.array(table["default_angles"])) * table["dof_pos_scale"]),
        *(qd * table["dof_vel_scale"]),
        *np.zeros(table["num_actions"]),
        math.sin(2 * math.pi * 0.02 / 0.8),
        math.cos(2 * math.pi * 0.02 / 0.8),
    ]
    port = world.runner.port
    port.reset(q, qd, {})
    seen = port.observe(q, qd, {IMU: np.concatenate([turn, rate, trunk.acceleration]), COMMAND: wanted})["state"]
    assert seen.shape == (1, table["num_obs"])
    assert seen[0] == pytest.approx(expected, abs=1e-6)
    module = torch.jit.load(str(G1 / "policy.pt"))
    raw = module(torch.tensor([expected], dtype=torch.float32)).detach().numpy()[0]
    world.runner.policy.reset()
    target = port.act(world.runner.policy.act({"state": seen}).value)
    assert target == pytest.approx(np.array(table["default_angles"]) + table["action_scale"] * raw, abs=1e-5)


@needs_g1
def test_g1_walks_and_answers_its_velocity_command_within_its_torques(tmp_path) -> None:
    world = LegsWorld(tmp_path, g1_card()).walk()
    start = world.plant.trunk
    world.command = np.array([0.5, 0.0, 0.0])
    world.run(2.0)
    before = world.plant.trunk.position
    world.run(6.0)
    way = world.plant.trunk.position - before
    assert way[0] == pytest.approx(3.0, rel=0.15)  # 0.5 m/s for 6 s
    assert abs(way[1]) < 0.5
    assert world.plant.trunk.position[2] > 0.7 * start.position[2]
    world.command = np.array([0.3, 0.0, 0.5])
    world.run(2.0)
    turns = []
    for _ in range(400):
        world.tick()
        turns.append(world.plant.trunk.angular_velocity[2])
    assert np.mean(turns) == pytest.approx(0.5, rel=0.3)
    assert world.state == "ACTIVE"
    effort = world.spec.array("effort")
    assert (np.abs(world.torque) <= effort * (1 + 1e-9)).all()
    assert world.pipeline.clip_ratio < 0.02  # the lead is no reason to clip


@needs_g1
@pytest.mark.parametrize("cause", ["estop", "silence", "imu"])
def test_g1_goes_down_damped_within_its_torques(tmp_path, cause: str) -> None:
    world = LegsWorld(tmp_path, g1_card()).walk()
    world.command = np.array([0.5, 0.0, 0.0])
    world.run(2.0)
    ends = len(world.torque)
    if cause == "estop":
        world.pipeline.estop_once("service")
    elif cause == "silence":
        world.silent = True
    else:
        world.upright = False
    world.run(3.0)
    fault = {"estop": "estop_service", "silence": "cmd_timeout", "imu": "fallen"}[cause]
    assert world.pipeline.safety.faults[0] == fault
    assert not world.sent[-1].gains[0].any()
    assert world.sent[-1].gains[1].tolist() == world.spec.array("kd").tolist()
    assert (np.abs(world.torque[ends:]) <= world.spec.array("effort")).all()
    assert world.plant.trunk.position[2] < 0.5  # it lies or kneels
    assert np.abs(world.plant.velocity).max() < 0.5


@needs_g1
@pytest.mark.slow
def test_twenty_falls_of_a_damped_g1_end_at_rest_and_no_joint_is_driven(tmp_path, record_property) -> None:
    seconds, moving = [], 0
    for fall in range(20):
        (tmp_path / str(fall)).mkdir()
        world = LegsWorld(tmp_path / str(fall), g1_card()).walk()
        world.command = np.array([0.5, 0.0, 0.1 * (fall % 5 - 2)])
        world.run(3.0 + 0.07 * fall)
        plant = world.plant
        plant.hold()
        while plant.trunk.position[2] > 0.4:
            plant.step(0.01)
        speeds, work = [], np.zeros(12)
        while len(speeds) < 100 or max(speeds[-100:]) > 0.5:
            plant.step(0.01)
            work += plant.effort * plant.velocity * 0.01
            speeds.append(float(np.abs(plant.velocity).max()))
            assert len(speeds) < 1200
        assert (work < 0.0).all()
        seconds.append(0.01 * len(speeds))
        moving += max(speeds[250:300], default=0.0) > 0.5
    record_property("seconds_until_a_calm_one_has_passed", sorted(round(item, 2) for item in seconds))
    record_property("still_moving_after_three_seconds", moving)


@needs_g1
@pytest.mark.slow
@pytest.mark.parametrize(("model", "rate"), [("g1_12dof.xml", 50.0), ("g1_12dof.urdf", 100.0)])
def test_g1_walks_twenty_metres(tmp_path, model: str, rate: float) -> None:
    world = LegsWorld(tmp_path, g1_card(model), rate=rate, late=1).walk()
    world.command = np.array([0.8, 0.0, 0.0])
    world.run(30.0)
    assert world.state == "ACTIVE"
    assert world.plant.trunk.position[0] > 20.0


@needs_g1
def test_torchscript_is_run_only_where_it_is_trusted_and_unchanged(tmp_path) -> None:
    shutil.copy(G1 / "policy.pt", tmp_path)
    card = policy_card.write(G1 / "policy.yaml", tmp_path / "policy.pt", g1_card())
    with pytest.raises(Refused, match="trust=true"):
        load_robot_policy(str(tmp_path), device="cpu", threads=1, trust=False)
    loaded = load_robot_policy(str(tmp_path / "policy.pt"), device="cpu", threads=1, trust=True)
    assert loaded.io.control_hz == 50.0
    with (tmp_path / "policy.pt").open("ab") as file:
        file.write(b"more")
    with pytest.raises(Refused, match="another SHA-256"):
        load_robot_policy(str(tmp_path), device="cpu", threads=1, trust=True)
    with pytest.raises(Refused, match="exists"):
        policy_card.write(G1 / "policy.yaml", tmp_path / "policy.pt", g1_card())
    card.write_text(card.read_text().replace("action_clip", "action_clop"))
    with pytest.raises(Refused, match="action_clop"):
        load_robot_policy(str(tmp_path), device="cpu", threads=1, trust=True)


@needs_g1
def test_policy_is_refused_on_a_robot_with_other_gains_or_another_mode(tmp_path) -> None:
    card = g1_card()
    read = policy_card.of_description(
        policy_card.read_description(G1 / "policy.yaml"), tuple(j.name for j in card.joints), "", ""
    )
    spec = RobotSpec.from_dict(of_card(card)[0])
    port = LeggedPort(read, spec.names)
    port.check(spec)
    table = of_card(card)[0]
    table["joints"][3]["kp"] = 80.0
    with pytest.raises(ValueError, match=r"kp of left_knee_joint is 80.*trained with 150"):
        port.check(RobotSpec.from_dict(table))
    table = {**of_card(card)[0], "command_mode": "joint_command"}
    with pytest.raises(ValueError, match="expected pd"):
        port.check(RobotSpec.from_dict(table))


def test_a_graph_with_a_card_walks_without_trust_and_by_hand(tmp_path: Path) -> None:
    """The graph answers 2 and -4, of at most 8: targets are 0.5 + 0.25 * 2 and -0.5 - 0.25 * 4."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    arrays = {"gain": np.zeros((17, 2), np.float32), "push": np.array([[2.0, -4.0]], np.float32)}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "gain"], ["none"]), helper.make_node("Add", ["none", "push"], ["actions"])],
        "stands",
        [helper.make_tensor_value_info("obs", kind, [1, 17])],
        [helper.make_tensor_value_info("actions", kind, [1, 2])],
        [onnx.numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "walk.onnx").write_bytes(model.SerializeToString())
    digest = hashlib.sha256((tmp_path / "walk.onnx").read_bytes()).hexdigest()
    made = small(format="onnx", weights="walk.onnx", sha256=digest, action_clip=8.0)
    (tmp_path / "io.yaml").write_text(json.dumps(made.model_dump(mode="json", exclude_none=True)))
    loaded = load_walker(tmp_path, device="cpu", threads=1)
    assert loaded is not None
    assert loaded.make_port is not None
    port = loaded.make_port(("a", "b"))
    upright = {"imu": np.array([0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0]), "velocity_command": np.zeros(3)}
    port.reset(np.zeros(2), np.zeros(2), upright)
    action = loaded.policy.act(port.observe(np.zeros(2), np.zeros(2), upright)).value
    assert port.act(np.asarray(action)) == pytest.approx(np.array([-1.5, 1.0]))
    (tmp_path / "walk.onnx").write_bytes(b"another")
    with pytest.raises(Refused, match="is not the file that"):
        load_walker(tmp_path, device="cpu", threads=1)


def test_a_card_opens_no_file_elsewhere_and_a_program_called_a_graph_does_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "walker"
    folder.mkdir()
    program = torch.jit.script(torch.nn.Linear(17, 2))
    for place in (tmp_path, folder):
        program.save(str(place / "policy.pt"))
    digest = hashlib.sha256((folder / "policy.pt").read_bytes()).hexdigest()
    elsewhere = hashlib.sha256((tmp_path / "policy.pt").read_bytes()).hexdigest()

    def load(weights: str, sha256: str) -> None:
        made = small(format="onnx", weights=weights, sha256=sha256)
        (folder / "io.yaml").write_text(json.dumps(made.model_dump(mode="json", exclude_none=True)))
        load_walker(folder, device="cpu", threads=1)

    with pytest.raises(ValueError, match="is no ONNX policy"):
        load("policy.pt", digest)
    with pytest.raises(Refused, match="expected the name of a file beside it"):
        load("../policy.pt", elsewhere)
