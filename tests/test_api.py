"""The verbs from Python: the same names, checks and run folders as the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir

import robot_rl as rr
from robot_rl.checkpoint import CheckpointError
from robot_rl.types import Learner
from robot_rl.words import Refused

QUICK: dict[str, Any] = {"video_episodes": 0, "final_episodes": 1, "eval_every": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rr.RunResult:
    env = rr.make("pendulum", num_envs=2)
    return rr.train("online/sac", env, steps=300, folder=tmp_path_factory.mktemp("api") / "run", **QUICK)


def test_five_lines_train_and_act(run: rr.RunResult):
    env = rr.make("pendulum", num_envs=3, seed=5)
    obs, _ = env.reset(seed=5)
    policy = rr.load(run)
    action = policy.act(obs, deterministic=True).value
    assert action.shape == (3, 1)
    assert np.abs(action).max() <= 1
    assert (run.folder / "evaluation.json").is_file()
    by_name, by_env = rr.evaluate(run, episodes=3), rr.evaluate(policy, env, episodes=3)
    assert len(by_name.returns) == len(by_env.returns) == 3
    assert np.isfinite(run.summary["return"])


@pytest.mark.parametrize(
    ("obs", "told"),
    [
        (np.zeros(3, np.float32), r"got an array of shape \(3,\)"),
        ({"state": np.zeros(3, np.float32)}, r"got 'state' of shape \(3,\)"),
        ({"observation": np.zeros((1, 3), np.float32)}, "got no 'state'"),
        ((np.zeros((1, 3)), {}), "got a tuple"),
    ],
)
def test_an_observation_that_is_none_is_answered_in_words(run: rr.RunResult, obs: Any, told: str):
    policy = rr.load(run)
    size = policy.io.obs["state"][0][0]
    expected = rf"'state': \(B, {size}\) float32.* and {told}.*policy\.act\({{'state': obs\[None\]}}\)\.value\[0\]"
    with pytest.raises(Refused, match=expected):
        policy.act(obs)
    with pytest.raises(Refused, match=r"Write policy\.act\({'state': obs}\)\.value; the answer"):
        policy.act(cast(Any, np.zeros((2, size), np.float32)))
    assert policy.act({"state": np.zeros(size, np.float32)[None]}, deterministic=True).value[0].shape == (1,)


def test_the_run_is_the_one_that_the_command_line_makes(run: rr.RunResult, tmp_path: Path):
    words = (
        "train env=pendulum policy=online/sac num_envs=2 total_steps=300 video_episodes=0 final_episodes=1 eval_every=0"
    )
    command = [str(Path(sys.executable).with_name("robot-rl")), *words.split(), f"output={tmp_path}"]
    subprocess.run(command, check=True, capture_output=True)
    (other,) = (tmp_path / "train").iterdir()
    ours, theirs = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (run.folder, other))
    assert {**ours, "output": None} == {**theirs, "output": None}
    numbers = [yaml.safe_load((folder / "evaluation.json").read_text()) for folder in (run.folder, other)]
    assert numbers[0]["returns"] == numbers[1]["returns"]  # the same bits
    assert rr.evaluate(other, episodes=2).returns == rr.evaluate(run, episodes=2).returns


def test_a_run_goes_on(run: rr.RunResult, tmp_path: Path):
    first = rr.train("online/sac", "pendulum", steps=200, num_envs=2, folder=tmp_path / "part", **QUICK)
    names = sorted(path.name for path in (first.folder / "checkpoints").iterdir())
    with pytest.raises(ValueError, match=r"total_steps is 100, and .* has made 200 steps already"):
        rr.resume(first, total_steps=100)
    assert names == sorted(path.name for path in (first.folder / "checkpoints").iterdir())  # none is put aside
    rest = rr.resume(first, total_steps=300)
    assert rest.folder == first.folder
    assert rr.evaluate(rest, episodes=2).returns == rr.evaluate(run, episodes=2).returns  # as never stopped


@pytest.mark.parametrize("page", ["README.md", "docs/howto/python.md"])
def test_the_code_on_the_pages_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).resolve().parents[1] / page).read_text()
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        assert exec(code.replace("steps=10_000", "steps=150, video_episodes=0, final_episodes=1"), {}) is None


def test_what_a_run_that_goes_on_does_not_take_is_refused(run: rr.RunResult, tmp_path: Path):
    (checkpoint,) = (run.folder / "checkpoints").glob("step_*")
    with pytest.raises(Refused, match="no option 'total_step' here; did you mean total_steps"):
        rr.resume(run, total_step=400)
    with pytest.raises(Refused, match="env=pick: a resumed run keeps its env"):
        rr.resume(checkpoint, env="pick")
    (tmp_path / "config.yaml").write_text("human: {name: scripted}\ninit: null\n")
    with pytest.raises(Refused, match=f"is a run of robot-rl hil, and goes on with robot-rl hil resume={tmp_path}"):
        rr.resume(tmp_path)


def test_a_callback_hears_every_row_and_ends_the_run_in_good_order(tmp_path: Path):
    heard: list[int] = []

    def callback(step: int, metrics: dict[str, float]) -> bool:
        heard.append(step)
        return step < 200

    small = {**QUICK, "log_every": 50, "options": {"hidden": [8, 8], "batch_size": 8}}
    run = rr.train(
        "online/sac", "pendulum", steps=1000, num_envs=1, folder=tmp_path / "run", callback=callback, **small
    )
    assert heard == [50, 100, 150, 200]
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows][:4] == [50, 100, 150, 200]
    assert run.summary["steps"] == 200
    assert np.isfinite(run.summary["return"])
    more = rr.resume(run, callback=lambda step, metrics: step < 300)  # the rest of the thousand, as far as it is wanted
    assert more.summary["steps"] == 300
    with pytest.raises(ZeroDivisionError):  # an error of the caller's own comes through, the last checkpoint stays
        rr.resume(run, callback=lambda step, metrics: step / 0)
    assert rr.resume(run, callback=lambda step, metrics: False).summary["steps"] == 350


def test_a_policy_from_a_log(tmp_path: Path):
    import h5py

    rng = np.random.default_rng(0)
    state = rng.normal(size=(200, 3)).astype(np.float32)
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["observations"], file["actions"] = state, np.tanh(state[:, :1])
        file["rewards"] = np.zeros(200, np.float32)
        file["terminals"] = np.zeros(200, bool)
        file["timeouts"] = np.arange(1, 201) % 50 == 0
    log = tmp_path / "log.hdf5"
    found = rr.offline(
        "offline/bc", log, updates=200, action="normalised", estimate=0, folder=tmp_path / "run", **QUICK
    )
    action = rr.load(found).act({"state": state[:5]}, deterministic=True).value
    np.testing.assert_allclose(action, np.tanh(state[:5, :1]), atol=0.25)
    with pytest.raises(Refused, match="say where"):
        rr.evaluate(found)


def test_a_run_goes_on_from_a_log_with_the_learner_of_the_log(tmp_path: Path):
    import h5py

    env, rng = rr.make("pendulum"), np.random.default_rng(0)
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["observations"] = rng.normal(size=(300, 3)).astype(np.float32)
        file["actions"] = rng.uniform(-1, 1, (300, 1)).astype(np.float32)
        file["rewards"], file["terminals"] = rng.normal(size=300).astype(np.float32), np.zeros(300, bool)
        file["timeouts"] = np.arange(1, 301) % 50 == 0
    options = {"hidden": [16], "batch_size": 32}
    how: dict[str, Any] = {"action": "normalised", "options": options, "folder": tmp_path / "first", **QUICK}
    first = rr.offline("offline/iql", tmp_path / "log.hdf5", updates=50, env=env, estimate=20, **how)
    assert "estimate" in yaml.safe_load((first.folder / "evaluation.json").read_text())
    rest = rr.train("online/sac", env, steps=60, init=str(first.folder), folder=tmp_path / "rest", **QUICK)
    assert yaml.safe_load((rest.folder / "config.yaml").read_text())["policy"]["name"] == "offline/iql"


def test_a_gymnasium_task_and_options():
    env = rr.make("Pendulum-v1", num_envs=2)
    assert env.io.action_high == (2.0,)
    env.close()
    small = rr.make("reach", cameras=["front"], camera_size=[16, 16], state=False)
    assert small.io.obs["image.front"] == ((16, 16, 3), "uint8")
    small.close()


def refused(text: str, call, *args, **kwargs):
    with pytest.raises(Refused, match=text):
        call(*args, **kwargs)


def test_it_works_inside_a_program_of_hydra(tmp_path: Path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/main.yaml").write_text("steps: 7\n")
    with initialize_config_dir(str(tmp_path / "conf"), version_base=None):
        assert rr.make("pendulum", num_envs=1).io.obs_names == ("cos", "sin", "velocity")
        assert compose("main").steps == 7  # the caller's own is still there


def test_wrong_words_are_one_sentence(tmp_path: Path):
    folder = tmp_path / "run"
    refused("did you mean.*reach", rr.make, "raech")
    refused("camera_sizes", rr.make, "reach", camera_sizes=[3, 3])
    refused("did you mean.*online/sac", rr.train, "online/sca", "reach", folder=folder)
    refused("did you mean.*batch_size", rr.train, "online/sac", "reach", options={"batch_sizes": 3}, folder=folder)
    refused("did you mean.*eval_every", rr.train, "online/sac", "reach", eval_evry=3, folder=folder)
    refused("total_steps is -3", rr.train, "online/sac", "reach", steps=-3, folder=folder)
    with pytest.raises(CheckpointError, match=r"holds no config\.yaml"):
        rr.resume(tmp_path)
    assert not folder.exists()


def test_an_environment_of_others_is_refused():
    import gymnasium

    refused("was not made by robot_rl.make", rr.train, "online/sac", gymnasium.make_vec("Pendulum-v1"))


def test_a_class_in_a_script_is_refused():
    class Mine(Learner):
        __module__ = "__main__"

    refused("stands in the script itself", rr.train, Mine, "reach")


def test_the_package_alone_loads_nothing():
    code = "import sys, robot_rl; print(*[x for x in ('torch', 'hydra', 'gymnasium', 'mujoco') if x in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_a_robot_of_ones_own_comes_by_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from robot_rl import cli

    monkeypatch.chdir(tmp_path)
    model = Path(__file__).resolve().parents[1] / "docs/howto/small_arm.urdf"
    monkeypatch.setattr("sys.argv", ["robot-rl", "robot", "new", str(model), "name=mine"])
    with pytest.raises(SystemExit):
        cli.main()
    env = rr.make("reach", robot="mine")
    run = rr.train("online/sac", env, steps=150, folder=tmp_path / "run", **QUICK)
    assert rr.load(run).io.action_dim == env.io.action_dim
    refused("takes any arm with a card", rr.make, "pendulum", robot="mine")


def test_an_environment_that_is_none_of_ours_is_refused_with_what_to_do():
    class Task(gymnasium.Env):
        pass

    for call in (lambda: rr.make(cast(Any, Task)), lambda: rr.train("online/sac", cast(Any, Task()))):
        with pytest.raises(Refused, match=r"gymnasium.register.*'module:Id-v0'"):
            call()


def test_an_environment_comes_from_a_function_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(
        "import gymnasium\n"
        "def make_task(seconds=3):\n"
        "    task = gymnasium.make('Pendulum-v1', max_episode_steps=seconds)\n"
        "    return gymnasium.wrappers.FrameStackObservation(task, 2)\n"
        "def make_number(): return 3\n"
    )
    env = rr.make("./task.py:make_task", kwargs={"seconds": 2})
    assert env.io.obs["state"][0] == (6,)
    env.reset()
    assert [bool(env.step(np.zeros((1, 1)))[3][0]) for _ in range(4)] == [False, True, False, True]
    with pytest.raises(Refused, match=r"makes int, which is no gymnasium\.Env"):
        rr.make("./task.py:make_number")
    with pytest.raises(ValueError, match="has no 'make_tosk'; did you mean make_task"):
        rr.make("./task.py:make_tosk")


def test_steps_have_the_name_of_the_command_line_too(tmp_path: Path):
    few: dict[str, Any] = {"total_steps": 40, "learning_starts": 50, "folder": tmp_path / "run"}
    run = rr.train("online/sac", "pendulum", **few, **QUICK)
    assert run.summary["steps"] == 40


def test_what_is_no_policy_and_no_number_of_copies_is_refused():
    with pytest.raises(Refused, match=r"^object is no policy; expected a run folder, or an object with io"):
        rr.evaluate(cast(Any, object()), "pendulum")
    with pytest.raises(Refused, match="num_envs is '3', expected a whole number"):
        rr.make("pendulum", num_envs=cast(Any, "3"))
