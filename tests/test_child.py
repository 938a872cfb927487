"""A foreign folder as the current one: none of its modules runs, in the command, its children and Python's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robot_rl import child

ROOT = Path(__file__).resolve().parents[1]
FOREIGN = ("torch", "numpy", "hydra", "omegaconf", "gymnasium", "mujoco", "yaml", "numba", "robot_rl", "sitecustomize")
SCRIPT = """from robot_rl.cli import main
import sys
if __name__ == "__main__":
    sys.exit(main())
"""  # what pip makes of the entry point


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a module for every name of Python's own and of some packages; each leaves a trace when it runs."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in {*sys.stdlib_module_names, *FOREIGN}:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\n")
    return folder


def run(command: list[str], folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONSAFEPATH", None)
    out = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    trace = folder.parent / "ran"
    assert not trace.exists(), f"modules of the current folder ran: {trace.read_text()}"
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-2000:]
    return out.stdout


def script(folder: Path) -> list[str]:
    path = folder.parent / "robot-rl"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


def test_the_folder_would_run_under_a_plain_module_start(hostile: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run([sys.executable, "-m", "robot_rl", "--version"], cwd=hostile, env=env, capture_output=True)
    assert (hostile.parent / "ran").exists()


def test_a_child_runs_nothing_of_the_current_folder(hostile: Path) -> None:
    assert "robot_rl" in run(child.command("robot_rl", "--version"), hostile)


def test_a_program_runs_nothing_of_the_current_folder_and_keeps_its_arguments(hostile: Path) -> None:
    code = "import random, sys; print(random.__file__, sys.argv[1])"
    where, argument = run([*child.program(code), "a=1"], hostile).split()
    assert Path(where).parent != hostile
    assert argument == "a=1"


def test_a_module_is_started_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import sys; print(__name__, sys.argv[1:])")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    out = subprocess.run(child.command("shown", "x", 2), env=env, capture_output=True, text=True, check=True)
    assert out.stdout.split(maxsplit=1) == ["__main__", "['x', '2']\n"]


def test_doctor_runs_nothing_of_the_current_folder(hostile: Path) -> None:
    assert "all that the base install needs is there" in run([*script(hostile), "doctor"], hostile)


def test_worker_processes_run_nothing_of_the_current_folder(hostile: Path) -> None:
    tiny = ["total_steps=40", "learning_starts=20", "checkpoint_every=0", "eval_episodes=1", "final_episodes=1"]
    words = ["train", "env=gym", "id=Pendulum-v1", "env.workers=1", "policy=online/sac", "video_episodes=0", *tiny]
    run([*script(hostile), *words, "track.tensorboard=false", f"output={hostile.parent / 'runs'}"], hostile)
    assert list((hostile.parent / "runs").glob("train/*/evaluation.json"))


def test_product_starts_processes_by_child_alone() -> None:
    found = []
    for room in ("robot_rl", "sim", "real", "policies", "launch"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name != "child.py" and 'executable, "-' in path.read_text():
                found.append(str(path))
    assert not found, "start these by robot_rl.child: with -m or -c the current folder is on the path"
