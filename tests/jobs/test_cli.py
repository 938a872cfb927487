"""The command line answers mistakes with what to type instead."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robot_rl import extras
from robot_rl.verbs import answer
from robot_rl.verbs.start import find_unknown
from robot_rl.verbs.table import VERBS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("verb", "item", "answer"),
    [
        ("offline", "total_steps=5", "no key 'total_steps'; did you mean updates?"),
        ("train", "updates=5", "no key 'updates'; did you mean total_steps?"),
        ("train", "total_stepz=5", "did you mean total_steps?"),
        ("train", "polizy.lr=1", "did you mean policy?"),
        ("train", "zzz=1", "no key 'zzz'; all keys: robot-rl train --help"),
        ("eval ope", "zzz=1", "robot-rl eval ope has no key 'zzz'; all keys: robot-rl eval ope --help"),
        ("eval ope", "model.members=3", ""),
        ("train", "env=reach", ""),
        ("train", "policy.lr=1e-3", ""),
        ("train", "+new=1", "no key 'new'"),
        ("train", "+policy.new=1", ""),
        ("train", "~env", "choose another with env="),
        ("train", "~track", ""),
        ("train", "hydra.verbose=true", ""),
        ("train", "output=/tmp", ""),
        ("offline", "ope=null", "ope=null: ope is one of fqe, model; estimate=0 for no estimate"),
        ("train", "track=false", "track is one of"),
        ("offline", "ope=model", ""),
        ("offline", "resume=null", ""),
    ],
)
def test_key_that_a_verb_has_not(verb: str, item: str, answer: str) -> None:
    assert answer in find_unknown(verb, [item]) if answer else not find_unknown(verb, [item])


def test_check_tells_what_is_wrong_with_a_world_and_lets_the_expert_play(robot_rl) -> None:
    fine = robot_rl("check", "env=reach", "num_envs=4")
    assert fine.returncode == 0, fine.stderr
    assert "success 1.00" in fine.stdout
    assert "reach keeps the contract" in fine.stdout
    broken = robot_rl("check", "env=reach", "env.world.seconds=0")
    assert broken.returncode == 2
    assert "env.world.seconds is 0, expected a number above 0" in broken.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("train", "env=tabletop", "rewarder=critic"), "this has to be given: rewarder.judge=<"),
        (
            ("train", "env=tabletop", "rewarder=contrast"),
            "these have to be given: rewarder.bad=<...> rewarder.encoder=<...> rewarder.good=<...>",
        ),
        (("offline",), "this has to be given: data=<A store, or a file or folder"),
        (("bench", "closed_loop"), "bench closed_loop: missing a required argument: 'critics'; it takes +critics=,"),
        (("bench", "edge", "+nothing=1"), "bench edge: got an unexpected keyword argument 'nothing'; it takes +"),
    ],
)
def test_options_that_have_to_be_given_are_named(robot_rl, arguments: tuple[str, ...], answer: str) -> None:
    said = robot_rl(*arguments)
    assert said.returncode == 2
    assert answer in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("words", [("train", "--help"), ("robot", "--help"), ("check", "env=reach")])
def test_reader_that_leaves_early_sees_no_traceback(words: tuple[str, ...]) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "robot_rl", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything is written
        said = process.stderr.read()
        assert process.wait(120) == 1
    assert not said


def test_the_command_line_computes_with_one_blas_thread() -> None:
    """As NumPy's own library says: what is set after it was loaded would have no effect."""
    said = (
        "import robot_rl.cli, numpy, ctypes, pathlib;"
        "folder = pathlib.Path(numpy.__file__).parents[1] / 'numpy.libs';"
        "library = ctypes.CDLL(str(next(folder.glob('libscipy_openblas*'))));"
        "print(library.scipy_openblas_get_num_threads64_())"
    )
    env = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")} | {
        "PYTHONPATH": str(ROOT)
    }
    done = subprocess.run([sys.executable, "-c", said], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]


@pytest.mark.slow  # the other tests run the command line in their own process
@pytest.mark.parametrize("verb", [*VERBS, "data session", "sweep", "doctor", "doctor ros", "doctor isaac"])
def test_every_verb_starts_as_a_process(tmp_path: Path, verb: str) -> None:
    command = [Path(sys.executable).with_name("robot-rl"), *verb.split(), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"robot-rl {verb}" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("doctor", "option"), [("doctor", "isaac"), ("doctor ros", "listen=3.0"), ("doctor isaac", "world=quadruped")]
)
def test_doctors_have_pages(robot_rl, doctor: str, option: str) -> None:
    page = robot_rl(*doctor.split(), "--help")
    assert page.returncode == 0, page.stderr
    assert option in page.stdout


def test_the_page_of_a_task_of_ones_own_and_the_composed_configuration(robot_rl, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        "def make_task(): ...\nclass Line:\n    def __init__(self, force: float = 3.0): ...\n"
    )
    page = robot_rl("train", f"env={tmp_path}/task.py:make_task", "--help")
    assert (page.returncode, "env.episode_steps=null" in page.stdout) == (0, True), page.stderr
    assert "env.world.force=3.0" in robot_rl("train", f"env={tmp_path}/task.py:Line", "--help").stdout
    composed = robot_rl("train", "env=pendulum", "--cfg", "job")
    assert (composed.returncode, "total_steps:" in composed.stdout) == (0, True), composed.stderr


def test_uniform_actions_are_collected_in_a_task_without_an_expert(robot_rl, tmp_path: Path) -> None:
    out = tmp_path / "random.hdf5"
    done = robot_rl(
        "collect", "env=gym", "id=Pendulum-v1", "env.episode_steps=5", "level=random", "steps=20", f"out={out}"
    )
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout
    assert out.is_file()
    again = robot_rl("collect", "env=gym", "id=Pendulum-v1", "episodes=1", f"out={tmp_path}/x.hdf5")
    assert "no scripted expert" in again.stderr
    assert "level=random" in again.stderr


def test_a_file_is_no_run_to_go_on_with(robot_rl, tmp_path: Path) -> None:
    (tmp_path / "log.hdf5").touch()
    said = robot_rl("train", f"resume={tmp_path}/log.hdf5")
    assert (said.returncode, "log.hdf5 holds no config.yaml; expected a run folder" in said.stderr) == (2, True)


def test_a_start_that_is_refused_leaves_no_run_behind(robot_rl, tmp_path: Path) -> None:
    refused = robot_rl("train", "env=reach", "policy=sequence/sac_j", "n_step=3", f"output={tmp_path}")
    assert refused.returncode == 2
    assert "use n_step=1" in refused.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not list(tmp_path.glob("train/*"))


def test_line_that_goes_on_asks_for_trust_where_code_is_somebodys_own(monkeypatch, capsys):
    monkeypatch.setattr(extras, "_used", set())
    monkeypatch.setattr(extras, "_allowed", {"./world.py:World"})
    answer.say_how_to_continue("interrupted", "train", Path("runs/x"))
    extras.check_allowed("./world.py:World", "world=")
    answer.say_how_to_continue("interrupted", "train", Path("runs/x"))
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if line] == [
        "interrupted and saved; continue with: robot-rl train resume=runs/x",
        "interrupted and saved; continue with: robot-rl train resume=runs/x trust=true",
    ]
