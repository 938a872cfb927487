"""make install-matrix: the wheel with base, sim and all on every installed Python of 3.10 to 3.13.

Run as a script: python tests/release/install_matrix.py [--uv uv] [--python 3.12 ...] [--extras base ...]. Each
installation is used by another user id who can write nothing of it, without a home, a display or a network: it trains,
evaluates and reports 200 steps of `reach` and of `Pendulum-v1`. Needs root, setpriv and unshare (util-linux).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("base", "sim", "all")
NOBODY = 65534
TASKS = {
    "reach by PPO": ["env=reach", "policy=online/ppo", "policy.rollout_steps=100", "policy.minibatch=50"],
    "Pendulum-v1 by SAC": ["env=gym", "id=Pendulum-v1", "policy=online/sac", "learning_starts=100"],
}
SHORT = ["total_steps=200", "eval_episodes=1", "final_episodes=1"]
LEFT = ("evaluation.json", "report.html", "curve.png", "eval.mp4", "metrics.jsonl", "checkpoints")


def run(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command; on failure show all it printed and stop."""
    words = [str(item) for item in command]
    out = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"FAILED {' '.join(words)}\n{out.stdout[-3000:]}\n{out.stderr[-3000:]}")
    return out.stdout


def interpreter(version: str, work: Path) -> Path | None:
    """A Python of this version that every user may run, or None where none is installed on the path or by pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), *sorted(kept.glob(f"{version}.*/bin/python{version}"))]
    asked = "import os, sys; print(os.path.realpath(sys.executable))"
    answers = [subprocess.run([place, "-c", asked], capture_output=True, text=True) for place in places if place]
    works = [answer.stdout.strip() for answer in answers if answer.returncode == 0]
    if not works:
        return None
    path = Path(works[0])
    probe = [path, "-c", "import sys; print(sys.base_prefix)"]  # another user may start it and be given another library
    seen = [subprocess.run([*user, *probe], capture_output=True, text=True).stdout for user in ((), other_user())]
    if seen[0] == seen[1]:
        return path
    copy = work / f"python{version}"  # below a closed home: the same files under a folder that is open
    if not copy.exists():
        run("cp", "-a", path.parents[1], copy, cwd=work)
    return copy / "bin" / path.name


def other_user() -> list[str]:
    """Prefix of a command that runs without network as a user who owns nothing."""
    return ["unshare", "-n", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def install(uv: str, python: Path, wheel: Path, extra: str, folder: Path) -> Path:
    """The wheel in an empty environment, at the versions of the lock; returns the environment's `bin`."""
    run(uv, "venv", "-q", "-p", python, folder, cwd=folder.parent)
    target = f"robot_rl @ {wheel.as_uri()}" if extra == "base" else f"robot_rl[{extra}] @ {wheel.as_uri()}"
    locks = [item for name in ("requirements.lock", "requirements-torch.lock") for item in ("-c", ROOT / name)]
    run(uv, "pip", "install", "-q", "--compile-bytecode", "-p", folder / "bin/python", *locks, target, cwd=folder)
    return folder / "bin"


def prove(scripts: Path, python: Path, work: Path) -> None:
    """Doctor, and both tasks trained, evaluated and reported by the other user."""
    work.mkdir()
    os.chown(work, NOBODY, NOBODY)
    env = {"PATH": f"{scripts}:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    env["LD_LIBRARY_PATH"] = str(python.parents[1] / "lib")  # a copied interpreter looks for its library where it was
    site = next(scripts.parent.glob("lib/python3.*/site-packages"))
    writable = subprocess.run([*other_user(), "touch", site / "robot_rl/trace"], capture_output=True)
    assert writable.returncode, f"{site} can be written by user {NOBODY}; the proof would be none"
    said = run(*other_user(), scripts / "robot-rl", "doctor", cwd=work, env=env)
    assert "all that the base install needs is there" in said, said
    for task, options in TASKS.items():
        where = work / task.split()[0]
        words = ["train", *options, *SHORT, f"output={where}", "name=run"]
        run(*other_user(), scripts / "robot-rl", *words, cwd=work, env=env)
        folder = next(where.glob("train/*"))
        missing = [name for name in LEFT if not (folder / name).exists()]
        assert not missing, f"{task}: {folder} has no {', '.join(missing)}"
        said = run(*other_user(), scripts / "robot-rl", "eval", f"path={folder}", "episodes=1", cwd=work, env=env)
        assert "return" in said, said


def main() -> None:
    """Prove every combination asked for; says which Pythons are not installed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--python", nargs="*", default=PYTHONS)
    parser.add_argument("--extras", nargs="*", default=EXTRAS)
    args = parser.parse_args()
    if os.getuid():
        sys.exit(
            "install-matrix runs what it installs as another user and without network, for which it has to be root"
        )
    uv = str(Path(args.uv).absolute()) if "/" in args.uv else args.uv
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        work.chmod(0o755)
        clone = work / "clone"
        run("git", "clone", "-q", ROOT, clone, cwd=work)
        run(sys.executable, "-m", "build", "-w", "--no-isolation", "-o", work / "dist", clone, cwd=work)
        wheel = next((work / "dist").glob("*.whl"))
        done = 0
        for version in args.python:
            python = interpreter(version, work)
            if python is None:
                print(f"--  Python {version} is not installed")
                continue
            for extra in args.extras:
                begun, name = time.monotonic(), f"{version}-{extra}"
                scripts = install(uv, python, wheel, extra, work / name)
                prove(scripts, python, work / f"run-{name}")
                shutil.rmtree(work / name)
                print(
                    f"ok  Python {version}, {extra}: {', '.join(TASKS)} ({time.monotonic() - begun:.0f} s)", flush=True
                )
                done += 1
        if not done:
            sys.exit("none of these Pythons is installed")
        print(f"{done} passed, 0 failed")


if __name__ == "__main__":
    main()
