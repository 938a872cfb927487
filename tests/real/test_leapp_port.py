"""LEAPP bundles of others on a robot: a real one (tests/real/leapp_walker) against torch, and ones that are refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from robot_rl import policy_card
from robot_rl.leapp_policy import LeappPolicy
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import GraphArgs, GraphError, graph
from robot_rl.real.leapp_port import LeappPort
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, Unfit, fit_policy
from robot_rl.types import IOSpec, Loaded
from robot_rl.verbs.robot_policy import load_robot_policy
from tests.real import leapp_bundles as bundles
from tests.real.legs_world import G1, LegsWorld, g1_card, needs_g1

pytest.importorskip("onnxruntime")
pytest.importorskip("safetensors")
SPEC: dict[str, Any] = {
    "name": "walker",
    "command_mode": "pd",
    "joints": [  # in another order than the bundle's
        {"name": name, "lower": -1.0, "upper": 1.0, "velocity": 10.0, "acceleration": 100.0, "effort": 50.0}
        | {"kp": 20.0, "kd": 0.5}
        for name in ("hip", "knee")
    ],
    "sensors": {
        "imu": {"topic": "imu", "type": "sensor_msgs/Imu"},
        "command": {"topic": "cmd_vel", "type": "geometry_msgs/Twist", "required": False},
    },
    "legs": {"stop": "damp"},
    "home": [0.0, 0.0],
}
HIP, KNEE = SPEC["joints"]


def load(path: Path, *, trust: bool = False) -> Loaded:
    return load_robot_policy(str(path), device="cpu", threads=1, trust=trust)


def drive(loaded: Loaded) -> np.ndarray:
    """(steps, 2) targets, in the order of the bundle, of the runner that the policy node has."""
    spec = RobotSpec.from_dict(SPEC)
    policy, port = fit_policy(loaded, spec, {}, print)
    runner = PolicyRunner(policy, port, RunnerOptions(rate=bundles.HZ, mode=spec.mode), identity="walker")
    found = []
    for seen in bundles.measured():
        w, *xyz = seen["base_quat"][0]
        imu = np.array([*xyz, w, *seen["base_ang_vel"][0], 0.0, 0.0, 9.8])
        task = {"imu": imu, "velocity_command": seen["base_velocity"][0], "height": seen["height"][0]}
        wanted = runner.tick(seen["joint_pos"][0][::-1], seen["joint_vel"][0][::-1], task)
        assert wanted is not None
        found.append(wanted.values[0][::-1])
    return np.array(found)


def test_a_bundle_of_the_real_package_gives_the_targets_that_torch_gives() -> None:
    """Orders of joints and of the quaternion, two memories and their begin; the second time after a reset."""
    loaded = load(bundles.WALKER)
    assert loaded.io.control_hz == bundles.HZ
    assert loaded.policy.parts.remembers
    for _ in range(2):
        assert drive(loaded) == pytest.approx(bundles.targets(), abs=1e-5)
    names = ["decide.onnx", "see.onnx", "walker.yaml", "walker_initial_values.safetensors"]
    assert sorted(Path(file).name for file in loaded.files) == names


@pytest.mark.parametrize("export_with", ["onnx", "jit"])
def test_a_bundle_that_is_written_now_gives_them_too(tmp_path: Path, export_with: str) -> None:
    pytest.importorskip("leapp", reason="the package leapp is not installed; tests/real/leapp_walker is what it wrote")
    file = bundles.write_walker(tmp_path, export_with)
    assert drive(load(file, trust=export_with == "jit")) == pytest.approx(bundles.targets(), abs=1e-5)


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "leapp"):
            raise ImportError(name + " is not to be imported")
sys.meta_path.insert(0, NoTorch())
import numpy as np
import robot_rl.real.policy_runner
from robot_rl.verbs.robot_policy import load_robot_policy
loaded = load_robot_policy(sys.argv[1], device="cpu", threads=1, trust=False)
port = loaded.make_port(("hip", "knee"))
task = {"imu": np.array([0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0]), "velocity_command": np.zeros(3), "height": np.ones(1)}
for _ in range(3):
    target = port.act(loaded.policy.act(port.observe(np.zeros(2), np.zeros(2), task)).value)
assert not {"torch", "leapp"} & set(sys.modules)
print(list(map(float, target)))
"""


def test_a_bundle_with_onnx_parts_runs_without_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(bundles.WALKER)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert np.isfinite(json.loads(said)).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"joints": [{**HIP, "kp": 30.0}, KNEE]}, "kp of hip is 30 .* trained with 20"),
        ({"joints": [HIP, KNEE, {**HIP, "name": "toe"}], "home": [0.0] * 3}, "commands toe not once"),
        ({"joints": [{**HIP, "name": "arm"}], "home": [0.0]}, "joint_pos is of knee, hip, which the robot has not"),
        ({"command_mode": "forward_effort", "legs": None}, "expected position or pd: it gives target/joint/position"),
        ({"sensors": {}, "legs": {"stop": "damp", "tilt": None}}, "no sensor of type sensor_msgs/Imu"),
    ],
)
def test_another_robot_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Unfit, match=words):
        fit_policy(load(bundles.WALKER), RobotSpec.from_dict({**SPEC, **change}), {}, print)


@pytest.fixture
def altered(tmp_path: Path) -> Callable[..., Path]:
    """(what to do with the table of the description) -> a copy of the walker with it."""

    def alter(change: Callable[[dict[str, Any]], object]) -> Path:
        folder = shutil.copytree(bundles.WALKER, tmp_path / "walker")
        table = yaml.safe_load((folder / "walker.yaml").read_text())
        change(table)
        (folder / "walker.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
        return folder

    return alter


def models(name: str, key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda table: table["models"][name]["parameters"].update({key: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t["pipeline"].pop("inputs"),
            r"no LEAPP description that can be read: pipeline\.inputs: Field required",
        ),
        (models("see", "backend", "pt2"), "its part see is 'pt2'; onnx is run"),
        (
            models("see", "model_path", "../see.onnx"),
            r"names the file \.\./see\.onnx; expected the name of a file beside",
        ),
        (models("see", "model_path", "decide.onnx"), "is not the file that its description was written for"),
        (models("see", "model_path", "gone.onnx"), r"gone\.onnx cannot be read: No such file"),
        (lambda t: t["pipeline"].update(initial_values="see.onnx"), "cannot be read as safetensors"),
        (lambda t: t["pipeline"]["data_flow"].clear(), "the input decide/seen has 0 sources, expected one"),
        (
            lambda t: t["pipeline"]["data_flow"].update({"decide/legs": ["see/joint_pos"]}),
            "has 2 sources|runs before it",
        ),
        (lambda t: t["pipeline"]["data_flow"].update({"see/no": ["see/joint_pos"]}), "names what no part has"),
        (
            lambda t: t["models"]["see"]["inputs"][6].update(shape=[1, 3]),
            r"is wired to see/last_action, which is float",
        ),
        (
            lambda t: t["models"]["see"]["inputs"][0].update(name="joint_position"),
            "joint_pos, which no part has|0 sources",
        ),
        (
            lambda t: t["models"]["decide"]["outputs"][0].update(kind="target/body/pose"),
            r"gives legs \(target/body/pose\)",
        ),
        (lambda t: t["models"]["decide"]["outputs"][0].pop("element_names"), "legs has no names of its joints"),
        (lambda t: t["pipeline"].pop("configs"), "does not say how often it decides"),
        (lambda t: t["models"]["decide"]["inputs"][1].update(shape=[1 << 40]), "more numbers than|is wired to"),
        (
            lambda t: t["models"]["see"]["inputs"][0].update(shape=[1 << 40]),
            r"see/joint_pos has the shape .* more numbers",
        ),
        (lambda t: t["models"]["see"]["inputs"][0].update(dtype="uint8"), "does not run on zeros|wired|uint8"),
    ],
)
def test_a_broken_bundle_is_one_sentence(altered: Callable[..., Path], change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        load(altered(change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["models"]["see"]["inputs"][2].pop("element_names"), "in which order base_quat is a quaternion"),
        (lambda t: t["models"]["see"]["inputs"][0].pop("element_names"), "joint_pos has no names of its joints"),
        (
            lambda t: t["models"]["see"]["inputs"][3].update(isaaclab_connection="state:robot:root_ang_vel_w"),
            "base_ang_vel is in the world's frame",
        ),
        (lambda t: t["pipeline"]["outputs"]["decide"].remove("kp"), "gives no kp: in pd mode a target is a torque"),
    ],
)
def test_what_nobody_says_of_a_tensor_is_asked_for(altered: Callable[..., Path], change: Any, words: str) -> None:
    with pytest.raises(Unfit, match=words):
        fit_policy(load(altered(change)), RobotSpec.from_dict(SPEC), {}, print)


def test_a_task_variable_of_another_size_and_an_imu_without_orientation_are_told() -> None:
    _, port = fit_policy(load(bundles.WALKER), RobotSpec.from_dict(SPEC), {}, print)
    task = {"imu": np.ones(10), "velocity_command": np.zeros(3), "height": np.ones(2)}
    with pytest.raises(ValueError, match=r"height has 2 numbers, expected \[1\]"):
        port.observe(np.zeros(2), np.zeros(2), task)
    assert isinstance(port, LeappPort)
    assert port.neutral["base_quat"].tolist() == [[1.0, 0.0, 0.0, 0.0]]  # w first, as the bundle has it
    with pytest.raises(ValueError, match="the IMU tells no orientation"):
        port.observe(np.zeros(2), np.zeros(2), {**task, "imu": np.full(10, np.nan)})


class Counter(torch.nn.Module):
    """Answers how often it was asked, which it remembers in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1.0
        return 0.01 * self.count + 0.0 * x


def test_a_torchscript_part_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    torch.jit.script(Counter()).save(str(tmp_path / "count.pt"))

    def tensor(name: str, kind: str) -> dict[str, Any]:
        return {"name": name, "kind": kind, "dtype": "float32", "shape": [1, 1], "element_names": [["hip"]]}

    digest = hashlib.sha256((tmp_path / "count.pt").read_bytes()).hexdigest()
    part = {
        "inputs": [tensor("x", "state/joint/position")],
        "outputs": [tensor("y", "target/joint/position")],
        "parameters": {"backend": "jit", "model_path": "count.pt", "sha256sum": digest},
    }
    pipeline = {"inputs": {"count": ["x"]}, "outputs": {"count": ["y"]}, "configs": {"frequency": 50}}
    (tmp_path / "counter.yaml").write_text(yaml.safe_dump({"models": {"count": part}, "pipeline": pipeline}))
    with pytest.raises(ValueError, match=r"TorchScript parts \(count\.pt\), programs .* trust=true"):
        load(tmp_path)
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump({**SPEC, "joints": [HIP], "home": [0.0]}))
    with pytest.raises(GraphError, match="is TorchScript, a program"):
        graph(GraphArgs(str(tmp_path / "robot.yaml"), policy_path=str(tmp_path / "counter.yaml")))
    graph(GraphArgs(str(tmp_path / "robot.yaml"), policy_path=str(tmp_path), trust=True))
    loaded = load(tmp_path, trust=True)
    assert loaded.make_port is not None
    port = loaded.make_port(("hip",))

    def ask() -> float:
        action = loaded.policy.act(port.observe(np.zeros(1), np.zeros(1), {})).value
        return float(port.act(np.asarray(action))[0])

    assert [ask(), ask()] == pytest.approx([0.01, 0.02])
    loaded.policy.reset()
    assert ask() == pytest.approx(0.01)
    with pytest.raises(ValueError, match="remembers inside its TorchScript parts, and there are 2 rows"):
        loaded.policy.act({"x": np.zeros((2, 1), np.float32)})


def test_what_is_fed_back_comes_in_the_next_step_also_to_a_part_that_runs_later(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "same.pt"))
    digest = hashlib.sha256((tmp_path / "same.pt").read_bytes()).hexdigest()

    def part(came: str, goes: str) -> dict[str, Any]:
        ends = [{"name": name, "dtype": "float32", "shape": [1, 1]} for name in (came, goes)]
        parameters = {"backend": "jit", "model_path": "same.pt", "sha256sum": digest}
        return {"inputs": ends[:1], "outputs": ends[1:], "parameters": parameters}

    pipeline = {"inputs": {"a": ["x"]}, "outputs": {"b": ["action"]}, "feedback_flow": {"a/y": ["b/before"]}}
    models = {"a": part("x", "y"), "b": part("before", "action")}
    (tmp_path / "late.yaml").write_text(yaml.safe_dump({"models": models, "pipeline": pipeline}, sort_keys=False))
    io = IOSpec({"state": ((1,), "float32")}, ("hip",), (-1.0,), (1.0,), ("rad",), 50.0)
    policy = LeappPolicy(str(tmp_path), io, trust=True)
    said = [np.asarray(policy.act({"state": np.full((1, 1), x, np.float32)}).value).item() for x in (0.5, 0.25, 0.0)]
    assert said == [0.0, 0.5, 0.25]


def test_every_row_of_a_batch_has_a_memory_of_its_own() -> None:
    loaded = load(bundles.WALKER)
    seen = bundles.measured()
    both = [{k: np.concatenate([x, later[k]]) for k, x in now.items()} for now, later in zip(seen, seen[3:])]
    policy = loaded.policy
    assert isinstance(policy, LeappPolicy)
    answers = np.array([np.asarray(policy.act(obs).value) for obs in both])
    assert 1000.0 * answers[:, 0] == pytest.approx(bundles.targets()[: len(both)], abs=1e-4)
    policy.reset(np.array([True, False]))
    assert 1000.0 * np.asarray(policy.act(both[0]).value)[0] == pytest.approx(bundles.targets()[0], abs=1e-4)


def test_several_descriptions_in_a_folder_are_told_apart(tmp_path: Path) -> None:
    folder = shutil.copytree(bundles.WALKER, tmp_path / "walker")
    shutil.copy(folder / "walker.yaml", folder / "runner.yaml")
    with pytest.raises(ValueError, match=r"several LEAPP bundles, runner\.yaml, walker\.yaml; name one"):
        load(folder)
    assert drive(load(folder / "runner.yaml")) == pytest.approx(bundles.targets(), abs=1e-5)


@needs_g1
@pytest.mark.slow
def test_the_g1_walks_from_a_bundle_as_it_does_from_its_torchscript(tmp_path: Path) -> None:
    """Its own policy with everything around it in one bundle: the same targets, and it walks through the supervisor."""
    pytest.importorskip("leapp", reason="the package leapp is not installed")
    description = policy_card.read_description(G1 / "policy.yaml")
    card = g1_card()
    joints = [joint.name for joint in card.joints]
    made = load(bundles.write_g1(tmp_path, G1 / "policy.pt", description, joints))
    world = LegsWorld(tmp_path, card, rate=50.0, late=1)
    theirs = world.runner
    policy, port = fit_policy(made, world.spec, {}, print)
    runner = PolicyRunner(policy, port, RunnerOptions(rate=50.0, mode=world.spec.mode), identity="g1")
    rng = np.random.default_rng(0)
    for _ in range(60):
        position, velocity = 0.2 * rng.standard_normal(12), rng.standard_normal(12)
        task = {"imu": np.array([*0.1 * rng.standard_normal(3), 1.0, *rng.standard_normal(3), 0, 0, 9.8])}
        task["velocity_command"] = 0.5 * rng.standard_normal(3)
        ours, expected = runner.tick(position, velocity, task), theirs.tick(position, velocity, task)
        assert ours is not None
        assert expected is not None
        assert ours.values == pytest.approx(expected.values, abs=1e-4)
    world.runner = runner
    world.walk()
    world.command = np.array([0.5, 0.0, 0.0])
    world.run(8.0)
    assert world.state == "ACTIVE"
    assert world.plant.trunk.position[0] > 2.0
