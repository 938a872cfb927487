"""Graphs of others against hand-worked numbers, graphs of ours against the policy, and a process without torch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from robot_rl.onnx_policy import OnnxPolicy
from robot_rl.types import IOSpec
from robot_rl.verbs.build import foreign
from robot_rl.verbs.export import export
from robot_rl.words import Refused

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll")
GAIN = np.array([[0.5, 0.0], [0.0, -2.0], [0.25, 0.25]], np.float32)


def io(inputs=3, outputs=2):
    ones = (1.0,) * outputs
    names = tuple(f"joint{i}" for i in range(outputs))
    return IOSpec(
        obs={"state": ((inputs,), "float32")},
        action_names=names,
        action_low=tuple(-x for x in ones),
        action_high=ones,
        action_units=("rad",) * outputs,
        control_hz=20.0,
    )


def linear(folder, *, batch="batch", inputs=("obs",), outputs=("actions",), gain=GAIN):
    """obs @ GAIN as somebody else's exporter would write it; every further output is the first one again."""
    folder.mkdir(exist_ok=True)
    weight = onnx.numpy_helper.from_array(gain, "gain")
    nodes = [helper.make_node("MatMul", [inputs[0], "gain"], [name]) for name in outputs]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(name, FLOAT, [batch, gain.shape[0]]) for name in inputs],
        [helper.make_tensor_value_info(name, FLOAT, [batch, gain.shape[1]]) for name in outputs],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "policy.onnx").write_bytes(model.SerializeToString())
    (folder / "io.json").write_text(json.dumps(io().to_dict()))
    return folder


@pytest.mark.parametrize("batch", ["batch", 1])
def test_graph_of_somebody_else_answers_as_worked_by_hand(tmp_path, batch):
    policy = OnnxPolicy(str(linear(tmp_path / "a", batch=batch)))
    states = np.array([[0.2, 0.1, 0.4], [1.0, 3.0, -2.0]], np.float32)
    # 0.5 * .2 + .25 * .4 and -2 * .1 + .25 * .4; the second row is 0.0 and -6.5, which is cut to the bounds
    assert policy.act({"state": states}).value == pytest.approx(np.array([[0.2, -0.1], [0.0, -1.0]]), abs=1e-6)
    assert policy.act({"state": states[:1]}).value.shape == (1, 2)


def test_graph_answers_tensors_with_tensors(tmp_path):
    import torch

    policy = OnnxPolicy(str(linear(tmp_path / "a")))
    answer = policy.act({"state": torch.tensor([[0.2, 0.1, 0.4]], dtype=torch.float64)}).value
    assert isinstance(answer, torch.Tensor)
    assert answer.dtype == torch.float32
    assert answer.numpy() == pytest.approx(np.array([[0.2, -0.1]]), abs=1e-6)


def test_graph_that_sees_pictures_first_answers_tensors_with_fractions(tmp_path):
    import torch

    folder = linear(tmp_path / "a", inputs=("state",), outputs=("action",))
    model = onnx.load(folder / "policy.onnx")
    picture = helper.make_tensor_value_info("image.top", onnx.TensorProto.UINT8, ["batch", 2, 2, 3])
    model.graph.input.insert(0, picture)
    onnx.save(model, folder / "policy.onnx")
    sees = {"image.top": ((2, 2, 3), "uint8"), **io().obs}
    policy = OnnxPolicy(str(folder), replace(io(), obs=sees))
    seen = {"image.top": torch.zeros(1, 2, 2, 3, dtype=torch.uint8), "state": torch.tensor([[0.2, 0.1, 0.4]])}
    answer = policy.act(seen).value
    assert isinstance(answer, torch.Tensor)
    assert answer.numpy() == pytest.approx(np.array([[0.2, -0.1]]), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": ("obs", "h_in")}, "its input obs is no observation here; its input h_in .* memory"),
        ({"outputs": ("actions", "std")}, "has the outputs actions, std; expected one called action"),
        ({"gain": np.ones((4, 2), np.float32)}, r"shape \[4\] per row, the observation state \[3\]"),
        ({"gain": np.ones((3, 5), np.float32)}, r"shape \(2, 5\), expected \(2, 2\): the actions joint0, joint1"),
    ],
)
def test_graph_that_does_not_fit_says_what_is_wrong(tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        OnnxPolicy(str(linear(tmp_path / "a", **change)))


def test_damaged_graph_and_missing_interface_are_one_sentence(tmp_path):
    folder = linear(tmp_path / "a")
    whole = (folder / "policy.onnx").read_bytes()
    (folder / "policy.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"policy\.onnx cannot be read as an ONNX graph"):
        OnnxPolicy(str(folder))
    (folder / "policy.onnx").write_bytes(whole)
    (folder / "io.json").unlink()
    with pytest.raises(ValueError, match=r"has no io\.json: it says what a graph sees"):
        OnnxPolicy(str(folder))


def test_a_graph_that_makes_choices_is_refused_where_numbers_are_taken(tmp_path):
    folder = linear(tmp_path / "a")
    (folder / "io.json").write_text(json.dumps(replace(io(), action_choices=(3, 2)).to_dict()))
    cfg = OmegaConf.create({"policy": {"name": "onnx"}, "device": "cpu", "seed": 0})
    with pytest.raises(ValueError, match=r"acts with choices \[3, 2\] and this environment takes numbers"):
        foreign(cfg, str(folder), io())
    assert foreign(cfg, str(folder), replace(io(), action_choices=(3, 2))).io.action_choices == (3, 2)


def test_what_a_graph_says_of_its_actions_holds_where_it_is_evaluated(tmp_path):
    folder = linear(tmp_path / "a", gain=np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float32))
    cfg = OmegaConf.create({"policy": {"name": "onnx"}, "device": "cpu", "seed": 0})
    here = replace(io(), action_low=(-2.0, 0.0), action_high=(2.0, 4.0))  # of the graph: -1 to 1 rad, both
    value = foreign(cfg, str(folder), here).act({"state": np.array([[0.5, 0.5, 0.0]], np.float32)}).value
    assert value == pytest.approx(np.array([[0.25, -0.75]]))  # .5 rad is half way to .5 of 2; .5 rad of 0 to 4
    for change, words in (
        ({"action_names": ("joint1", "joint0")}, "joint1"),
        ({"action_units": ("N m", "N m")}, "is in rad here and N m there"),
    ):
        with pytest.raises(ValueError, match=words):
            foreign(cfg, str(folder), replace(here, **change))


def test_weights_in_other_files_are_not_read(tmp_path):
    """A graph may name any file of the machine as the place of its weights."""
    folder = linear(tmp_path / "a")
    (tmp_path / "secret").write_bytes(GAIN.tobytes())
    model = onnx.load(folder / "policy.onnx")
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "../secret"
    (folder / "policy.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="cannot be read as an ONNX graph"):
        OnnxPolicy(str(folder))


def accumulator(folder, *, after="sum_out"):
    """sum_out = sum_in + obs @ GAIN, and the action is the sum: a memory as rsl_rl names it."""
    folder.mkdir(exist_ok=True)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["obs", "gain"], ["now"]),
            helper.make_node("Add", ["now", "sum_in"], [after]),
            helper.make_node("Identity", [after], ["actions"]),
        ],
        "policy",
        [helper.make_tensor_value_info(name, FLOAT, [1, n]) for name, n in (("obs", 3), ("sum_in", 2))],
        [helper.make_tensor_value_info(name, FLOAT, [1, 2]) for name in ("actions", after)],
        [onnx.numpy_helper.from_array(GAIN, "gain")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "policy.onnx").write_bytes(model.SerializeToString())
    (folder / "io.json").write_text(json.dumps(io().to_dict()))
    return folder


def test_graph_with_a_memory_remembers_for_every_row(tmp_path):
    policy = OnnxPolicy(str(accumulator(tmp_path / "a")))
    assert policy.parts.remembers
    states = np.array([[0.2, 0.1, 0.4], [0.4, 0.0, 0.0]], np.float32)  # of them GAIN makes (.2, -.1) and (.2, 0)
    assert policy.act({"state": states}).value == pytest.approx(np.array([[0.2, -0.1], [0.2, 0.0]]), abs=1e-6)
    assert policy.act({"state": states}).value == pytest.approx(np.array([[0.4, -0.2], [0.4, 0.0]]), abs=1e-6)
    policy.reset(np.array([True, False]))
    assert policy.act({"state": states}).value == pytest.approx(np.array([[0.2, -0.1], [0.6, 0.0]]), abs=1e-6)
    policy.reset()
    assert policy.act({"state": states[1:]}).value == pytest.approx(np.array([[0.2, 0.0]]), abs=1e-6)


def test_memory_without_its_other_end_is_told(tmp_path):
    with pytest.raises(
        ValueError, match=r"its input sum_in is no observation here.* A memory is an input <name>_in with"
    ):
        OnnxPolicy(str(accumulator(tmp_path / "a", after="total")))


def exported(run, out, kind="onnx"):
    export(OmegaConf.create({"path": str(run), "out": str(out), "format": kind}))
    return out


def test_export_is_the_policy_and_runs_without_torch(make_run, tmp_path):
    run = make_run("env=reach", "policy=online/sac", "policy.normalize_obs=true")
    out = exported(run, tmp_path / "graph")
    assert json.loads((out / "meta.json").read_text())["largest_difference"] < 1e-5
    assert (out / "io.json").read_bytes() == (next(run.glob("checkpoints/*")) / "io.json").read_bytes()
    state = np.linspace(-1, 1, 12, dtype=np.float32)[None]
    from robot_rl import load

    expected = load(run).act({"state": state}, deterministic=True).value
    said = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(out)], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == pytest.approx(expected[0].tolist(), abs=1e-5)


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("torch is not to be imported")
sys.meta_path.insert(0, NoTorch())
import json
import numpy as np
from robot_rl import build, onnx_policy
import robot_rl.real.policy_runner
loaded = onnx_policy.load_for_robot(sys.argv[1], device="cpu", threads=1, make_port=build.world_port)
port = loaded.make_port(("waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll"))
assert port.io.action_names == loaded.io.action_names
state = np.linspace(-1, 1, 12, dtype=np.float32)[None]
print(json.dumps(loaded.policy.act({"state": state}).value[0].tolist()))
"""


@pytest.mark.slow
def test_export_of_pictures_and_of_choices(make_run, tmp_path):
    looking = make_run("env=reach", "env.cameras=[front]", "env.camera_size=[32,32]", "policy=online/sac")
    assert json.loads((exported(looking, tmp_path / "a") / "meta.json").read_text())["largest_difference"] < 1e-4
    for number, env in enumerate((("env=gym", "id=CartPole-v1"), ("env=reach",))):
        made = exported(make_run(*env, "policy=online/ppo"), tmp_path / str(number))
        assert json.loads((made / "meta.json").read_text())["largest_difference"] < 1e-5


@pytest.mark.slow
def test_export_of_a_policy_with_a_memory_is_a_graph_with_one(make_run, tmp_path):
    """The same actions over an episode, from the policy and from the graph, whose memory is in its inputs."""
    run = make_run("env=reach", "policy=online/recurrent_ppo", "policy.memory=8", "policy.hidden=[16]")
    out = exported(run, tmp_path / "graph")
    said = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(out)], capture_output=True, text=True, check=True)
    from robot_rl import load

    policy, state = load(run), np.linspace(-1, 1, 12, dtype=np.float32)[None]
    assert json.loads(said.stdout) == pytest.approx(policy.act({"state": state}, deterministic=True).value[0], abs=1e-5)
    graph = onnx.load(out / "policy.onnx").graph
    assert [x.name for x in graph.input] == ["state", "memory_in"]
    assert [x.name for x in graph.output] == ["action", "memory_out"]


CASES = (
    ("env=reach", "policy=online/recurrent_sac"),
    ("env=reach", "policy=online/ppo_chunk"),
    ("env=reach", "policy=sequence/srl"),
    ("env=reach", "policy=sequence/sac_j"),
)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", CASES, ids=lambda overrides: overrides[-1])
def test_export_of_histories_and_chunks(make_run, tmp_path, overrides):
    made = exported(make_run(*overrides), tmp_path / "graph")
    assert json.loads((made / "meta.json").read_text())["largest_difference"] < 1e-5


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=reach", "policy=online/sac", "policy.normalize_obs=true"),
        ("env=reach", "policy=online/recurrent_ppo", "policy.memory=8", "policy.hidden=[16]"),
        *(pytest.param(case, marks=pytest.mark.slow) for case in CASES),
    ],
    ids=lambda overrides: overrides[1],
)
def test_export_as_a_bundle_is_run_by_the_package_leapp_and_by_the_robot(make_run, tmp_path, overrides):
    leapp = pytest.importorskip("leapp", reason="the package leapp, which writes bundles, is not installed")
    import torch

    from robot_rl import load
    from robot_rl.verbs.robot_policy import load_robot_policy

    run = make_run(*overrides)
    out = exported(run, tmp_path / "bundle", "leapp")
    theirs = leapp.InferenceManager(str(out / "policy.yaml"))
    robots = load_robot_policy(str(out), device="cpu", threads=1, trust=False)
    assert robots.make_port is not None
    assert robots.make_port(JOINTS).io.action_names == robots.io.action_names
    policy = load(run)
    seen = np.random.default_rng(0).standard_normal((12, 1, 12)).astype(np.float32)
    for state in seen:
        expected = policy.act({"state": state}, deterministic=True).value
        answer = theirs.run_policy({"actor/state": torch.as_tensor(state)})["actor/action"]
        assert answer.numpy() == pytest.approx(expected, abs=1e-5)
        assert robots.policy.act({"state": state}).value == pytest.approx(expected, abs=1e-5)
    assert load(out).act({"state": seen[0]}).value.shape == (1, 3)  # again, as of any run


def test_export_of_what_a_graph_would_forget_is_refused_and_writes_nothing(make_run, tmp_path):
    run = make_run("env=pick", "policy=human/hil_serl")
    with pytest.raises(Refused, match="HilSerlPolicy decides from more than the present observation"):
        exported(run, tmp_path / "out")
    assert not list(Path(tmp_path / "out").parent.glob("*out*"))


@pytest.fixture
def make_run(tmp_path):
    """(overrides) -> run folder of a learner that was not trained."""
    from hydra import compose, initialize_config_module

    from robot_rl import checkpoint
    from robot_rl.verbs.build import env_factory, learner_factory
    from robot_rl.verbs.compose import register

    register()

    def make(*overrides):
        with initialize_config_module("robot_rl.configs", version_base="1.3"):
            cfg = compose("train", overrides=list(overrides))
        env = env_factory(cfg)(1, 0, False)
        learner = learner_factory(cfg)(env.io)
        env.close()
        folder = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        checkpoint.save(
            folder / "checkpoints",
            1,
            states={"policy": learner.policy.state_dict()},
            io=env.io,
            config=OmegaConf.to_yaml(cfg, resolve=True),
            meta={},
        )
        return folder

    return make
